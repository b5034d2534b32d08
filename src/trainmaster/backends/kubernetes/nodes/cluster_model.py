"""The cluster's nodes as the model knows them, and what others than our jobs use of them. No I/O.

A node that has once been listed keeps its index for the life of the service: what is on its way between engine and
backend names nodes by index. Nodes that are gone stay in the list as nodes that are down, until the next start.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainmaster.backends.kubernetes.attempts.pod_objects import Object, is_ours, is_over
from trainmaster.backends.kubernetes.resources.quantity import (
    MIB,
    QuantityError,
    cpu_milli_up,
    mem_mib_up,
    parse_quantity,
    pod_requests,
)
from trainmaster.model.cluster import Node

GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "habana.ai/gaudi")
TYPE_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "gpu.intel.com/product", "habana.ai/gaudi.product")
"""Where the product's name is, for each resource."""
RACK_LABELS = ("topology.kubernetes.io/rack", "topology.kubernetes.io/zone")
NO_GPU = "cpu"
Amounts = tuple[int, int, int]
"""GPUs, thousandths of a CPU, MiB of memory."""
NOTHING: Amounts = (0, 0, 0)


@dataclass(frozen=True)
class NodeFacts:
    """One node as its object tells. `closed`: no newcomers."""

    node: Node
    gpu_resource: str
    ready: bool
    closed: bool


def read_node(thing: Object, resources: Iterable[str] = GPU_RESOURCES) -> NodeFacts:
    meta, spec, status = thing["metadata"], thing.get("spec") or {}, thing.get("status") or {}
    labels = meta.get("labels") or {}
    allocatable = status.get("allocatable") or {}
    gpus, resource, replicas = 0, "", 1
    for name in resources:
        amount = _amount(allocatable, name)
        if amount >= 1:
            (gpus, replicas), resource = devices_of(labels, int(amount), name), name
            break
    ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or ())
    return NodeFacts(
        Node(
            id=meta["name"],
            accelerator=_type(labels, resource, allocatable, resources),
            gpus=gpus,
            cpu_milli=math.floor(_amount(allocatable, "cpu") * 1000),
            mem_mib=math.floor(_amount(allocatable, "memory") / MIB),
            rack=next((labels[name] for name in RACK_LABELS if labels.get(name)), ""),
            jobs_per_device=replicas if gpus == 1 else 1,
        ),
        resource,
        ready,
        bool(spec.get("unschedulable")),
    )


def devices_of(labels: Mapping[str, str], amount: int, resource: str) -> tuple[int, int]:
    """Real GPUs of a node that offers so many, and as how many replicas each is offered.

    A device plugin that slices time offers each GPU several times, and which GPU a pod gets is its own affair. So a
    node counts with its real GPUs: with several of them nobody could tell who shares one with whom. Labels are those of
    GPU feature discovery; what they say must add up, else the node is taken as it offers itself.
    """
    said = {name: _whole(labels.get(f"{resource}.{name}")) for name in ("count", "replicas")}
    gpus, replicas = said["count"], said["replicas"]
    if replicas < 2 and 1 <= gpus < amount and amount % gpus == 0:
        replicas = amount // gpus  # more are offered than there are
    if replicas < 2 or amount % replicas:
        return amount, 1
    return amount // replicas, replicas


def _whole(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 6 else 0


def _amount(amounts: Mapping[str, Any], name: str) -> Any:
    try:
        return max(parse_quantity(amounts.get(name, 0)), 0)
    except QuantityError:
        return 0


def _type(labels: Mapping[str, str], resource: str, allocatable: Mapping[str, Any], resources: Iterable[str]) -> str:
    """By label; a node whose device plugin has not spoken yet has its type by the label too."""
    for name in TYPE_LABELS:
        if labels.get(name):
            return labels[name]
    known = resource or next((name for name in resources if name in allocatable), "")
    return known.replace("/", "-") or NO_GPU


def merged(before: Node, now: Node) -> Node:
    """The same node, as large as it ever was: what is less now is withheld, not taken from under running jobs."""
    if before.accelerator != now.accelerator:
        return now
    return Node(
        before.id, before.accelerator, max(before.gpus, now.gpus), max(before.cpu_milli, now.cpu_milli),
        max(before.mem_mib, now.mem_mib), now.rack, now.jobs_per_device,
    )  # fmt: skip


@dataclass
class Usage:
    """What pods use, node by node, kept up to date pod by pod."""

    resources: tuple[str, ...] = GPU_RESOURCES
    by_node: dict[str, list[int]] = field(default_factory=dict)
    _by_pod: dict[str, tuple[str, Amounts]] = field(default_factory=dict)

    def of(self, node: str) -> Amounts:
        found = self.by_node.get(node)
        return NOTHING if found is None else (found[0], found[1], found[2])

    def pod_changed(self, pod: Object, gone: bool) -> str | None:
        """A pod that uses its node unless it is ours. The node on which something changed, if so."""
        node = pod["spec"].get("nodeName")
        counts = node and not gone and not is_over(pod) and not is_ours(pod) and not _of_our_gang(pod)
        return self.note(pod, node if counts else None)

    def note(self, pod: Object, node: str | None) -> str | None:
        """From now on it uses this node; None: nothing any more. The node on which something changed, if so."""
        uid = pod["metadata"]["uid"]
        before = self._by_pod.get(uid)
        if node is None:
            if before is None:
                return None
            del self._by_pod[uid]
            self._add(before[0], before[1], -1)
            return before[0]
        if before is not None:
            return None  # what a pod asks for does not change while it runs
        amounts = self._asked(pod)
        self._by_pod[uid] = (node, amounts)
        self._add(node, amounts, 1)
        return node

    def _asked(self, pod: Object) -> Amounts:
        try:
            asked = pod_requests(pod["spec"])
        except QuantityError:
            return NOTHING
        gpus = sum(int(asked.get(name, 0)) for name in self.resources)
        return gpus, cpu_milli_up(asked.get("cpu", 0)), mem_mib_up(asked.get("memory", 0))  # type: ignore[arg-type]

    def _add(self, node: str, amounts: Amounts, sign: int) -> None:
        sums = self.by_node.setdefault(node, [0, 0, 0])
        for k, amount in enumerate(amounts):
            sums[k] += sign * amount


def _of_our_gang(pod: Object) -> bool:
    """Pods of other controllers that we schedule are jobs of the engine, counted there."""
    return pod["spec"].get("schedulerName") == "trainmaster"


def unavailable(facts: NodeFacts | None, listed: Node, foreign: Amounts) -> Amounts:
    """How much of a listed node is not ours: what others use, what it no longer has, all of it when it is closed."""
    if facts is None or facts.closed or facts.node.accelerator != listed.accelerator:
        return listed.gpus, listed.cpu_milli, listed.mem_mib
    now = facts.node
    return (
        min(listed.gpus, listed.gpus - now.gpus + foreign[0]),
        min(listed.cpu_milli, listed.cpu_milli - now.cpu_milli + foreign[1]),
        min(listed.mem_mib, listed.mem_mib - now.mem_mib + foreign[2]),
    )

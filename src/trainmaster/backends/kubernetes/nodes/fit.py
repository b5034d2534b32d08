"""Why a job could not run even if the cluster were empty: on which nodes what is missing.

Nodes that lack the same things are told together, so that a thousand nodes make one line each way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from trainmaster.backends.kubernetes.nodes.cluster_model import devices_of
from trainmaster.backends.kubernetes.nodes.matching import why_not
from trainmaster.backends.kubernetes.resources.quantity import QuantityError, parse_quantity
from trainmaster.model.job import Demand, JobSpec
from trainmaster.model.units import GPU_MILLI

Json = Mapping[str, Any]
TYPE_LABEL = "nvidia.com/gpu.product"
OTHER_TYPE = "is not among gpuTypes"
MAX_NAMED = 3
MAX_KNOWN = 10_000
MAX_GROUPS = 6
MAX_TEXT = 1_000
_MIB = 2**20


@dataclass(frozen=True)
class Room:
    """How many workers of one kind empty nodes could take, by GPU type; and what the others lack."""

    room: dict[str, int] = field(default_factory=dict)
    lacking: dict[str, list[str]] = field(default_factory=dict)


def room_for(spec: JobSpec, asked: Json, nodes: Iterable[Json]) -> Room:
    resource = spec.payload.get("gpu_resource", "nvidia.com/gpu")
    found = Room()
    for node in sorted(nodes, key=lambda node: node["metadata"]["name"]):
        why = _lacks(spec, asked, node, resource)
        if why is None:
            gpu_type = type_of(node) if spec.worker.gpu_milli else ""
            found.room[gpu_type] = found.room.get(gpu_type, 0) + workers_on(spec.worker, node, resource)
        else:
            found.lacking.setdefault(why, []).append(node["metadata"]["name"])
    return found


class KnownRoom:
    """Jobs whose workers ask for the same are judged once for the present nodes, however many there are of either."""

    def __init__(self, nodes: Callable[[], Iterable[Json]], asked: Callable[[str], Json | None]) -> None:
        """`asked`: what the pods of a set of nodes demand of these, see `NodeSets.asked`."""
        self._nodes = nodes
        self._asked = asked
        self._known: dict[tuple[object, ...], Room] = {}

    def forget(self) -> None:
        """Nodes have changed."""
        self._known = {}

    def lacks(self, spec: JobSpec) -> str:
        """Why the smallest gang could not be placed even if all nodes were empty and in order; empty: it could, or
        its set of nodes is not known."""
        key = (spec.worker, spec.gpu_types, spec.payload.get("gpu_resource"), spec.node_set)
        known = self._known
        if key not in known:
            asked = self._asked(spec.node_set)
            if asked is None:
                return ""
            if len(known) >= MAX_KNOWN:
                known.clear()
            known[key] = room_for(spec, asked, self._nodes())
        return lack(spec, known[key])


def lack(spec: JobSpec, found: Room) -> str:
    room, lacking = found.room, found.lacking
    if not room and not lacking:
        return "the cluster has no nodes"
    if max(room.values(), default=0) >= spec.workers_min:
        return ""
    if room:
        gpu_types = ", ".join(f"{count} on {gpu_type or 'nodes'}" for gpu_type, count in sorted(room.items()))
        what = f"{spec.workers_min} workers do not fit (spec.workers.min): there is room for {gpu_types}"
    else:
        what = f"no node can take a worker ({_at_fault(spec, lacking)})"
    return f"{what}{_told(lacking)}"[:MAX_TEXT]


def _at_fault(spec: JobSpec, lacking: Mapping[str, list[str]]) -> str:
    """The field that all nodes refuse."""
    if all(why.endswith(OTHER_TYPE) for why in lacking):
        return "spec.gpuTypes"
    resource = spec.payload.get("gpu_resource", "nvidia.com/gpu")
    if all(why.startswith(f"{resource} ") and ", " not in why.partition(" wanted, ")[2] for why in lacking):
        return "spec.gpusPerWorker"
    return "spec.template"


def type_of(node: Json) -> str:
    return (node["metadata"].get("labels") or {}).get(TYPE_LABEL) or "gpu"


def allocatable(node: Json, name: str) -> Fraction:
    amount = ((node.get("status") or {}).get("allocatable") or {}).get(name)
    try:
        return Fraction(0) if amount is None else parse_quantity(amount)
    except QuantityError:
        return Fraction(0)


def gpus_of(node: Json, resource: str) -> Fraction:
    """Real ones: a node whose device plugin slices time offers more."""
    offered = allocatable(node, resource)
    return Fraction(devices_of(node["metadata"].get("labels") or {}, int(offered), resource)[0])


def workers_on(demand: Demand, node: Json, resource: str) -> int:
    """How many members an empty node could take."""
    counts = [allocatable(node, "pods") or Fraction(110)]
    if demand.gpu_milli:
        counts.append(gpus_of(node, resource) * GPU_MILLI / demand.gpu_milli)
    if demand.cpu_milli:
        counts.append(allocatable(node, "cpu") * 1000 / demand.cpu_milli)
    if demand.mem_mib:
        counts.append(allocatable(node, "memory") / _MIB / demand.mem_mib)
    return int(min(counts))


def _lacks(spec: JobSpec, asked: Json, node: Json, resource: str) -> str | None:
    """What the node lacks for one worker."""
    refused = why_not(asked, node, lasting=True)
    if refused is not None:
        return refused
    if spec.worker.gpu_milli and spec.gpu_types and type_of(node) not in spec.gpu_types:
        return f"type {type_of(node)} {OTHER_TYPE}"
    short = []
    wanted = (
        (resource, Fraction(spec.worker.gpu_milli, GPU_MILLI), 1, ""),
        ("cpu", Fraction(spec.worker.cpu_milli, 1000), 1, ""),
        ("memory", Fraction(spec.worker.mem_mib), _MIB, "Mi"),
    )
    for name, amount, unit, suffix in wanted:
        have = gpus_of(node, name) if name == resource else allocatable(node, name) / unit
        if have < amount:
            short.append(f"{name} {_number(amount)}{suffix} wanted, {_number(have)}{suffix} there")
    return ", ".join(short) or None


def _told(lacking: Mapping[str, list[str]]) -> str:
    if not lacking:
        return ""
    groups = sorted(lacking.items(), key=lambda item: (-len(item[1]), item[0]))
    told = [f"{_names(names)}: {why}" for why, names in groups[:MAX_GROUPS]]
    if len(groups) > MAX_GROUPS:
        told.append(f"and {len(groups) - MAX_GROUPS} more kinds of nodes")
    return "; " + "; ".join(told)


def _names(names: list[str]) -> str:
    shown = ", ".join(names[:MAX_NAMED])
    return shown if len(names) <= MAX_NAMED else f"{shown} and {len(names) - MAX_NAMED} more"


def _number(amount: Fraction) -> str:
    return f"{float(amount):g}" if amount.denominator != 1 else str(amount.numerator)

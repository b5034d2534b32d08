"""What this machine offers: NVIDIA GPUs if there are any, else its cores as slots; or nodes as declared.

Declared nodes are emulated: jobs run on the machine's cores, slowed down as if on the declared accelerators.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trainmaster.backends.local.nvml import Gpu, find_gpus
from trainmaster.model.cluster import Cluster, Node, cluster_of, parse_cluster
from trainmaster.model.job import Demand
from trainmaster.model.units import UNLIMITED

CPU = "cpu"
"""Accelerator type of a slot that is one core."""
_MIB = 1 << 20


class Facts(Protocol):
    """Public figures of an accelerator, as `trainmaster.estimate.accelerators` has them."""

    @property
    def name(self) -> str: ...
    @property
    def speed(self) -> float: ...


Find = Callable[[str], Facts | None]


def describe(
    nodes_spec: str | Cluster | None = None, find: Find | None = None
) -> tuple[Cluster, dict[str, float], bool]:
    """(cluster, slowdown by type, whether speeds are emulated).

    `find` looks an accelerator up by a name clusters use (`trainmaster.estimate.accelerators.find_accelerator`):
    for short type names of real GPUs and the relative speed of declared ones. Without it real GPUs keep their
    full names and all declared types are equally fast.
    """
    if nodes_spec is not None:
        cluster = nodes_spec if isinstance(nodes_spec, Cluster) else parse_cluster(nodes_spec)
        return cluster, slowdowns(cluster.types, find), True
    gpus = visible_gpus()
    return cluster_of(_gpu_nodes(gpus, find) if gpus else [_cpu_node()]), {}, False


def slowdowns(types: Sequence[str], find: Find | None) -> dict[str, float]:
    """How much slower each type is than the fastest of them; 1 for a type nobody knows."""
    speeds: dict[str, float] = {}
    for name in types:
        facts = find(name) if find is not None else None
        if facts is not None:
            speeds[name] = facts.speed
    fastest = max(speeds.values(), default=1.0)
    return {name: round(max(1.0, fastest / speeds[name]), 3) if name in speeds else 1.0 for name in types}


OVERHEAD = 1.15
"""What parameter servers, supervisors and the service itself need beside the workers."""


def crowding(cluster: Cluster, slowdown: Mapping[str, float], cores: int) -> float:
    """How much slower emulated slots must be, all alike, that the machine's cores can bear them all at once: then a
    job's speed does not depend on how many others run, as on real accelerators. 1 where there is room, and on real
    devices."""
    if not slowdown:
        return 1.0
    demand = sum(node.gpus / slowdown.get(node.accelerator, 1.0) for node in cluster.nodes)
    return max(1.0, OVERHEAD * demand / max(cores, 1))


# -- real devices --------------------------------------------------------------------------------------


def usable_cores() -> list[int]:
    """Cores this process may run on; fewer when a control group limits its CPU time."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    quota = _cgroup_cpus()
    return cores if quota is None else cores[: max(1, int(quota))]


def _cgroup_cpus() -> float | None:
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()[:2]
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        return None


def _memory_mib() -> int:
    found = []
    try:
        total = re.search(r"^MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
        if total is not None:
            found.append(int(total[1]) // 1024)
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit.isdigit():
            found.append(int(limit) // _MIB)
    except OSError:
        pass
    return min(found, default=UNLIMITED)


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname().split(".")[0]) or "local"


def machine() -> Demand:
    """Cores and memory that this process may use."""
    return Demand(0, len(usable_cores()) * 1000, _memory_mib())


def _cpu_node() -> Node:
    here = machine()
    return Node(_host(), CPU, here.cpu_milli // 1000, here.cpu_milli, here.mem_mib)


def visible_gpus(environment: Mapping[str, str] | None = None, gpus: Sequence[Gpu] | None = None) -> list[Gpu]:
    """GPUs of the machine, or those of them that CUDA_VISIBLE_DEVICES leaves to this process."""
    found = list(find_gpus() if gpus is None else gpus)
    shown = (os.environ if environment is None else environment).get("CUDA_VISIBLE_DEVICES")
    if shown is None:
        return found
    chosen: list[Gpu] = []
    for item in (part.strip() for part in shown.split(",")):
        match = next((g for g in found if item == str(g.index) or (item and g.uuid.startswith(item))), None)
        if match is None:
            break  # as CUDA does: nothing after an unknown entry counts
        chosen.append(match)
    return chosen


def type_name(gpu_name: str, find: Find | None) -> str:
    """`NVIDIA A100-SXM4-80GB` -> `a100-80gb` when it is known, else a plain form of the full name."""
    facts = find(gpu_name) if find is not None else None
    if facts is not None:
        return facts.name
    plain = re.sub(r"[^a-z0-9_.+-]+", "-", gpu_name.lower()).strip("-_.+")
    return plain.removeprefix("nvidia-").removeprefix("tesla-") or "gpu"


def _by_type(gpus: Sequence[Gpu], find: Find | None) -> dict[str, list[Gpu]]:
    by_type: dict[str, list[Gpu]] = {}
    for gpu in gpus:
        by_type.setdefault(type_name(gpu.name, find), []).append(gpu)
    return dict(sorted(by_type.items()))


def _gpu_nodes(gpus: Sequence[Gpu], find: Find | None) -> list[Node]:
    """One node per type, because a node has GPUs of one type; cores and memory are divided by their number."""
    by_type = _by_type(gpus, find)
    cores, memory = len(usable_cores()) * 1000, _memory_mib()
    nodes = []
    for name, group in by_type.items():
        share = len(group) / len(gpus)
        node_id = _host() if len(by_type) == 1 else f"{_host()}-{name}"
        nodes.append(Node(node_id, name, len(group), int(cores * share), int(memory * share)))
    return nodes


@dataclass(frozen=True)
class Devices:
    """What devices of a cluster's nodes really are: GPU indices, or cores, by node; empty: neither."""

    gpu_index: tuple[tuple[int, ...], ...] = ()
    core: tuple[tuple[int, ...], ...] = ()


def real_devices(cluster: Cluster, emulated: bool, find: Find | None = None) -> Devices:
    """For a cluster that `describe` made of this machine.

    Cores are handed out only when every slot has one of its own; otherwise nobody is bound to any.
    """
    if emulated:
        return Devices()
    if cluster.types == (CPU,):
        cores = usable_cores()
        if len(cluster.nodes) == 1 and cluster.nodes[0].gpus <= len(cores):
            return Devices(core=(tuple(cores[: cluster.nodes[0].gpus]),))
        return Devices()
    groups = list(_by_type(visible_gpus(), find).values())
    by_type = {type_name(group[0].name, find): group for group in groups}
    full = {type_name(group[0].name, None): group for group in groups}
    indices = []
    for node in cluster.nodes:
        group = by_type.get(node.accelerator) or full.get(node.accelerator) or (groups[0] if len(groups) == 1 else [])
        indices.append(tuple(gpu.index for gpu in group))
    return Devices(gpu_index=tuple(indices))

"""The machines: nodes with GPUs of one type each, CPU, memory and a rack; and how they are described."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from trainmaster.core.arrays import Ints
from trainmaster.model.errors import InputError
from trainmaster.model.units import UNLIMITED

DEFAULT_GPUS_PER_NODE = 8
MAX_GPUS = 10_000_000


@dataclass(frozen=True, slots=True)
class Node:
    """One machine. CPU and memory default to "not a constraint"."""

    id: str
    accelerator: str
    gpus: int
    cpu_milli: int = UNLIMITED
    mem_mib: int = UNLIMITED
    rack: str = ""
    jobs_per_device: int = 2
    """How many jobs may be put on one device, where it can be known which device that is."""


@dataclass(frozen=True)
class Cluster:
    """Nodes in a fixed order; a node index never changes its meaning. Types are sorted by name."""

    nodes: tuple[Node, ...]
    price_per_hour: Mapping[str, float]

    @cached_property
    def types(self) -> tuple[str, ...]:
        return tuple(sorted({node.accelerator for node in self.nodes}))

    @cached_property
    def type_of(self) -> Ints:
        index = {name: i for i, name in enumerate(self.types)}
        return np.array([index[node.accelerator] for node in self.nodes], dtype=np.int64)

    @cached_property
    def rack_of(self) -> Ints:
        names = sorted({node.rack for node in self.nodes})
        index = {name: i for i, name in enumerate(names)}
        return np.array([index[node.rack] for node in self.nodes], dtype=np.int64)

    @cached_property
    def gpus(self) -> Ints:
        return np.array([node.gpus for node in self.nodes], dtype=np.int64)

    @cached_property
    def shareable(self) -> npt.NDArray[np.bool_]:
        """By node: whether two jobs that ask for a whole device may share one."""
        return np.array([node.jobs_per_device > 1 for node in self.nodes], dtype=np.bool_)

    @cached_property
    def cpu_milli(self) -> Ints:
        return np.array([node.cpu_milli for node in self.nodes], dtype=np.int64)

    @cached_property
    def mem_mib(self) -> Ints:
        return np.array([node.mem_mib for node in self.nodes], dtype=np.int64)

    @cached_property
    def gpus_by_type(self) -> Ints:
        return np.bincount(self.type_of, weights=self.gpus, minlength=len(self.types)).astype(np.int64)

    @cached_property
    def prices(self) -> npt.NDArray[np.float64]:
        """Dollars per GPU-hour by type; NaN when nobody said."""
        return np.array([self.price_per_hour.get(name, np.nan) for name in self.types])

    @property
    def total_gpus(self) -> int:
        return int(self.gpus.sum())

    def describe(self) -> str:
        """Canonical short form, such as `k80=12x4,v100=12x4`."""
        parts = []
        for name in self.types:
            sizes = [node.gpus for node in self.nodes if node.accelerator == name]
            parts.append(f"{name}={sum(sizes)}x{max(sizes)}")
        return ",".join(parts)

    def nodes_text(self) -> str:
        """For people: `k80:3x4,v100:1x8,v100:1x4`, nodes times GPUs; `parse_cluster` reads it."""
        sizes = Counter((node.accelerator, node.gpus) for node in self.nodes if node.gpus)
        order = sorted(sizes, key=lambda key: (self.types.index(key[0]), -key[1]))
        return ",".join(f"{name}:{sizes[name, gpus]}x{gpus}" for name, gpus in order)


def cluster_of(nodes: Iterable[Node], prices: Mapping[str, float] | None = None) -> Cluster:
    """A checked cluster: unique ids, at least one node and one GPU."""
    listed = tuple(nodes)
    seen: set[str] = set()
    for node in listed:
        if node.id in seen:
            raise InputError(f"node '{node.id}' is listed twice", expected="unique node ids")
        seen.add(node.id)
        if node.gpus < 0:
            raise InputError(f"node '{node.id}' has {node.gpus} GPUs", expected="0 or more")
    if sum(node.gpus for node in listed) == 0:
        raise InputError(
            "the cluster has no GPUs",
            expected="at least one",
            remedy="Describe it like v100:4x4,p100:3x4 (nodes times GPUs on each).",
        )
    return Cluster(listed, dict(prices or {}))


_ITEM = re.compile(r"^\s*([A-Za-z0-9][A-Za-z0-9_.+-]*)\s*=\s*(-?\d+)\s*(?:[xX]\s*(-?\d+))?\s*$")


def counting_only_gpus(cluster: Cluster) -> Cluster:
    """The same GPUs with CPU and memory without end: what the strategy `count` places on."""
    nodes = tuple(replace(node, cpu_milli=UNLIMITED, mem_mib=UNLIMITED) for node in cluster.nodes)
    return Cluster(nodes, cluster.price_per_hour)


_NODES_ITEM = re.compile(r"^\s*([A-Za-z0-9][A-Za-z0-9_.+-]*)\s*:\s*(\d{1,9})\s*[xX]\s*(\d{1,9})\s*$")


def parse_cluster(text: str, prices: Mapping[str, float] | None = None) -> Cluster:
    """`v100:2x4`: two nodes of 4 GPUs, a type may have several such parts. Or `v100=12,k80=8x4`: GPUs of each type in
    all, optionally how many on a node (default 8)."""
    remedy = "Example: v100:2x4,k80:1x8 (2 nodes of 4 V100, 1 node of 8 K80)."
    nodes: list[Node] = []
    seen: set[str] = set()
    for item in text.split(","):
        if (of_nodes := _NODES_ITEM.match(item)) is not None:
            name, count, per_node = of_nodes[1], int(of_nodes[2]), int(of_nodes[3])
            first = sum(node.accelerator == name for node in nodes)
            if name in seen or min(count, per_node) < 1 or count * per_node > MAX_GPUS:
                raise InputError(f"cluster '{text}': '{item.strip()}' is out of range", "TYPE:NODESxGPUS", remedy)
            nodes += [Node(f"{name}-{i}", name, per_node) for i in range(first, first + count)]
            continue
        match = _ITEM.match(item)
        if match is None:
            raise InputError(
                f"cluster '{text}': cannot read '{item.strip()}'",
                "TYPE:NODESxGPUS, TYPE=GPUS or TYPE=GPUSxPER_NODE",
                remedy,
            )
        name, count, per_node = match[1], int(match[2]), int(match[3] or DEFAULT_GPUS_PER_NODE)
        if name in seen or any(node.accelerator == name for node in nodes):
            raise InputError(f"cluster '{text}': type '{name}' is given twice", "each type once", remedy)
        seen.add(name)
        if count < 0 or per_node < 1 or count > MAX_GPUS:
            raise InputError(f"cluster '{text}': '{item.strip()}' is out of range", "a positive count", remedy)
        for i, start in enumerate(range(0, count, per_node)):
            nodes.append(Node(f"{name}-{i}", name, min(per_node, count - start)))
    return cluster_of(nodes, prices)

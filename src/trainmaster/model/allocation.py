"""Where a job runs: which devices of which nodes, with how many workers and servers on each."""

from __future__ import annotations

from typing import NamedTuple

from trainmaster.model.units import GPU_MILLI


class Part(NamedTuple):
    """The piece of an allocation on one node. `node` is an index into the cluster's nodes."""

    node: int
    workers: int
    servers: int
    devices: tuple[int, ...]


class Allocation(NamedTuple):
    """All parts of a job's gang. Every listed device gives `share_milli` thousandths of itself.

    `accelerator` indexes the cluster's types; -1 for a job without GPUs.
    """

    accelerator: int
    parts: tuple[Part, ...]
    share_milli: int = GPU_MILLI

    @property
    def workers(self) -> int:
        parts = self.parts
        return parts[0].workers if len(parts) == 1 else sum([part.workers for part in parts])

    @property
    def servers(self) -> int:
        parts = self.parts
        return parts[0].servers if len(parts) == 1 else sum([part.servers for part in parts])

    @property
    def spread(self) -> bool:
        """Whether workers sit on more than one node."""
        return len(self.parts) > 1 and sum([part.workers > 0 for part in self.parts]) > 1

    @property
    def gpu_milli(self) -> int:
        parts = self.parts
        devices = len(parts[0].devices) if len(parts) == 1 else sum([len(part.devices) for part in parts])
        return devices * self.share_milli


def fewer_workers(allocation: Allocation, workers: int, devices_each: int) -> Allocation:
    """The same gang with only its first workers; servers stay. `workers` is at least 1 and not more than it has."""
    if any(len(part.devices) != part.workers * devices_each for part in allocation.parts):
        return shrunk_counted(allocation, workers, allocation.servers, devices_each)
    kept, left = [], workers
    for part in allocation.parts:
        here = min(part.workers, left)
        left -= here
        if here or part.servers:
            kept.append(part._replace(workers=here, devices=part.devices[: here * devices_each]))
    return allocation._replace(parts=tuple(kept))


def shrunk_counted(old: Allocation, workers: int, servers: int, devices_each: int) -> Allocation:
    """A smaller gang where GPUs are only counted: the first part names all workers, devices lie anywhere."""
    devices_left, servers_left = workers * devices_each, servers
    parts = []
    for k, part in enumerate(old.parts):
        devices = part.devices[:devices_left]
        hosted = min(part.servers, servers_left)
        devices_left -= len(devices)
        servers_left -= hosted
        if k == 0 or devices or hosted:
            parts.append(Part(part.node, workers if k == 0 else 0, hosted, devices))
    return Allocation(old.accelerator, tuple(parts), old.share_milli)


def shrunk(old: Allocation, workers: int, servers: int, devices_each: int) -> Allocation:
    """Keep this many; leave the smallest parts first, so that fewer nodes remain."""
    drop_workers, drop_servers = old.workers - workers, old.servers - servers
    kept: dict[int, Part] = {part.node: part for part in old.parts}
    for part in sorted(old.parts, key=lambda p: (p.workers, -p.node)):
        cut_w, cut_s = min(drop_workers, part.workers), min(drop_servers, part.servers)
        drop_workers -= cut_w
        drop_servers -= cut_s
        left_w, left_s = part.workers - cut_w, part.servers - cut_s
        if left_w == 0 and left_s == 0:
            del kept[part.node]
        else:
            kept[part.node] = Part(part.node, left_w, left_s, part.devices[: left_w * devices_each])
    return Allocation(old.accelerator, tuple(kept[node] for node in sorted(kept)), old.share_milli)


def merged(kept: Allocation, more: Allocation) -> Allocation:
    """A gang and what it grows by, as one."""
    by_node = {part.node: part for part in kept.parts}
    for part in more.parts:
        have = by_node.get(part.node, Part(part.node, 0, 0, ()))
        by_node[part.node] = Part(
            part.node,
            have.workers + part.workers,
            have.servers + part.servers,
            tuple(sorted((*have.devices, *part.devices))),
        )
    return Allocation(kept.accelerator, tuple(by_node[node] for node in sorted(by_node)), kept.share_milli)

"""A job of the engine in the terms of the formulation: which gangs it may run as, what each takes and does.

The admission instance lets a job use 0 .. N workers per slot, each worth the same. A `JobSpec` says more: a
range of workers (a rigid job: one size or nothing), a curve of speed against size, one speed on a single
node and another when spread, and one of each per accelerator type. So a slot offers a list of *gangs*; a
gang has workers, servers, whether it must sit on one node, and a speed in steps per second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trainmaster.model.capacity.free_resources import FreeCapacity
from trainmaster.model.cluster import Cluster
from trainmaster.model.job import Demand, JobSpec
from trainmaster.model.plan_builder import PlanBuilder
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import GPU_MILLI, UNLIMITED

SIZES_MAX = 12
"""Sizes of an elastic job that are considered; a wide range is thinned evenly in the logarithm."""
_FASTER = 1.0 + 1e-9

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Pool:
    """Nodes as servers that host both roles: capacity by node and resource, in GPUs, cores and GiB.

    Resources that no node limits are left out: they can be neither short nor priced.
    """

    resources: tuple[str, ...]
    capacity: Floats
    _scales: Floats
    _columns: tuple[str, ...]

    @staticmethod
    def of(cluster: Cluster) -> Pool:
        names, columns, scales, limits = ["gpu"], ["gpu_milli"], [1.0 / GPU_MILLI], [cluster.gpus * 1.0]
        for name, column, scale, limit in (
            ("cpu", "cpu_milli", 1e-3, cluster.cpu_milli),
            ("memory_gib", "mem_mib", 1.0 / 1024.0, cluster.mem_mib),
        ):
            if (limit < UNLIMITED).any():
                names.append(name)
                columns.append(column)
                scales.append(scale)
                limits.append(limit * scale)
        capacity = np.ascontiguousarray(np.array(limits, np.float64).T)
        return Pool(tuple(names), capacity, np.array(scales), tuple(columns))

    def demand(self, member: Demand) -> Floats:
        """One member of a role, in the order of `resources`."""
        return np.array([getattr(member, column) for column in self._columns]) * self._scales


@dataclass(frozen=True)
class Gangs:
    """The gangs of one job on one accelerator type, as columns. `one_node`: workers may not be spread."""

    accelerator: int
    workers: Ints
    servers: Ints
    one_node: NDArray[np.bool_]
    steps_per_s: Floats

    @property
    def fastest(self) -> float:
        return float(self.steps_per_s.max())


def servers_for(spec: JobSpec, workers: int) -> int:
    """Parameter servers of so many workers, within the job's range: the fewest that feed them, b w <= B z; where no
    bandwidths are stated, the ratio of the reference size."""
    if spec.servers_max == 0:
        return 0
    if fed := spec.scaling.workers_per_server:
        ratio = 1 / fed
    elif spec.servers_ref > 0:
        ratio = spec.servers_ref / max(spec.workers_ref, 1)
    else:
        ratio = spec.servers_max / max(spec.workers_max, 1)
    wanted = math.ceil(workers * ratio * (1 - 1e-9))
    return min(max(wanted, spec.servers_min), spec.servers_max)


def bandwidth_suffices(spec: JobSpec, workers: int, servers: int) -> bool:
    """b w <= B z, where bandwidths are stated."""
    fed = spec.scaling.workers_per_server
    return not fed or not servers or workers <= servers * fed * (1 + 1e-9)


def sizes_of(least: int, ask: int, most: int) -> list[int]:
    """The numbers of workers to consider: all of a narrow range; ends, asked size and a few of a wide one."""
    if most - least < SIZES_MAX:
        return list(range(least, most + 1))
    spread = np.geomspace(max(least, 1), most, SIZES_MAX - 1).round().astype(int).tolist()
    return sorted({least, most, min(max(ask, least), most), *spread} - {0})


def node_room(pool: Pool, demand: Floats) -> Floats:
    """How many members of a role each empty node could host."""
    taken = demand > 0
    if not taken.any():
        return np.full(len(pool.capacity), np.inf)
    return np.floor(pool.capacity[:, taken] / demand[taken] + 1e-9).min(axis=1)


def fits_idle(view: Snapshot, row: int, workers: int, servers: int) -> bool:
    """Whether the whole cluster, idle and with all nodes up, could host this gang."""
    idle = replace(view, free_capacity=FreeCapacity.full(view.cluster), up=np.ones(len(view.cluster.nodes), np.bool_))
    return PlanBuilder(idle).place(row, workers=workers, servers=servers)


def gangs_of(view: Snapshot, pool: Pool, row: int, accelerator: int) -> Gangs | None:
    """What the job may run as on one type, leaving out what not even the idle cluster could host; None when
    it cannot run there."""
    jobs = view.jobs
    if not jobs.allowed[row][accelerator]:
        return None
    spec = jobs.spec(row)
    workers: list[int] = []
    servers: list[int] = []
    one_node: list[bool] = []
    speeds: list[float] = []
    room = node_room(pool, pool.demand(spec.worker))[view.cluster.type_of == accelerator]
    least, most = max(int(jobs.workers_min[row]), 1), int(jobs.workers_max[row])
    fastest_seen = {True: 0.0, False: 0.0}
    for size in sizes_of(least, int(jobs.workers_ask[row]), most):
        ps = servers_for(spec, size)
        if size > least and not bandwidth_suffices(spec, size, ps):
            break  # nor do more workers; the fewest are all that can be done for a job of which they are too many
        together = jobs.rate_at(row, accelerator, size, ps)
        apart = together if size == 1 else jobs.rate_at(row, accelerator, size, ps, spread=True)
        # One unconstrained gang serves where spreading costs nothing; otherwise both forms compete.
        forms = [(False, apart)] if apart >= together else [(True, together), (False, apart)]
        for packed, speed in forms:
            if (room.max(initial=0) if packed else room.sum()) < size:
                continue
            # More workers that are no faster are never worth their price.
            if speed > fastest_seen[packed] * _FASTER:
                fastest_seen[packed] = speed
                workers.append(size)
                servers.append(ps)
                one_node.append(packed)
                speeds.append(speed)
    if not workers:
        return None
    return Gangs(
        accelerator,
        np.array(workers, np.int64),
        np.array(servers, np.int64),
        np.array(one_node, np.bool_),
        np.array(speeds),
    )

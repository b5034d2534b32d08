"""Capacity as policies count it before placement: GPUs by type, CPU and memory by type and in all.

A pool answers quickly whether a gang or one more worker could fit by number; where it goes is decided
afterwards by placement, which may still refuse (fragments). All amounts are float64, so that resources
which the cluster does not mention (`UNLIMITED`) add up without overflow.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainmaster.core.arrays import Floats, Ints
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import GPU_MILLI
from trainmaster.policies.shared.node_capacity import Room

GPU, CPU, MEM = 0, 1, 2


class Pools(NamedTuple):
    """What is free. `whole` counts untouched GPUs and `milli` all that is left of GPUs, both in thousandths;
    `cpu` and `mem` by type; `anywhere` is CPU and memory of all types together, which servers draw from."""

    whole: Floats
    milli: Floats
    cpu: Floats
    mem: Floats
    anywhere: Floats


class Demands(NamedTuple):
    """Per row: thousandths of a GPU per worker, its share of each device, CPU and memory of both roles."""

    gpu: Floats
    share: Ints
    cpu: Floats
    mem: Floats
    server_cpu: Floats
    server_mem: Floats


def free_pools(view: Snapshot) -> Pools:
    """What the snapshot says is free on nodes that are up."""
    free_capacity, up, gpu_types, n = view.free_capacity, view.up, view.cluster.type_of, len(view.cluster.types)

    def by_type(amount: npt.NDArray[np.int64]) -> Floats:
        return np.asarray(np.bincount(gpu_types, weights=np.where(up, amount, 0), minlength=n), np.float64)

    cpu, mem = by_type(free_capacity.cpu_milli), by_type(free_capacity.mem_mib)
    return Pools(
        whole=by_type(free_capacity.whole) * GPU_MILLI,
        milli=by_type(free_capacity.device_milli.sum(axis=1)),
        cpu=cpu,
        mem=mem,
        anywhere=np.array([cpu.sum(), mem.sum()]),
    )


def demands(view: Snapshot) -> Demands:
    jobs = view.jobs
    return Demands(
        gpu=(jobs.devices_each * jobs.share_milli).astype(np.float64),
        share=jobs.share_milli,
        cpu=jobs.worker_cpu_milli.astype(np.float64),
        mem=jobs.worker_mem_mib.astype(np.float64),
        server_cpu=jobs.server_cpu_milli.astype(np.float64),
        server_mem=jobs.server_mem_mib.astype(np.float64),
    )


def capacity(view: Snapshot) -> Floats:
    """GPU (thousandths), CPU and memory of the nodes that are up; 1 where there is nothing, to divide by."""
    up = view.up
    totals = np.array(
        [
            float(view.cluster.gpus[up].sum()) * GPU_MILLI,
            view.cluster.cpu_milli[up].astype(np.float64).sum(),
            view.cluster.mem_mib[up].astype(np.float64).sum(),
        ]
    )
    return np.where(totals > 0, totals, 1.0)


def sizes_when_giving_way(
    view: Snapshot, rows: npt.NDArray[np.bool_], start_servers: Ints, need: Demands, pools: Pools
) -> tuple[Ints, Ints, Ints]:
    """(workers, servers, type) of every row when the marked ones, which run, give way down to their smallest size;
    what they leave goes to the pools."""
    jobs, room = view.jobs, Room(pools, need)
    workers = np.where(jobs.holding, jobs.workers, 0)
    servers = np.where(jobs.holding, jobs.servers, 0)
    gpu_type = np.where(jobs.holding, jobs.held_type, -1)
    for row in np.flatnonzero(rows).tolist():
        fewest = min(int(start_servers[row]), int(jobs.servers[row]))
        fewer_workers = int(jobs.workers_min[row] - workers[row])
        room.take(row, int(gpu_type[row]), fewer_workers, fewest - int(servers[row]))
        workers[row], servers[row] = jobs.workers_min[row], fewest
    return workers, servers, gpu_type

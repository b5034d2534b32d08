"""Which waiting jobs could run at all on the nodes that are up, were they empty."""

from __future__ import annotations

import numpy as np

from trainmaster.core.arrays import Bools, Ints
from trainmaster.model.capacity.free_resources import FreeCapacity
from trainmaster.model.snapshot import Snapshot
from trainmaster.policies.shared.sizing import smallest_servers


def feasible_when_empty(view: Snapshot, rows: Ints) -> Bools:
    """For each row, whether its smallest gang fits on empty nodes that are up; equal demands once."""
    jobs, cluster = view.jobs, view.cluster
    servers = smallest_servers(view)
    empty = FreeCapacity.full(cluster)
    known: dict[tuple[int | tuple[bool, ...], ...], bool] = {}
    out = np.zeros(len(rows), np.bool_)
    for i, row in enumerate(rows.tolist()):
        workers, devices = int(jobs.workers_min[row]), int(jobs.devices_each[row])
        demand = (
            workers,
            devices,
            int(jobs.share_milli[row]),
            int(jobs.worker_cpu_milli[row]),
            int(jobs.worker_mem_mib[row]),
            int(servers[row]),
            int(jobs.server_cpu_milli[row]),
            int(jobs.server_mem_mib[row]),
        )
        key = (*demand, tuple(jobs.allowed[row].tolist()))
        if key not in known:
            known[key] = any(
                _fits_type(view, empty, demand, gpu_type) for gpu_type in np.flatnonzero(jobs.allowed[row]).tolist()
            )
        out[i] = known[key]
    return out


def _fits_type(view: Snapshot, empty: FreeCapacity, demand: tuple[int, ...], gpu_type: int) -> bool:
    placer, asked = view.placer, view.placer.demand
    asked.workers, asked.devices_each, asked.share, asked.cpu_each, asked.mem_each = demand[:5]
    asked.servers, asked.server_cpu, asked.server_mem = demand[5:]
    placer.begin()
    placer.open_set(0)
    return placer.place_gang(gpu_type, empty.copy())

"""Which waiting jobs could run at all on the nodes that are up, were they empty."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainmaster.model.ledger import Ledger
from trainmaster.model.placement import place_gang
from trainmaster.model.snapshot import Snapshot
from trainmaster.policies.sizing import smallest_servers

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def feasible_when_empty(view: Snapshot, rows: Ints) -> Bools:
    """For each row, whether its smallest gang fits on empty nodes that are up; equal demands once."""
    jobs, cluster = view.jobs, view.cluster
    servers = smallest_servers(view)
    empty = Ledger.full(cluster)
    known: dict[tuple[int | tuple[bool, ...], ...], bool] = {}
    out = np.zeros(len(rows), np.bool_)
    for i, row in enumerate(rows.tolist()):
        workers, devices = int(jobs.workers_min[row]), int(jobs.devices_each[row])
        demand = (
            workers, devices, int(jobs.share_milli[row]), int(jobs.worker_cpu_milli[row]),
            int(jobs.worker_mem_mib[row]), int(servers[row]), int(jobs.server_cpu_milli[row]),
            int(jobs.server_mem_mib[row]),
        )  # fmt: skip
        key = (*demand, tuple(jobs.allowed[row].tolist()))
        if key not in known:
            known[key] = any(
                _fits_type(view, empty, demand, kind) for kind in np.flatnonzero(jobs.allowed[row]).tolist()
            )
        out[i] = known[key]
    return out


def _fits_type(view: Snapshot, empty: Ledger, demand: tuple[int, ...], kind: int) -> bool:
    scratch = empty.copy()
    n_parts = len(view.cluster.nodes) + 1
    buffers = [np.empty(n_parts, np.int64) for _ in range(4)]
    devices = np.empty(demand[0] * max(demand[1], 1) + 1, np.int64)
    usable = view.up & (view.cluster.type_of == kind)
    free = (scratch.device_milli, scratch.whole, scratch.cpu_milli, scratch.mem_mib)
    arguments = (
        int(view.placement),
        usable,
        *demand,
        view.cluster.rack_of,
        *free,
        view.up,
        *buffers,
        devices,
    )
    parts, _ = place_gang(*arguments)
    return parts >= 0

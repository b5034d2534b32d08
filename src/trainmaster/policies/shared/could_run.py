"""Which waiting jobs could run if every other job ended; for the others waiting is no use."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainmaster.core.arrays import Ints
from trainmaster.model.snapshot import Snapshot


def could_run(view: Snapshot, rows: Ints, workers: Ints, servers: Ints) -> npt.NDArray[np.bool_]:
    """Whether each of these jobs, which hold nothing, would find room on the nodes that are up if all others gave back
    what they hold; `workers` and `servers` by row of the snapshot. Nothing should be kept free for one that would not:
    it is larger than the cluster, or the nodes that it needs are down."""
    out = np.ones(len(rows), np.bool_)
    if not len(rows):
        return out
    jobs, builder = view.jobs, view.draft()
    builder.release_rows(np.flatnonzero(jobs.holding))
    demands = np.stack(
        [
            workers[rows],
            servers[rows],
            jobs.devices_each[rows],
            jobs.share_milli[rows],
            jobs.worker_cpu_milli[rows],
            jobs.worker_mem_mib[rows],
            jobs.server_cpu_milli[rows],
            jobs.server_mem_mib[rows],
        ],
        axis=1,
    )
    known: dict[tuple[bytes, bytes, str], bool] = {}
    for place, row in enumerate(rows.tolist()):
        node_set = jobs.spec(row).node_set if view.node_sets else ""
        shape = (demands[place].tobytes(), jobs.allowed[row].tobytes(), node_set)
        if shape not in known:
            known[shape] = builder.place(row, workers=int(workers[row]), servers=int(servers[row]))
            builder.release(row)
        out[place] = known[shape]
    return out

"""Which sizes a job may have and how fast it is at each: small tables, kept in the memo."""

from __future__ import annotations

import numpy as np

from trainmaster.core.arrays import Floats
from trainmaster.model.job_table import JobTable
from trainmaster.model.snapshot import Snapshot

MAX_LEVELS = 12
_EVERY_SIZE_UP_TO = 8
"""Ranges wider than this are thinned to powers of two (and both ends), as elastic systems do."""
TABLE_WIDTH = 3 + 2 * MAX_LEVELS
"""Columns: number of levels, lowest and highest size (to notice a changed range), sizes, speeds."""


def candidate_sizes(lowest: int, highest: int) -> list[int]:
    """Sizes to consider: all of a short range, else its ends and the powers of two between."""
    if highest - lowest < _EVERY_SIZE_UP_TO:
        return list(range(lowest, highest + 1))
    powers = [2**e for e in range(31) if lowest < 2**e < highest]
    return [lowest, *powers[-(MAX_LEVELS - 2) :], highest]


def size_table(jobs: JobTable, row: int) -> Floats:
    """One row: only sizes that are faster than every smaller one, with relative speed."""
    out = np.zeros(TABLE_WIDTH)
    lowest, highest = int(jobs.workers_min[row]), int(jobs.workers_max[row])
    servers = int(jobs.servers_ask[row])
    if lowest == highest == jobs.workers_ref[row] and servers == jobs.servers_ref[row]:  # rigid: nothing to look up
        out[:3], out[3], out[3 + MAX_LEVELS] = (1, lowest, highest), lowest, 1.0
        return out
    scaling = jobs.scaling(row)
    sizes = np.array(candidate_sizes(lowest, highest))
    speeds = scaling.speed(sizes, servers) / float(
        scaling.speed(int(jobs.workers_ref[row]), int(jobs.servers_ref[row]))
    )
    rising = np.concatenate([[True], speeds[1:] > np.maximum.accumulate(speeds)[:-1]])
    sizes, speeds = sizes[rising], speeds[rising]
    out[:3] = len(sizes), lowest, highest
    out[3 : 3 + len(sizes)] = sizes
    out[3 + MAX_LEVELS : 3 + MAX_LEVELS + len(sizes)] = speeds
    return out


def size_tables(view: Snapshot) -> Floats:
    """The table of every row, from the memo where it is there and still right."""
    jobs = view.jobs
    kept = view.memo.columns.get("sizes")
    tables = np.zeros((len(jobs), TABLE_WIDTH)) if kept is None else kept.copy()
    stale = (tables[:, 1] != jobs.workers_min) | (tables[:, 2] != jobs.workers_max) | (tables[:, 0] == 0)
    for row in np.flatnonzero(stale).tolist():
        tables[row] = size_table(jobs, row)
    return tables

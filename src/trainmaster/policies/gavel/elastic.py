"""Elastic jobs in rounds: devices that a round leaves idle are theirs.

Shares are computed for the asked size. Whoever loses its turn is first tried at its smallest size, in place, before it
is stopped; then elastic jobs that wait start with what is left, and those that run grow into it. None of this takes a
device from a job that the round chose, and none of it counts as time received: it is a gift of the idle.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainmaster.core.arrays import Ints
from trainmaster.model.job import PhaseCode
from trainmaster.model.plan_builder import PlanBuilder
from trainmaster.model.snapshot import Snapshot

Flags = npt.NDArray[np.bool_]


def elastic_rows(view: Snapshot) -> Flags:
    ints, job_indices = view.jobs.columns.ints, view.jobs.job_indices
    return ints["workers_max"][job_indices] > ints["workers_min"][job_indices]


def turn_over(
    view: Snapshot, builder: PlanBuilder, elastic: Flags, chosen: Ints, stop: Ints, start: Ints, gpu_types: Ints
) -> Ints:
    """Stop and start as the round wants it, but leave elastic jobs that nobody chose at their smallest size where
    that is in nobody's way. Returns the rows that did not fit."""
    jobs = view.jobs
    kept = [row for row in stop.tolist() if elastic[row] and chosen[row] < 0 and jobs.phase[row] == PhaseCode.RUNNING]
    builder.release_rows(np.setdiff1d(stop, np.array(kept, np.int64), assume_unique=True))
    for row in kept:
        builder.resize(row, int(jobs.workers_min[row]))
    failed = builder.place_on(start, gpu_types)
    if kept and len(failed):
        for row in kept:
            builder.release(row)
        again = np.isin(start, failed)
        failed = builder.place_on(start[again], gpu_types[again])
    return failed


def fill(view: Snapshot, builder: PlanBuilder, elastic: Flags, rows: Flags) -> None:
    """Give what is idle to elastic jobs, in order of arrival; `rows` are those that may be changed."""
    jobs = view.jobs
    for row in view.in_arrival_order(np.flatnonzero(elastic)).tolist():
        if not builder.free_capacity.device_milli.any():
            return
        given = builder.allocation(row)
        low, high = int(jobs.workers_min[row]), int(jobs.workers_max[row])
        if given is None:
            sizes = range(high, low - 1, -1) if rows[row] and jobs.phase[row] == PhaseCode.PENDING else range(0)
        else:
            changed = row in builder.changes
            sizes = range(high, given.workers, -1) if changed or jobs.phase[row] == PhaseCode.RUNNING else range(0)
        for workers in sizes:
            if builder.resize(row, workers):
                break

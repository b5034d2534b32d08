"""Jobs with a deadline of which too little is known to promise it: how much work they have, or how fast they are.

Where the estimator learns (a live service), such a job is probed: it gets a short reservation at its smallest size, for
which best effort makes room, and is answered once its speed is measured and its work known. The amount of work is the
job's own word, else what jobs alike had, else the most that its limit of run time allows; cautiously in both cases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trainmaster.core.arrays import Bools, Floats
from trainmaster.model.job import DeadlineKind
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import NEVER_MS
from trainmaster.policies.deadline.reservations import JobArrays

PROBE_S = 180.0
"""So long a job may run to show what it is."""
MEASURED_AFTER_S = 10.0
"""So long it runs until its own speed is believed: the first steps are slow."""
NOTED, UNKNOWN, REFUSED = "noted", "unknown", "refused"


@dataclass(frozen=True)
class Unknowns:
    """By row. `work_total`: declared or expected steps (NaN: unknown). `work`, `speed`: unknown so far, of jobs with a
    deadline. `probing`: has not run for long enough to be given up."""

    work_total: Floats
    work: Bools
    speed: Bools
    probing: Bools

    @property
    def any(self) -> Bools:
        return self.work | self.speed

    def details(self, row: int) -> dict[str, Any]:
        """What is to be told of the row."""
        lacks = [what for what, unknown in (("speed", self.speed), ("work", self.work)) if unknown[row]]
        return {"answer": NOTED if self.probing[row] else UNKNOWN, "lacks": lacks}


def unknowns_of(view: Snapshot, confidence: float) -> Unknowns:
    """Nothing is unknown where nothing can be learned: there what is declared is all there is."""
    jobs = view.jobs
    nobody = np.zeros(len(jobs), np.bool_)
    if not view.learns:
        return Unknowns(jobs.work_total, nobody, nobody, nobody)
    timed = jobs.deadline_ms < NEVER_MS
    total, work, speed = jobs.work_total.copy(), nobody.copy(), nobody.copy()
    run_s = jobs.run_s
    for row in np.flatnonzero(timed).tolist():
        total[row], by_time = _work_of(view, row, confidence)
        work[row] = np.isnan(total[row])
        young = 0.0 < run_s[row] < MEASURED_AFTER_S and not jobs.spec(row).steps_per_s
        speed[row] = not by_time and (not view.knows_speed(row) or young)
    hard = jobs.deadline_kind == DeadlineKind.HARD
    return Unknowns(total, work & hard, speed & hard, (work | speed) & hard & (run_s < PROBE_S))


def probes(jobs: JobArrays, probing: Bools, run_s: Floats) -> JobArrays:
    """The same jobs, those that are probed with so much work as they can do meanwhile at their smallest size."""
    left_s = np.maximum(PROBE_S - run_s, MEASURED_AFTER_S)
    work = left_s * jobs.base.max(axis=1) * jobs.speeds[:, 0]
    return jobs.replace(work=np.where(probing, work, jobs.work), levels=np.where(probing, 1, jobs.levels))


def _work_of(view: Snapshot, row: int, confidence: float) -> tuple[float, bool]:
    """Steps in all that are not exceeded with this confidence, and whether they rest on run times alone."""
    jobs = view.jobs
    declared, spec = float(jobs.work_total[row]), jobs.spec(row)
    if not np.isnan(declared):
        return declared, False
    expected = view.expected_work(row)
    found = np.nan if expected is None else expected.at_most(confidence)
    by_time = expected is not None and expected.timed
    if spec.time_s is not None and not spec.elastic:
        # It is stopped then: at its present speed, or the best it could have, it does no more than this.
        speeds = np.where(jobs.allowed[row], jobs.throughput[row], 0.0)
        left_s = max(spec.time_s - float(jobs.run_s[row]), 0.0)
        most = float(jobs.work_done[row]) + left_s * float(np.nan_to_num(speeds).max(initial=0.0))
        if np.isnan(found) or most < found:
            return most, True
    return found, by_time

"""Why jobs wait, after a decision by a compiled pass: it says what all have in common and names exceptions, and the
reason of each job is worked out when somebody reads it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainmaster.core.arrays import Ints
from trainmaster.core.state.plan_arrays import PlanArrays
from trainmaster.model.job import PhaseCode
from trainmaster.model.job_table import JobColumns
from trainmaster.model.reasons import Why


@dataclass(frozen=True, slots=True)
class QueueReasons:
    """What decision number `decision` said of the jobs that waited then. A job that came or began to wait after it has
    its reason in its column."""

    decision: int
    now_ms: int
    default: int
    stated: Ints
    """Rows of a job and why it waits."""
    blocker: int
    """The job that holds up those that arrived after it, but for those `stated`; -1: none."""
    blocker_arrival: int

    @classmethod
    def of(cls, plan: PlanArrays, columns: JobColumns, decision: int, now_ms: int) -> QueueReasons:
        blocker, stated = plan.blocker, np.asarray(plan.stated.values)[: plan.stated.n]
        arrival = columns.ints["arrival"].item(blocker) if blocker >= 0 else -1
        return cls(decision, now_ms, plan.default, stated.reshape(-1, 2).copy(), blocker, arrival)

    def is_blocked(self, columns: JobColumns) -> bool:
        """Whether the job that holds others up is still there."""
        return self.blocker >= 0 and columns.ints["arrival"].item(self.blocker) == self.blocker_arrival

    def write(self, columns: JobColumns, why: Ints, blocker: Ints) -> None:
        """Put reasons, and who holds jobs up, into columns by job index."""
        ints = columns.ints
        waits = (ints["phase"] == PhaseCode.PENDING) & (ints["reasoned"] < self.decision)
        pauses = ints["not_before_ms"] > self.now_ms
        why[waits] = self.default
        blocker[waits] = -1
        if self.blocker >= 0:
            behind = waits & (ints["arrival"] > self.blocker_arrival) & ~pauses
            why[behind] = Why.BEHIND
            if self.is_blocked(columns):
                blocker[behind] = self.blocker
        if len(self.stated):
            jobs = self.stated[:, 0]
            kept = jobs[waits[jobs]]
            why[kept], blocker[kept] = self.stated[waits[jobs], 1], -1
        why[waits & pauses] = Why.BACKOFF

"""Earliest deadline first, at the sizes the users asked for: the classic baseline of deadline scheduling."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from trainmaster.model.plan import Plan
from trainmaster.model.reasons import Why
from trainmaster.model.snapshot import Snapshot
from trainmaster.policies.registry import register


@register("edf")
@dataclass(frozen=True)
class EarliestDeadlineFirst:
    """Down the list by deadline (jobs without one last) whatever fits runs; nothing is refused."""

    preempt: bool = field(default=True, metadata={"help": "a job with an earlier deadline may stop one that runs"})
    hopeless_last: bool = field(
        default=False, metadata={"help": "put jobs that can no longer make their deadline behind the others"}
    )
    own_rounds = False

    def decide(self, view: Snapshot) -> Plan:
        jobs = view.jobs
        draft = view.draft()
        rows = view.movable_rows() if self.preempt else view.waiting_rows()
        behind = np.zeros(len(rows), np.bool_)
        if self.hopeless_last:
            behind = view.now_ms + jobs.remaining_s[rows] * 1000.0 > jobs.deadline_ms[rows]
        rows = rows[np.lexsort((jobs.arrival[rows], jobs.deadline_ms[rows], behind))]
        if self.preempt:
            draft.run_in_order(rows)
        else:
            draft.place_rows(rows)
        return draft.plan(default=Why.OUTRANKED)

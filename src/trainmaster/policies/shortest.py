"""Shortest job first, and its preemptive form, shortest remaining time first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainmaster.model.plan import Plan
from trainmaster.model.reasons import Why
from trainmaster.model.rules import QueueRule
from trainmaster.model.snapshot import Snapshot
from trainmaster.policies.registry import register


@register("sjf")
@dataclass(frozen=True)
class ShortestJobFirst:
    """Of the waiting jobs the shortest that fits starts first; what runs is left alone."""

    own_rounds = False
    rule = QueueRule(by_remaining_time=True, preemptive=False, strict=False, default=Why.CAPACITY)

    def decide(self, view: Snapshot) -> Plan:
        draft = view.draft()
        waiting = view.waiting_rows()
        draft.place_rows(waiting[np.argsort(view.jobs.remaining_s[waiting], kind="stable")])
        return draft.plan()


@register("srtf")
@dataclass(frozen=True)
class ShortestRemainingTimeFirst:
    """Down the list by remaining time, whatever fits runs; the rest is preempted or waits."""

    own_rounds = False
    rule = QueueRule(by_remaining_time=True, preemptive=True, strict=False, default=Why.OUTRANKED)

    def decide(self, view: Snapshot) -> Plan:
        draft = view.draft()
        rows = view.movable_rows()
        draft.run_in_order(rows[np.argsort(view.jobs.remaining_s[rows], kind="stable")])
        return draft.plan(default=Why.OUTRANKED)

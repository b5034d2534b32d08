"""First in, first out. Strict: while the first job waits, all behind it wait too."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from trainmaster.model.plan import Plan
from trainmaster.model.reasons import Why
from trainmaster.model.rules import QueueRule
from trainmaster.model.snapshot import Snapshot
from trainmaster.policies.registry import register


@register("fifo", fair=True)
@dataclass(frozen=True)
class Fifo:
    """Jobs start in order of arrival and run to their end; with `backfill`, later ones that fit may pass."""

    backfill: bool = field(default=False, metadata={"help": "start later jobs that fit while the first one waits"})
    own_rounds = False

    @property
    def fair(self) -> bool:
        """With backfill, a stream of small jobs can keep a large one waiting for ever."""
        return not self.backfill

    @property
    def strict(self) -> bool:
        return not self.backfill

    @property
    def rule(self) -> QueueRule:
        return QueueRule(by_remaining_time=False, preemptive=False, strict=self.strict, default=Why.CAPACITY)

    def decide(self, view: Snapshot) -> Plan:
        draft = view.draft()
        waiting = view.waiting_rows()
        blocked = draft.place_rows(waiting, stop_at_first_failure=not self.backfill)
        if blocked >= 0 and not self.backfill:
            behind = waiting[int(np.argmax(waiting == blocked)) + 1 :]
            draft.wait_rows(behind, Why.BEHIND, blocker=blocked)
        return draft.plan()

"""First in, first out. Strict: while the first job waits, all behind it wait too."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from trainmaster.core.engine.queue_pass import QueuePass
from trainmaster.model.plan import Plan
from trainmaster.model.plan_builder import PlanBuilder
from trainmaster.model.policy import PolicyTraits
from trainmaster.model.reasons import Why
from trainmaster.model.snapshot import Snapshot
from trainmaster.policies.queue_policy import QueuePolicy
from trainmaster.policies.registry import register


@register("fifo", fair=True)
@dataclass(frozen=True)
class Fifo(QueuePolicy):
    """Jobs start in order of arrival and run to their end; with `backfill`, later ones that fit may pass."""

    backfill: bool = field(default=False, metadata={"help": "start later jobs that fit while the first one waits"})
    elastic: bool = field(
        default=False, metadata={"help": "start an elastic job with what fits, if not at the size it asks for"}
    )

    @property
    def traits(self) -> PolicyTraits:
        """With backfill, a stream of small jobs can keep a large one waiting for ever."""
        return replace(super().traits, fair=not self.backfill)

    @property
    def strict(self) -> bool:  # type: ignore
        return not self.backfill

    def compiled_pass(self) -> QueuePass | None:
        return None if self.elastic else super().compiled_pass()

    def decide(self, view: Snapshot) -> Plan:
        if not self.elastic:
            return super().decide(view)
        builder = view.draft()
        waiting = view.waiting_rows()
        blocked = self._start_with_what_fits(builder, waiting)
        if blocked >= 0 and not self.backfill:
            behind = waiting[int(np.argmax(waiting == blocked)) + 1 :]
            builder.wait_rows(behind, Why.BEHIND, blocker=blocked)
        return builder.plan()

    def _start_with_what_fits(self, builder: PlanBuilder, waiting: npt.NDArray[np.int64]) -> int:
        """Each at the size it asks for, or the largest below that fits. Returns the first that does not, or -1."""
        blocked = -1
        jobs = builder.view.jobs
        for row in waiting.tolist():
            ask, least = int(jobs.workers_ask[row]), int(jobs.workers_min[row])
            if builder.place(row, workers=ask):
                continue
            if least < ask and builder.place(row, workers=least):  # so that those that fit nowhere cost two looks
                builder.release(row)
                any(builder.place(row, workers=size) for size in range(ask - 1, least - 1, -1))
                continue
            blocked = row if blocked < 0 else blocked
            if not self.backfill:
                break
        return blocked

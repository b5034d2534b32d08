"""Earliest deadline first, at the sizes the users asked for: the classic baseline of deadline scheduling."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainmaster.core.engine.queue_pass import QueuePass
from trainmaster.model.reasons import Why
from trainmaster.policies.queue_policy import QueuePolicy
from trainmaster.policies.registry import register


@register("edf")
@dataclass(frozen=True)
class EarliestDeadlineFirst(QueuePolicy):
    """Down the list by deadline (jobs without one last) whatever fits runs; nothing is refused."""

    preempt: bool = field(default=True, metadata={"help": "a job with an earlier deadline may stop one that runs"})
    hopeless_last: bool = field(
        default=False, metadata={"help": "put jobs that can no longer make their deadline behind the others"}
    )
    key, default_reason = "deadline_ms", Why.OUTRANKED

    @property
    def preemptive(self) -> bool:  # type: ignore
        return self.preempt

    def queue_pass(self) -> QueuePass:
        queue = super().queue_pass()
        queue.hopeless_last = self.hopeless_last
        return queue

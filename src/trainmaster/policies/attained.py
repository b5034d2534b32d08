"""Least attained service, and Tiresias' discretised form of it (Gu et al., NSDI'19)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from trainmaster.core.engine.queue_pass import QueuePass
from trainmaster.model.errors import InputError
from trainmaster.model.reasons import Why
from trainmaster.model.units import MS_PER_S
from trainmaster.policies.queue_policy import QueuePolicy
from trainmaster.policies.registry import register


@register("las", fair=True)
@dataclass(frozen=True)
class LeastAttainedService(QueuePolicy):
    """The jobs that have had the fewest GPU-seconds run; looked at again every quantum while any waits."""

    quantum_s: float = field(default=360.0, metadata={"help": "seconds between looks while jobs wait"})
    key, preemptive, default_reason = "service_gpu_s", True, Why.OUTRANKED

    def __post_init__(self) -> None:
        if self.quantum_s <= 0:
            raise InputError(f"option 'quantum_s' of policy 'las' is {self.quantum_s}", "a positive number")

    def queue_pass(self) -> QueuePass:
        queue = super().queue_pass()
        queue.quantum_ms = round(self.quantum_s * MS_PER_S)
        return queue


@register("tiresias", fair=True)
@dataclass(frozen=True)
class Tiresias(QueuePolicy):
    """Discretised two-dimensional LAS: queues by GPU-seconds attained, first come first served in each.

    A job sinks to the next queue when its service passes a threshold. One that has waited `promote` times
    as long as it has run goes back to the first queue (0: never), so that large jobs do not starve.
    """

    thresholds_gpu_s: tuple[float, ...] = field(
        default=(3600.0, 36000.0), metadata={"help": "service at which a job sinks a queue, like 3600/36000"}
    )
    promote: float = field(default=8.0, metadata={"help": "back to the first queue after waiting this many run times"})
    key, preemptive, default_reason = "queue", True, Why.OUTRANKED

    def __post_init__(self) -> None:
        ordered = list(self.thresholds_gpu_s)
        if ordered != sorted(set(ordered)) or (ordered and ordered[0] <= 0):
            raise InputError("option 'thresholds_gpu_s' of policy 'tiresias' does not rise", "positive, rising numbers")

    def queue_pass(self) -> QueuePass:
        queue = super().queue_pass()
        queue.thresholds, queue.promote = np.asarray(self.thresholds_gpu_s, np.float64), self.promote
        return queue

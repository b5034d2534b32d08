"""Least attained service, and Tiresias' discretised form of it (Gu et al., NSDI'19)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from trainmaster.model.errors import InputError
from trainmaster.model.plan import Plan
from trainmaster.model.reasons import Why
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import MS_PER_S
from trainmaster.policies.registry import register


@register("las", fair=True)
@dataclass(frozen=True)
class LeastAttainedService:
    """The jobs that have had the fewest GPU-seconds run; looked at again every quantum while any waits."""

    quantum_s: float = field(default=360.0, metadata={"help": "seconds between looks while jobs wait"})
    own_rounds = False

    def __post_init__(self) -> None:
        if self.quantum_s <= 0:
            raise InputError(f"option 'quantum_s' of policy 'las' is {self.quantum_s}", "a positive number")

    def decide(self, view: Snapshot) -> Plan:
        draft = view.draft()
        rows = view.movable_rows()
        draft.run_in_order(rows[np.argsort(view.jobs.service_gpu_s[rows], kind="stable")])
        quantum_ms = round(self.quantum_s * MS_PER_S)
        wake = view.now_ms + quantum_ms if view.jobs.waiting.any() else None
        return draft.plan(wake_at_ms=wake, default=Why.OUTRANKED)


@register("tiresias", fair=True)
@dataclass(frozen=True)
class Tiresias:
    """Discretised two-dimensional LAS: queues by GPU-seconds attained, first come first served in each.

    A job sinks to the next queue when its service passes a threshold. One that has waited `promote` times
    as long as it has run goes back to the first queue (0: never), so that large jobs do not starve.
    """

    thresholds_gpu_s: tuple[float, ...] = field(
        default=(3600.0, 36000.0), metadata={"help": "service at which a job sinks a queue, like 3600/36000"}
    )
    promote: float = field(default=8.0, metadata={"help": "back to the first queue after waiting this many run times"})
    own_rounds = False

    def __post_init__(self) -> None:
        ordered = list(self.thresholds_gpu_s)
        if ordered != sorted(set(ordered)) or (ordered and ordered[0] <= 0):
            raise InputError("option 'thresholds_gpu_s' of policy 'tiresias' does not rise", "positive, rising numbers")

    def decide(self, view: Snapshot) -> Plan:
        jobs = view.jobs
        draft = view.draft()
        rows = view.movable_rows()
        service = jobs.service_gpu_s
        thresholds = np.asarray(self.thresholds_gpu_s)
        queue = np.searchsorted(thresholds, service, side="right")
        waited_ms = np.where(jobs.waiting, view.now_ms - jobs.waiting_since_ms, 0)
        run_ms = jobs.run_s * MS_PER_S
        if self.promote > 0:
            queue = np.where((run_ms > 0) & (waited_ms >= self.promote * run_ms), 0, queue)
        draft.run_in_order(rows[np.lexsort((jobs.arrival[rows], queue[rows]))])
        return draft.plan(wake_at_ms=self._next_change_ms(view, thresholds, waited_ms, run_ms), default=Why.OUTRANKED)

    def _next_change_ms(self, view: Snapshot, thresholds: np.ndarray, waited_ms: np.ndarray, run_ms: np.ndarray):
        """When the next running job sinks or the next waiting one is promoted."""
        jobs = view.jobs
        if not jobs.waiting.any():
            return None
        gpus = jobs.workers * jobs.worker_gpu_milli / 1000.0
        at = np.searchsorted(thresholds, jobs.service_gpu_s, side="right")
        sinking = jobs.holding & (at < len(thresholds)) & (gpus > 0)
        times = []
        if sinking.any():
            left = thresholds[at[sinking]] - jobs.service_gpu_s[sinking]
            times.append(float((left / gpus[sinking]).min()) * MS_PER_S)
        if self.promote > 0:
            rising = jobs.waiting & (run_ms > 0) & (waited_ms < self.promote * run_ms)
            if rising.any():
                times.append(float((self.promote * run_ms[rising] - waited_ms[rising]).min()))
        return view.now_ms + max(1, int(np.ceil(min(times)))) if times else None

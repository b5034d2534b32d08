"""What each running job last reported of its progress, and when. Shown as it was said; estimates are for ETAs alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from trainmaster.engine import queries
from trainmaster.engine.engine import Engine
from trainmaster.engine.records import Ended
from trainmaster.model import event as ev
from trainmaster.model.units import MS_PER_S


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """`rate` and `loss` are None where the job did not say."""

    generation: int
    work: float
    at_ms: int
    rate: float | None = None
    loss: float | None = None
    moved_ms: int = 0
    """When its work last grew."""
    step_s: float = math.nan
    """Usual time of a step: a moving average over the reports in which work grew."""


SMOOTHING = 0.2


class ProgressReports:
    """Of one process: after a restart of the service the age of a report counts from when it was heard again."""

    def __init__(self) -> None:
        self._last: dict[str, ProgressReport] = {}

    def of(self, job_id: str, generation: int) -> ProgressReport | None:
        """The last report of this attempt; those of earlier ones may speak of steps that were lost."""
        report = self._last.get(job_id)
        return report if report is not None and report.generation == generation else None

    def all(self) -> Iterable[tuple[str, ProgressReport]]:
        return self._last.items()

    def take(self, engine: Engine, now_ms: int, events: Iterable[ev.Event]) -> None:
        """Reports that pass the engine's fence; called before they are lost in its estimates."""
        for event in events:
            if isinstance(event, ev.Progressed):
                self._heard(engine, event, event.work_done, now_ms, event.rate, event.loss)
            elif isinstance(event, ev.Resized):
                self._heard(engine, event, event.work_done, now_ms)
            elif isinstance(event, ev.Inventory):
                for entry in event.entries:
                    if not entry.starting and not entry.stopped:
                        self._heard(engine, entry, entry.work, now_ms)

    def _heard(
        self,
        engine: Engine,
        who: ev.Progressed | ev.Resized | ev.Observed,
        work: float,
        now_ms: int,
        rate: float | None = None,
        loss: float | None = None,
    ) -> None:
        known = self.of(who.job_id, who.generation)
        is_new = known is None or work != known.work
        if not math.isfinite(work) or not queries.is_current(engine, who.job_id, who.generation):
            return
        if not isinstance(who, ev.Progressed):
            if (not is_new and not isinstance(who, ev.Resized)) or (known is None and work <= 0):
                return  # an inventory repeats what is known, and a gang begins without a report
            rate, loss = (None, None) if known is None else (known.rate, known.loss)
        moved_ms, step_s = now_ms, 1.0 / rate if rate else math.nan
        if known is not None:
            moved_ms, step_s = known.moved_ms, step_s if math.isnan(known.step_s) else known.step_s
            if work > known.work:
                latest_s = (now_ms - known.moved_ms) / MS_PER_S / (work - known.work)
                step_s = latest_s if math.isnan(step_s) else step_s + SMOOTHING * (latest_s - step_s)
            if is_new or isinstance(who, ev.Resized):
                moved_ms = now_ms
        self._last[who.job_id] = ProgressReport(who.generation, work, now_ms, rate, loss, moved_ms, step_s)

    def forget(self, ended: Iterable[Ended]) -> None:
        for end in ended:
            self._last.pop(end.spec.id, None)

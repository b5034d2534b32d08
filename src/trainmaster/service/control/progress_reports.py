"""What each running job last reported of its progress, and when. Shown as it was said; estimates are for ETAs alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from trainmaster.engine import queries
from trainmaster.engine.engine import Engine
from trainmaster.engine.records import Ended
from trainmaster.model import event as ev


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """`rate` and `loss` are None where the job did not say."""

    generation: int
    work: float
    at_ms: int
    rate: float | None = None
    loss: float | None = None


class ProgressReports:
    """Of one process: after a restart of the service the age of a report counts from when it was heard again."""

    def __init__(self) -> None:
        self._last: dict[str, ProgressReport] = {}

    def of(self, job_id: str, generation: int) -> ProgressReport | None:
        """The last report of this attempt; those of earlier ones may speak of steps that were lost."""
        report = self._last.get(job_id)
        return report if report is not None and report.generation == generation else None

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
            if not is_new or (known is None and work <= 0):
                return  # an inventory repeats what is known, and a gang begins without a report
            rate, loss = (None, None) if known is None else (known.rate, known.loss)
        self._last[who.job_id] = ProgressReport(who.generation, work, now_ms, rate, loss)

    def forget(self, ended: Iterable[Ended]) -> None:
        for end in ended:
            self._last.pop(end.spec.id, None)

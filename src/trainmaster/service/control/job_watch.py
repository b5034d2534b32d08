"""Limits of running jobs: maximum run time, budget, and stalls of jobs that report steps.

The control plane looks when something is due, at most once a second. What it finds goes into the event log; what breaks
a limit is halted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from trainmaster.engine import queries
from trainmaster.engine.engine import Engine
from trainmaster.jobspec.engine import OPEN_SIZE, WORK_TOLD, given
from trainmaster.model import event as ev
from trainmaster.model.capacity.feasibility import largest_size
from trainmaster.model.job import JobId, JobSpec, Phase
from trainmaster.model.units import MS_PER_S, NEVER_MS
from trainmaster.service.control.event_log import Journal
from trainmaster.service.control.progress_reports import ProgressReport, ProgressReports

LOOK_MS = 1_000
STALL_MS_MIN = 60_000
"""Evaluation and checkpoints take their time: a shorter silence is never a stall."""
NOTICE_SHARE = 0.9
"""From this part of a limit on its user is warned."""
_RUNS = (Phase.RUNNING, Phase.RESIZING)
_MAY_BREAK = (Phase.PENDING, Phase.RESERVED, *_RUNS)


class JobWatch:
    def __init__(self) -> None:
        self.reports = ProgressReports()
        self._stalled: dict[str, int] = {}
        """Since when, by job."""
        self._noticed: set[tuple[str, str]] = set()
        self.next_ms = 0

    def stir(self, now_ms: int) -> None:
        """Something has changed: look soon."""
        self.next_ms = min(self.next_ms, now_ms + LOOK_MS)

    def stalled_s(self, job_id: str, now_ms: int) -> float | None:
        """For how long a stalled job has made no progress; None: it is not stalled."""
        since_ms = self._stalled.get(job_id)
        return None if since_ms is None else max(now_ms - since_ms, 0) / MS_PER_S

    def look(self, engine: Engine, now_ms: int, journal: Journal) -> list[ev.JobHalted]:
        if now_ms < self.next_ms:
            return []
        self._due_ms = NEVER_MS
        halts = [*self._limits(engine, now_ms, journal), *self._stalls(engine, now_ms, journal)]
        self.next_ms = max(self._due_ms, now_ms + LOOK_MS)
        return halts

    def declared(self, engine: Engine, events: Iterable[ev.Event]) -> list[ev.Event]:
        """What jobs say of themselves and their users did not: that they save checkpoints, how much work they have, and
        (`OPEN_SIZE`) that they may have any size."""
        found: dict[tuple[str, str], ev.Event] = {}
        for event in events:
            if not isinstance(event, ev.Progressed) or not (event.checkpoints or event.total or event.elastic):
                continue
            spec = queries.spec_of(engine, event.job_id)
            if spec is None or not queries.is_current(engine, event.job_id, event.generation):
                continue
            if event.checkpoints and not spec.preemptible and given(spec, "preemptible") is None:
                found[spec.id, "preemptible"] = ev.JobTermsChanged(spec.id, preemptible=True)
            if (
                event.total
                and event.total != spec.work_total
                and (spec.work_total is None or WORK_TOLD in spec.payload)
            ):
                found[spec.id, "work"] = ev.JobTermsChanged(spec.id, work_total=event.total, noted={WORK_TOLD: True})
            if event.elastic and spec.payload.get(OPEN_SIZE) and not spec.elastic:
                most = largest_size(engine.cluster, spec)
                found[spec.id, "size"] = ev.JobRangeChanged(spec.id, spec.workers_min, most, found=True)
        return list(found.values())

    # -- run time and budget ---------------------------------------------------------------------------

    def _limits(self, engine: Engine, now_ms: int, journal: Journal) -> Iterator[ev.JobHalted]:
        limited = [spec for spec in queries.active_specs(engine) if spec.time_s is not None or spec.budget is not None]
        self._noticed = {(job, what) for job, what in self._noticed if queries.is_active(engine, job)}
        for spec in limited:
            phase = queries.phase_of(engine, spec.id)
            if phase not in _MAY_BREAK:
                continue
            for limit in queries.limits_of(engine, spec, now_ms):
                part = limit.used / limit.most
                if part >= 1.0:
                    yield ev.JobHalted(spec.id, f"stopped at its limit: {limit.text} is used up")
                    break
                if not part < NOTICE_SHARE and (spec.id, limit.option) not in self._noticed:
                    self._noticed.add((spec.id, limit.option))
                    told = "its use is not known" if math.isnan(part) else f"{part:.0%} is used, then it is stopped"
                    text = f"{spec.id}: {limit.text}: {told}"
                    journal.add("notice", spec.id, text, limit=limit.option)
                if phase in _RUNS and limit.per_s > 0:
                    next_used = limit.most * (NOTICE_SHARE if part < NOTICE_SHARE else 1.0)
                    self._due(now_ms + math.ceil((next_used - limit.used) / limit.per_s * MS_PER_S))

    def _due(self, at_ms: int) -> None:
        self._due_ms = min(self._due_ms, at_ms)

    # -- stalls ----------------------------------------------------------------------------------------

    def _stalls(self, engine: Engine, now_ms: int, journal: Journal) -> Iterator[ev.JobHalted]:
        before, self._stalled = self._stalled, {}
        for job_id, report in self.reports.all():
            spec = queries.spec_of(engine, job_id)
            if spec is None or self.reports.of(job_id, queries.generation_of(engine, job_id) or 0) is not report:
                continue
            if queries.phase_of(engine, job_id) != Phase.RUNNING:
                continue
            limit_ms = _stall_ms(spec, report)
            if now_ms < report.moved_ms + limit_ms:
                if job_id in before:
                    journal.add("progress", job_id, f"{job_id} makes progress again")
                if limit_ms < NEVER_MS:
                    self._due(report.moved_ms + limit_ms)
                continue
            self._stalled[job_id] = report.moved_ms
            silent_s = (now_ms - report.moved_ms) / MS_PER_S
            told = f"no step for {silent_s:.0f} s at step {report.work:g}, usually {report.step_s:.2g} s a step"
            if job_id not in before:
                journal.add("stalled", job_id, f"{job_id} is stalled: {told}", silent_s=silent_s, work_done=report.work)
            if given(spec, "restart_stalled"):
                yield ev.JobHalted(JobId(job_id), f"stalled: {told}", final=False)


def _stall_ms(spec: JobSpec, report: ProgressReport) -> int:
    """How long without a step is a stall; `NEVER_MS` for who does not want to know, or is at the last step."""
    factor = given(spec, "stall_factor")
    complete = spec.work_total is not None and report.work >= spec.work_total
    if not factor or complete or math.isnan(report.step_s):
        return NEVER_MS
    return max(round(factor * report.step_s * MS_PER_S), STALL_MS_MIN)

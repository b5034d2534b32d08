"""What the service expects of its jobs, how it turned out, and what it learned from them on the way.

Belongs to the control plane, which tells it of every committed step. Predictions are made by another process
and arrive whenever they are done; they never hold up a step. How often they are made follows from what one
costs, so that looking ahead takes a small part of one core.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trainmaster.engine import queries
from trainmaster.engine.ports import StoredState
from trainmaster.engine.records import Ended
from trainmaster.estimate.profiles import JobProfiles
from trainmaster.estimate.speeds.knowledge import Knowledge
from trainmaster.estimate.speeds.learned import LearningEstimator
from trainmaster.forecast.accuracy import AccuracyLog
from trainmaster.forecast.forecast import Band, Outlook
from trainmaster.forecast.situation import Belief, Situation
from trainmaster.forecast.worker_request import question
from trainmaster.model import event as ev
from trainmaster.model.command import Command, Launch, Resize, Stop
from trainmaster.model.job import JobSpec, Phase
from trainmaster.model.units import MS_PER_S, NEVER_MS

if TYPE_CHECKING:
    from trainmaster.service.control.control_plane import ControlPlane

LEAST_MS = 2_000
"""Between two forecasts, at least."""
AT_LEAST_EVERY_MS = 30_000
MOVING_MS = 5_000
"""While jobs report progress, forecasts are at most about so old, if they are cheap."""
SHARE = 0.1
"""Part of a core that looking ahead may take."""
CALM_SHARE = 0.01
"""The same while nothing happens, and all that is new is the time."""
MANY_STARTS = 32
PUT_OFF_MS = 120_000
"""While more commands than that are being carried out, a forecast waits, at most for so long: pods come first, and what
it said would be out of date before it was read."""
SAVE_MS = 10_000
LOADING_MS_MIN = 30_000
PROFILES, SPEEDS, ACCURACY = "profiles", "speeds", "accuracy"


class Forecaster(Protocol):
    @property
    def busy(self) -> bool: ...

    def ask(self, question: Mapping[str, Any]) -> bool: ...


@dataclass(frozen=True)
class _Begun:
    """A launch that was answered. `what`: a first one or a restart; `work`: what it began with."""

    generation: int
    what: str
    sent_ms: int
    work: float
    ready_ms: int


class LiveForecasts:
    def __init__(self, estimator: LearningEstimator, database: Path) -> None:
        self.estimator = estimator
        self.database = database
        self.forecaster: Forecaster | None = None
        self.accuracy = AccuracyLog()
        self.forecasts = 0
        self.forecast_cpu_s = 0.0
        self.last_fault = ""
        self._outlooks: dict[str, tuple[int, Outlook]] = {}
        self._lock = threading.Lock()
        self._news = True
        self._next_ms = 0
        self._earliest_ms = self._calm_ms = self._asked_ms = 0
        """The next forecast is made at `_earliest_ms` or later, and at `_calm_ms` if nothing has happened by then."""
        self._put_off_until_ms: int | None = None
        self._sent: dict[tuple[str, int], tuple[str, int]] = {}
        self._awaited: dict[str, _Begun] = {}
        """Jobs that run and have not shown yet when they really began to work."""
        self._ran_on: dict[str, str] = {}
        """Accelerator type of each job that this process has launched."""
        self._last: dict[str, ev.Progressed] = {}
        """What each job that runs said last."""
        self._moved = False
        self._unsaved = False
        self._next_save_ms = 0

    # -- told by the control plane -------------------------------------------------------------------

    def opened(self, document: Callable[[str], Mapping[str, Any] | None]) -> None:
        """Remember what earlier processes learned."""
        profiles, speeds, judged = document(PROFILES), document(SPEEDS), document(ACCURACY)
        if profiles is not None:
            self.estimator.profiles = JobProfiles.from_json(profiles)
        if speeds is not None:
            self.estimator.knowledge = Knowledge.from_json(speeds)
        elif profiles is not None:  # of a version that kept speeds there
            self.estimator.knowledge.take_old(profiles.get("speeds", {}))
        if judged is not None:
            self.accuracy = AccuracyLog.from_json(judged)

    def stepped(
        self,
        now_ms: int,
        events: Sequence[ev.Event],
        commands: Sequence[Command],
        ended: Sequence[Ended],
        types: Sequence[str] = (),
    ) -> None:
        """A step was taken; learn from it before it is committed, so that `documents` holds it. `types`: accelerators
        of the cluster."""
        for event in events:
            if isinstance(event, ev.Started | ev.Resized | ev.Stopped):
                self._answered(event, now_ms)
            if isinstance(event, ev.Progressed):
                self._progressed(event)
            elif not isinstance(event, ev.Inventory | ev.Woken):
                self._news = True
        for command in commands:
            what = "resize" if isinstance(command, Resize) else "stop" if isinstance(command, Stop) else ""
            if isinstance(command, Launch):
                self._ran_on[command.job_id] = types[max(command.allocation.accelerator, 0)] if types else ""
                what = "launch" if command.generation == 1 else "restart"
            self._sent.setdefault((command.job_id, command.generation), (what, now_ms))
            self._news = True
        for end in ended:
            self._over(end)

    def learned(self) -> None:
        """The estimator was told something beside what jobs report."""
        self._unsaved = self._news = True

    def _answered(self, event: ev.Started | ev.Resized | ev.Stopped, now_ms: int) -> None:
        sent = self._sent.pop((event.job_id, event.generation), None)
        if sent is None:
            return
        what, sent_ms = sent
        fits = {"launch": ev.Started, "restart": ev.Started, "resize": ev.Resized, "stop": ev.Stopped}[what]
        if isinstance(event, fits):
            ready_ms = now_ms if isinstance(event, ev.Stopped) else max(now_ms, event.productive_ms)
            if isinstance(event, ev.Started) and (what == "launch" or not math.isnan(event.work_done)):
                # A backend that does not measure what a gang begins with says NaN; a first one begins with nothing.
                work = 0.0 if math.isnan(event.work_done) else event.work_done
                self._awaited[event.job_id] = _Begun(event.generation, what, sent_ms, work, ready_ms)
            else:
                self._cost(what, ready_ms - sent_ms)
        if isinstance(event, ev.Stopped):
            self._awaited.pop(event.job_id, None)

    def _progressed(self, event: ev.Progressed) -> None:
        """The first measured speed tells when a job began to work: a process that runs may still load its libraries.
        The last one tells when its work was done."""
        self._moved = True
        self._last[event.job_id] = event
        begun = self._awaited.get(event.job_id)
        if begun is None or begun.generation != event.generation or not event.rate:
            return
        del self._awaited[event.job_id]
        worked_ms = (event.work_done - begun.work) / event.rate * MS_PER_S
        self._cost(begun.what, max(event.at_ms - worked_ms, begun.ready_ms) - begun.sent_ms)

    def _cost(self, what: str, took_ms: float) -> None:
        self.estimator.profiles.add_cost(what, took_ms / MS_PER_S)
        self._unsaved = True

    def _over(self, end: Ended) -> None:
        job_id, finished = end.spec.id, end.phase == Phase.FINISHED
        with self._lock:
            self._outlooks.pop(job_id, None)
            if finished:
                self.accuracy.finished(job_id, end.spec.submit_ms, end.ended_ms)
            else:
                self.accuracy.forget(job_id)
        begun = self._awaited.pop(job_id, None)
        if begun is not None and finished:  # it never said
            self._cost(begun.what, begun.ready_ms - begun.sent_ms)
        last, total = self._last.pop(job_id, None), end.spec.work_total
        # Only a report that says that all is done tells when it was: after any other the job may have slowed down.
        if finished and last is not None and total is not None and last.work_done >= total:
            self._cost("exit", end.ended_ms - last.at_ms)
        self.estimator.ended(end.spec, end.work_done, finished, _run_s(end), self._ran_on.pop(job_id, ""))
        for key in [key for key in self._sent if key[0] == job_id]:
            del self._sent[key]
        self._unsaved = self._news = True

    def documents(self, now_ms: int) -> dict[str, dict[str, Any]]:
        """What shall be committed with this step; not at every step, for they may be large."""
        if not self._unsaved or now_ms < self._next_save_ms:
            return {}
        self._unsaved = False
        self._next_save_ms = now_ms + SAVE_MS
        with self._lock:
            return {
                PROFILES: self.estimator.profiles.to_json(),
                SPEEDS: self.estimator.knowledge.to_json(),
                ACCURACY: self.accuracy.to_json(),
            }

    # -- looking ahead -------------------------------------------------------------------------------

    @property
    def next_ms(self) -> int:
        """When `look_ahead` should be called next."""
        return NEVER_MS if self.forecaster is None else self._next_ms

    def look_ahead(self, plane: ControlPlane, now_ms: int) -> None:
        """Ask, if it is time and there is anything to ask about."""
        if self.forecaster is None or now_ms < self._next_ms:
            return
        earliest_ms = self._earliest_ms if self._news or self._moved else self._calm_ms
        if now_ms < earliest_ms:  # the last one was dear
            self._next_ms = earliest_ms
            return
        if not queries.n_active(plane.live):
            self._next_ms = NEVER_MS if not self._news else now_ms + LEAST_MS
            self._news = False
            return
        if self.forecaster.busy:
            self._next_ms = now_ms + LEAST_MS
            return
        if self._put_off(queries.n_pending_commands(plane.live), now_ms):
            self._next_ms = now_ms + LEAST_MS
            return
        self._news = self._moved = False
        self._asked_ms = now_ms
        self._next_ms = now_ms + AT_LEAST_EVERY_MS
        self.forecaster.ask(self.question(plane, now_ms))

    def _put_off(self, n_commands: int, now_ms: int) -> bool:
        """Whether so many commands are being carried out that a forecast had better wait."""
        if n_commands <= MANY_STARTS:
            self._put_off_until_ms = None
            return False
        if self._put_off_until_ms is None:
            self._put_off_until_ms = now_ms + PUT_OFF_MS
        return now_ms < self._put_off_until_ms

    def wake(self, now_ms: int) -> None:
        """Something happened: look ahead soon, as far as the last forecast's cost allows."""
        if self.forecaster is None:
            return
        if self._news:
            self._next_ms = min(self._next_ms, max(now_ms + LEAST_MS // 4, self._earliest_ms))
        elif self._moved:
            self._next_ms = min(
                self._next_ms, max(self._asked_ms + MOVING_MS, now_ms + LEAST_MS // 4, self._earliest_ms)
            )

    def question(self, plane: ControlPlane, now_ms: int, newcomers: Sequence[JobSpec] = ()) -> dict[str, Any]:
        """`newcomers`: jobs that are not there, about which alone it is asked."""
        engine = plane.live
        specs: dict[str, JobSpec] = {
            spec.id: spec for spec in sorted(queries.active_specs(engine), key=lambda spec: spec.id)
        }
        measuring = [spec for spec in specs.values() if self.estimator.has_measured(spec)]
        measured: dict[str, Belief] = {spec.id: Belief(self.estimator.sigma(spec)) for spec in measuring}
        starting = {
            job_id: (begun.sent_ms, begun.work)
            for job_id, begun in sorted(self._awaited.items())
            if job_id in specs and specs[job_id].work_total is not None and now_ms < begun.ready_ms + self._loading_ms
        }
        situation = Situation(
            now_ms, plane.policy_name, engine.cluster, StoredState(), engine.settings, measured, starting=starting
        )
        with self._lock:
            widening = self.accuracy.widening()
        known = self.estimator.so_far(measuring)
        return {**question(situation, self.database, *known, newcomers), "widening": widening}

    @property
    def _loading_ms(self) -> int:
        """So long after its start a job may be loading. One that has said nothing by then is taken to work all the
        same, and one that tells no amount of work at all from its start: a plain command reports nothing."""
        return max(LOADING_MS_MIN, 3 * self.estimator.profiles.cost_ms("launch"))

    def answered(self, now_ms: int, cpu_s: float, outlooks: dict[str, Outlook], widening: float = 1.0) -> None:
        """From another thread. `widening`: what was asked for."""
        with self._lock:
            self.forecasts += 1
            self.forecast_cpu_s += cpu_s
            self._earliest_ms = now_ms + max(LEAST_MS, round(cpu_s * MS_PER_S / SHARE))
            self._calm_ms = now_ms + max(LEAST_MS, round(cpu_s * MS_PER_S / CALM_SHARE))
            self._outlooks = {job_id: (now_ms, outlook) for job_id, outlook in outlooks.items()}
            self.accuracy.predicted(now_ms, outlooks, widening)
            self._unsaved = True

    def failed(self, why: str) -> None:
        """From another thread. The next forecast is tried as usual."""
        with self._lock:
            self.last_fault = why

    def outlook(self, job_id: str, now_ms: int) -> Outlook | None:
        """What is expected of a job, counted from now."""
        with self._lock:
            found = self._outlooks.get(job_id)
        if found is None:
            return None
        at_ms, outlook = found
        passed_s = (now_ms - at_ms) / MS_PER_S
        return replace(outlook, start=_later(outlook.start, passed_s), finish=_later(outlook.finish, passed_s))

    def accuracy_rows(self) -> list[dict[str, Any]]:
        with self._lock:
            return self.accuracy.summary()


def _run_s(end: Ended) -> float:
    """For how long it ran, restated at its reference size."""
    return end.service_gpu_s / end.spec.gpus if end.spec.elastic and end.spec.gpus > 0 else end.run_s


def _later(band: Band | None, passed_s: float) -> Band | None:
    if band is None:
        return None
    return Band(*(max(value - passed_s, 0.0) for value in (band.p05_s, band.p50_s, band.p90_s, band.p95_s)))

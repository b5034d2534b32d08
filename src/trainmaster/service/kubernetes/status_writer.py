"""Writes what users see: statuses of TrainingJobs and Events. Few writes, in the background, latest wins.

The driver's thread only notes which jobs changed (`stepped`); the loop asks for a view of those whose time has come,
compares with what the object says already, and writes the difference. A job that waits for a moment is not told to
wait: what starts at once costs one write. Writes about waiting jobs are slowed down so that a long queue does not
take the API server from those that start pods.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainmaster.backends.kubernetes.api import paths
from trainmaster.backends.kubernetes.api.client import ApiError, Conflict, KubeClient, NotFound
from trainmaster.backends.kubernetes.resources.events import (
    JobEvent,
    event_body,
    event_name,
    job_event_of,
    object_of,
)
from trainmaster.backends.kubernetes.resources.status import (
    StatusUpdate,
    is_news,
    rejected_status,
    same_status,
    status_of,
)
from trainmaster.backends.kubernetes.resources.training_job import job_id_of_object, stamp_of
from trainmaster.backends.kubernetes.set_aside import SetAside
from trainmaster.engine import queries
from trainmaster.engine.ports import LogEntry
from trainmaster.model.errors import InputError, TrainmasterError
from trainmaster.model.job import PhaseCode
from trainmaster.service.api.views import Views
from trainmaster.service.control.control_plane import Request
from trainmaster.service.control.gateway import Gateway
from trainmaster.service.control.requests import Read

Json = dict[str, Any]
SOON_S = 0.3
"""After a start, an end or a change of size."""
SETTLE_S = 2.0
"""A job that begins to wait, or waits for another reason, is told so if it still does then."""
REFRESH_S = 30.0
"""Progress and estimates of a running job."""
WAITING_PER_S, WAITING_PER_S_BUSY = 50.0, 5.0
"""At most so many writes a second about jobs that wait; and while pods are being made, which come first."""
WAITING_AT_ONCE = 32
"""So many of them are written together: each look goes through all jobs that something is to be said of."""
ETAS_AT_ONCE = 50
"""So many jobs, those that end first, are told their new estimate after a forecast; the others after the next ones."""
BATCH = 64
WRITERS = 8
RETRY_S = 5.0
MAX_EVENTS = 2_000
"""Events that wait to be written; beyond it the oldest about waiting are dropped: the status says the same."""
STARTING = "Starting"
"""No reason to wait that anybody needs to be told of: `Scheduled` says it."""
_STARTED = (PhaseCode.RUNNING, PhaseCode.RESIZING)


@dataclass
class StatusUpdates:
    """Counters for the metrics."""

    statuses: int = 0
    events: int = 0
    unchanged: int = 0
    dropped_events: int = 0
    faults: int = 0
    by_reason: dict[str, int] = field(default_factory=dict)


class StatusWriter:
    """`stepped` in the driver's thread after each commit; `run` in the loop of the client, until cancelled."""

    def __init__(
        self,
        client: KubeClient,
        gateway: Gateway,
        object_for: Callable[[str], Json | None],
        also: Callable[[str, StatusUpdate], None] | None = None,
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """`object_for`: the TrainingJob of a job's id, as last seen. `also` is told of jobs that have none. `busy`:
        whether pods are being made."""
        self._client = client
        self._gateway = gateway
        self._object_for = object_for
        self.also = also
        self.faults = SetAside()
        self._busy = busy
        self._lock = threading.Lock()
        self._due_s: dict[str, float] = {}
        self._keys: dict[str, tuple[int, ...]] = {}
        self._events: list[tuple[str, JobEvent]] = []
        self._waiting_told: dict[str, str] = {}
        self._finish_told_s: dict[str, float] = {}
        """The expected finish of each job, as it was last looked at."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._waiting_credit = float(WAITING_AT_ONCE)
        self._credit_s = time.monotonic()
        self.tally = StatusUpdates()

    # -- the driver's thread -------------------------------------------------------------------------

    def stepped(self, keys: Mapping[str, tuple[int, ...] | None], entries: Iterable[LogEntry]) -> None:
        """Note what changed. `keys`: of jobs that a commit wrote, see `queries.status_keys`."""
        now_s = time.monotonic()
        with self._lock:
            for job_id, key in keys.items():
                if key is None:
                    self._keys.pop(job_id, None)
                    self._due(job_id, now_s + SOON_S)
                    continue
                phase = key[0]
                if key == self._keys.get(job_id):
                    wait_s = REFRESH_S if phase in _STARTED else 10 * REFRESH_S
                else:
                    self._keys[job_id] = key
                    wait_s = SETTLE_S if phase in (PhaseCode.PENDING, PhaseCode.RESERVED) else SOON_S
                self._due(job_id, now_s + wait_s)
            for entry in entries:
                job_event = None if entry.job_id is None else job_event_of(entry)
                if job_event is not None:
                    self._events.append((entry.job_id or "", job_event))
                if entry.job_id is not None and entry.kind in ("stalled", "progress"):  # no column of the job changes
                    self._due(entry.job_id, now_s + SOON_S)
        self._rouse()

    def published_waiting(self, job_id: str, reason: str, message: str) -> None:
        """An Event for a new reason to wait; the text may differ in numbers without being another reason."""
        if self._waiting_told.get(job_id) == reason:
            return
        self._waiting_told[job_id] = reason
        with self._lock:
            if len(self._events) >= MAX_EVENTS:
                self.tally.dropped_events += 1
                return
            self._events.append((job_id, JobEvent("Waiting", message, said=reason)))

    def everything(self, job_ids: Iterable[str]) -> None:
        """Look at all of them again: a new leader does not know what the last one told."""
        now_s = time.monotonic()
        with self._lock:
            for job_id in job_ids:
                self._due_s.setdefault(job_id, now_s + SETTLE_S)
        self._rouse()

    def look_at(self, job_id: str) -> None:
        """Something is to be said of a job that no step tells."""
        with self._lock:
            self._due(job_id, time.monotonic() + SOON_S)
        self._rouse()

    def _due(self, job_id: str, at_s: float) -> None:
        """Look at it then at the latest."""
        self._due_s[job_id] = min(self._due_s.get(job_id, at_s), at_s)

    def foreseen(self, finish_s: Mapping[str, float], now_s: float) -> None:
        """A forecast has come, in a thread of its own: when each job is expected to end, in seconds since the epoch.

        A job's estimate changes while nothing happens to the job itself, so no step would tell of it."""
        with self._lock:
            news = [
                job_id
                for job_id, finish in finish_s.items()
                if job_id not in self._due_s and is_news(finish, self._finish_told_s.get(job_id), finish - now_s)
            ]
            for job_id in sorted(news, key=finish_s.__getitem__)[:ETAS_AT_ONCE]:
                self._due_s[job_id] = time.monotonic() + SOON_S
        self._rouse()

    def _rouse(self) -> None:
        if self._loop is not None and self._wake is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake.set)

    # -- the loop ------------------------------------------------------------------------------------

    async def run(self) -> None:
        self._loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        while True:
            ready, next_s = self._ready()
            if ready:
                await self._tell(ready)
            await self._publish_events()
            if not ready:
                self._wake.clear()
                if self._events:
                    continue
                try:
                    await asyncio.wait_for(self._wake.wait(), next_s)
                except TimeoutError:
                    continue
                await asyncio.sleep(0.05)  # one look for the steps of a moment

    def _ready(self) -> tuple[list[str], float]:
        """Jobs whose time has come, most urgent first, and how long to sleep when there are none."""
        now_s = time.monotonic()
        passed_s, self._credit_s = now_s - self._credit_s, now_s
        per_s = WAITING_PER_S_BUSY if self._busy() else WAITING_PER_S
        self._waiting_credit = min(self._waiting_credit + passed_s * per_s, 2 * WAITING_AT_ONCE)
        with self._lock:
            urgent, patient, next_s = [], [], 60.0
            for job_id, due_s in self._due_s.items():
                if due_s > now_s:
                    next_s = min(next_s, due_s - now_s)
                elif self._keys.get(job_id, (PhaseCode.FINISHED,))[0] in (PhaseCode.PENDING, PhaseCode.RESERVED):
                    patient.append(job_id)
                else:
                    urgent.append(job_id)
            at_once = min(len(patient), WAITING_AT_ONCE)
            room = min(BATCH - min(len(urgent), BATCH), at_once if self._waiting_credit >= at_once else 0)
            chosen = urgent[:BATCH] + patient[:room]
            self._waiting_credit -= len(chosen) - min(len(urgent), BATCH)
            for job_id in chosen:
                del self._due_s[job_id]
        if patient and not chosen:
            next_s = min(next_s, (at_once - self._waiting_credit) / per_s)
        return chosen, max(next_s, 0.01)

    async def _tell(self, job_ids: Sequence[str]) -> None:
        try:
            updates = await self._gateway.ask(_look(job_ids))
        except TrainmasterError:
            self._again(job_ids)
            await asyncio.sleep(1.0)
            return
        await self._few_at_once((f"status of {job_id}", self._write(job_id, each)) for job_id, each in updates.items())

    async def _write(self, job_id: str, update: StatusUpdate) -> None:
        eta_s = update.view["eta_s"]
        if eta_s is None:
            self._finish_told_s.pop(job_id, None)
        else:
            self._finish_told_s[job_id] = update.now_s + eta_s
        tj = self._object_for(job_id)
        if tj is None:
            if self.also is not None:
                self.also(job_id, update)
            return
        status = status_of(tj, update)
        if status["state"] in ("pending", "paused") and status["reason"] not in ("", STARTING):
            self.published_waiting(job_id, status["reason"], status["message"])
        else:
            self._waiting_told.pop(job_id, None)
        if same_status(status, tj.get("status") or {}):
            self.tally.unchanged += 1
            return
        if not await self._patch(tj, status):
            self._again([job_id])

    async def _patch(self, tj: Json, status: Json) -> bool:
        """False: it should be tried again."""
        meta = tj["metadata"]
        path = paths.training_jobs(meta["namespace"], meta["name"], "status")
        before = tj.get("status") or {}
        gone = {key: None for key in before if key not in status and key != "engine"}
        try:
            await self._client.patch(path, {"metadata": {"uid": meta["uid"]}, "status": {**gone, **status}})
            self.tally.statuses += 1
            return True
        except NotFound:
            return True  # it was deleted: nobody is left to be told
        except Conflict:
            # Another object has its name by now, or others wrote at the same moment.
            there = self._object_for(job_id_of_object(tj))
            return there is None
        except ApiError:
            self.tally.faults += 1
            return False

    def _again(self, job_ids: Iterable[str], wait_s: float = RETRY_S) -> None:
        due_s = time.monotonic() + wait_s
        with self._lock:
            for job_id in job_ids:
                self._due_s.setdefault(job_id, due_s)

    async def reject(self, tj: Json, error: InputError) -> None:
        """Of an object that cannot be a job; once, and again only if its text changed."""
        status = rejected_status(tj, error, time.time())
        if same_status(status, tj.get("status") or {}):
            return
        while not await self._patch(tj, status):
            await asyncio.sleep(RETRY_S)
        await self.event(object_of(tj), JobEvent("Rejected", status["message"], warning=True))

    # -- Events --------------------------------------------------------------------------------------

    async def _publish_events(self) -> None:
        with self._lock:
            taken, self._events = self._events[:BATCH], self._events[BATCH:]
        found = [(job_id, self._object_for(job_id), job_event) for job_id, job_event in taken]
        await self._few_at_once(
            (f"an Event of {job_id}", self.event(object_of(tj), job_event)) for job_id, tj, job_event in found if tj
        )

    async def _few_at_once(self, writes: Iterable[tuple[str, Coroutine[Any, Any, None]]]) -> None:
        """All of them, `WRITERS` at a time; one that fails unforeseen, by its name, fails alone."""
        turns = asyncio.Semaphore(WRITERS)

        async def one(what: str, write: Coroutine[Any, Any, None]) -> None:
            async with turns:
                with self.faults.alone(what):
                    await write

        await asyncio.gather(*(one(*each) for each in writes))

    async def event(self, about: Json, job_event: JobEvent) -> None:
        now = stamp_of(time.time())
        try:
            try:
                await self._client.create(paths.core("events", about["namespace"]), event_body(about, job_event, now))
            except Conflict:
                await self._count_up(about, job_event, now)
            self.tally.events += 1
            self.tally.by_reason[job_event.reason] = self.tally.by_reason.get(job_event.reason, 0) + 1
        except ApiError:
            self.tally.faults += 1  # an Event that is lost is not worth a second queue: the status says it too

    async def _count_up(self, about: Json, job_event: JobEvent, now: str) -> None:
        path = paths.core("events", about["namespace"], event_name(about, job_event))
        present = await self._client.get(path)
        more = {"count": int(present.get("count") or 1) + 1, "lastTimestamp": now, "message": job_event.message}
        await self._client.patch(path, more)


def _look(job_ids: Sequence[str]) -> Request[dict[str, StatusUpdate]]:
    """A request for the views of these jobs; those that nobody knows any more are left out."""

    def look(views: Views) -> dict[str, StatusUpdate]:
        found: dict[str, StatusUpdate] = {}
        now_s = views.plane.time.instant_s(views.now_ms)
        for job_id in job_ids:
            generation = queries.generation_of(views.engine, job_id)
            try:
                view = views.job(job_id)
            except TrainmasterError:
                continue
            found[job_id] = StatusUpdate(view, view["attempts"] if generation is None else generation, now_s)
        return found

    return Read(look)

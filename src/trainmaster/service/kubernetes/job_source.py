"""TrainingJobs as users write them become wishes to the control plane: submit, change, pause, cancel.

Belongs to the loop in which TrainingJobs are watched. Changes are gathered for a moment and handed over as one
request; what the control plane could not take (its store fails) is tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from trainmaster.backends.kubernetes.api.reflector import DELETED, Change
from trainmaster.backends.kubernetes.nodes.fit import KnownRoom
from trainmaster.backends.kubernetes.nodes.node_sets import NodeSets
from trainmaster.backends.kubernetes.resources.admission import check_admission, check_depth
from trainmaster.backends.kubernetes.resources.template_check import TemplateCheck, unreadable
from trainmaster.backends.kubernetes.resources.training_job import job_id_of_object, spec_of_trainingjob
from trainmaster.backends.kubernetes.spec_diff import being_deleted, training_job_diff
from trainmaster.engine import queries
from trainmaster.engine.ports import EndedFilter
from trainmaster.model import event as ev
from trainmaster.model.errors import InputError, TrainmasterError
from trainmaster.model.job import JobId, JobSpec
from trainmaster.service.api.problems import Unavailable
from trainmaster.service.control.control_plane import ControlPlane, Request
from trainmaster.service.kubernetes.namespace_teams import Bindings, team_of

log = logging.getLogger(__name__)
Json = dict[str, Any]
GATHER_S = 0.02
AGAIN_S = 1.0
MAX_BATCH = 2_000
"""Objects that are handed over at a time. A step costs something for every job and node that there is, so that a long
queue is taken sooner in few of them; but nothing starts meanwhile."""
OVER = frozenset({"finished", "failed", "cancelled", "rejected"})


class Inbox(Protocol):
    """Where requests go (see `Driver.put`)."""

    def put(self, request: Request[Any], answered: Callable[[Any], object]) -> None: ...


@dataclass(frozen=True)
class News:
    """One TrainingJob as it is, or as it last was. `before`: as it was when the control plane was last told; `filled`:
    with the defaults of its namespace."""

    job: Json
    gone: bool
    before: Json | None
    node_set: str = ""
    filled: Json | None = None


@dataclass
class TakeJobs:
    """Bring the engine to what the objects say. Answers with those that were refused, and why."""

    news: list[News]
    room: KnownRoom
    bindings: Bindings | None = None
    node_sets: list[ev.NodeSet] = field(default_factory=list)
    changes = True
    refused: list[tuple[Json, InputError]] = field(default_factory=list)

    def prepare(self, plane: ControlPlane) -> None:
        plane.stage.events.extend(self.node_sets)
        for item in self.news:
            try:
                plane.stage.events.extend(self._user_events(plane, item))
            except InputError as error:
                self.refused.append((item.job, error))
            except Exception as error:
                log.exception("%s cannot be read", job_id_of_object(item.job))
                self.refused.append((item.job, unreadable(error)))

    def _user_events(self, plane: ControlPlane, item: News) -> list[ev.Event]:
        engine, tj = plane.live, item.job
        job_id = job_id_of_object(tj)
        current = queries.spec_of(engine, job_id)
        epoch_ms = plane.time.epoch_ms
        if current is not None:
            if item.gone:
                return [ev.JobCancelled(job_id)]
            changes = list(training_job_diff(item.before, tj, current, queries.is_paused(engine, job_id)))
            for change in changes:
                if isinstance(change, ev.JobRangeChanged):
                    current = replace(current, workers_min=change.workers_min, workers_max=change.workers_max)
            return [*changes, *room_news(plane, current, self.room)]
        over = (tj.get("status") or {}).get("state") in OVER
        if (
            item.gone
            or queries.was_submitted(engine, job_id)
            or over
            or being_deleted(tj)
            or job_id in plane.stage.specs
        ):
            return []
        namespace = tj["metadata"]["namespace"]
        after = tuple(job_named(plane, namespace, str(text)) for text in tj["spec"].get("after") or ())
        asked = item.filled or tj
        team = team_of(namespace, tj["spec"].get("entity"), self.bindings)
        spec = replace(spec_of_trainingjob(asked, epoch_ms, after), node_set=item.node_set, entity=team)
        for described in (tj, asked):  # first by the names that its user wrote
            check_admission(described)
        plane.stage.specs[job_id] = spec
        events: list[ev.Event] = [ev.JobSubmitted(spec), *room_news(plane, spec, self.room)]
        if tj["spec"].get("suspend"):
            events.append(ev.JobPaused(job_id))
        return events

    def answer(self, plane: ControlPlane) -> list[tuple[Json, InputError]]:  # noqa: ARG002 - part of the protocol
        return self.refused


@dataclass
class CancelOthers:
    """Jobs whose object was deleted while nobody watched: those that are not among `present`."""

    present: frozenset[str]
    kinds: frozenset[str] = frozenset({"TrainingJob"})
    changes = True

    def prepare(self, plane: ControlPlane) -> None:
        for spec in queries.active_specs(plane.live):
            if spec.payload.get("kind") in self.kinds and spec.id not in self.present:
                plane.stage.events.append(ev.JobCancelled(JobId(spec.id)))

    def answer(self, plane: ControlPlane) -> None:  # noqa: ARG002 - part of the protocol
        return None


@dataclass
class ReviewRoom:
    """Nodes are others than they were: jobs that none of them could take wait alone, those that now fit compete."""

    room: KnownRoom
    changes = True

    def prepare(self, plane: ControlPlane) -> None:
        for spec in queries.active_specs(plane.live):
            plane.stage.events.extend(room_news(plane, spec, self.room))

    def answer(self, plane: ControlPlane) -> None:  # noqa: ARG002 - part of the protocol
        return None


def room_news(plane: ControlPlane, spec: JobSpec, room: KnownRoom) -> list[ev.Event]:
    lacks = room.lacks(spec)
    return [] if lacks == queries.lacking_room(plane.live, spec.id) else [ev.JobRoomChanged(spec.id, lacks)]


def job_named(plane: ControlPlane, namespace: str, text: str) -> JobId:
    """The job that `spec.after` means by an id or a name within its namespace: of several the latest."""
    name = text.removeprefix(f"{namespace}.")
    for spec in reversed([*queries.active_specs(plane.live), *plane.stage.specs.values()]):
        if spec.payload.get("namespace") == namespace and (spec.id == text or spec.name == name):
            return spec.id
    inside = EndedFilter(namespaces=frozenset({namespace}))
    record = plane.store.find_ended(text)
    if record is None or (record["spec"].get("payload") or {}).get("namespace") != namespace:
        record = next(iter(plane.store.latest_ended(1, replace(inside, name=name))), None)
    if record is None:
        raise InputError(
            f"job '{text[:80]}' not found in namespace '{namespace}'",
            "the name or id of an earlier job",
            column="spec.after",
        )
    return JobId(record["spec"]["id"])


class JobSource:
    def __init__(
        self,
        inbox: Inbox,
        room: KnownRoom,
        sets: NodeSets,
        refused: Callable[[Json, InputError], None],
        templates: TemplateCheck | None = None,
        bindings: Bindings | None = None,
    ) -> None:
        """`refused` is told, in the loop, of objects that cannot be jobs; `templates`
        knows which templates can be pods; `bindings`: the teams of namespaces."""
        self._sets = sets
        self._templates = templates
        if templates is not None:
            templates.news = lambda: self._soon(0.0)
        self._inbox = inbox
        self._refused = refused
        self._loop = asyncio.get_running_loop()
        self._dirty: dict[str, tuple[Json, bool]] = {}
        self._told: dict[str, Json] = {}
        self._room = room
        self._bindings = bindings
        self._unsure: set[str] = set()
        self._faults: dict[str, InputError] = {}
        """Objects that cannot be jobs, while they exist."""
        self._awaited: dict[str, list[asyncio.Future[InputError | None]]] = {}
        self._waiting = False
        self._stopped = False

    def begin(self, jobs: Iterable[Json]) -> None:
        """All objects that there are; jobs of others are cancelled."""
        present = list(jobs)
        self._inbox.put(CancelOthers(frozenset(map(job_id_of_object, present))), lambda _: None)
        for job in present:
            self._note(job, False)

    def changed(self, kind: Change, job: Json, before: Json | None) -> None:
        """As told by the reflector. What only the status says is our own word."""
        gone = kind == DELETED
        if not gone and before is not None and _same_spec(before, job):
            return
        self._note(job, gone)

    async def verdict(self, job_id: str) -> InputError | None:
        """Wait until the control plane has taken a job, or refused it: then what is wrong with it."""
        if job_id in self._told or job_id in self._faults or self._stopped:
            return self._faults.get(job_id)
        waits: asyncio.Future[InputError | None] = self._loop.create_future()
        self._awaited.setdefault(job_id, []).append(waits)
        return await waits

    def _decided(self, job_id: str, fault: InputError | None) -> None:
        for waits in self._awaited.pop(job_id, ()):
            if not waits.done():
                waits.set_result(fault)

    def _refuse(self, job: Json, fault: InputError) -> None:
        job_id = job_id_of_object(job)
        self._faults[job_id] = fault
        self._refused(job, fault)
        self._decided(job_id, fault)

    def stop(self) -> None:
        self._stopped = True
        for job_id in list(self._awaited):
            self._decided(job_id, None)  # the object is there: the next leader takes it

    def _note(self, job: Json, gone: bool) -> None:
        fault = None if gone else self._unreadable(job)
        if fault is not None:
            self._dirty.pop(job_id_of_object(job), None)
            self._refuse(job, fault)
            return
        self._dirty[job_id_of_object(job)] = (job, gone)
        self._soon(GATHER_S)

    def _soon(self, wait_s: float) -> None:
        if not self._waiting and not self._stopped:
            self._waiting = True
            self._loop.call_later(wait_s, self._hand_over)

    def _hand_over(self) -> None:
        self._waiting = False
        if self._stopped or not self._dirty:
            return
        self._judge_templates()
        # In order of creation, so that first come is first served even when many come at once.
        ready = [job_id for job_id in self._dirty if job_id not in self._unsure]
        if not ready:
            return  # the answers wake us
        ids = sorted(ready, key=lambda job_id: _order(self._dirty[job_id][0]))[:MAX_BATCH]
        batch = {job_id: self._dirty.pop(job_id) for job_id in ids}
        news = [
            News(job, gone, self._told.get(job_id), self._sets.name_for(job), self._filled(job_id, job, gone))
            for job_id, (job, gone) in batch.items()
        ]
        request = TakeJobs(news, self._room, self._bindings, self._sets.new())
        self._waiting = True  # one at a time: the next goes out when this is answered
        try:
            self._inbox.put(request, lambda outcome: self._loop.call_soon_threadsafe(self._answered, batch, outcome))
        except Unavailable:
            self._stopped = True

    def _unreadable(self, job: Json) -> InputError | None:
        """One object that cannot be read is refused alone: the others are taken."""
        try:
            check_depth(job)
            self._sets.name_for(job)
        except InputError as error:
            return error
        except Exception as error:
            log.exception("%s cannot be read", job_id_of_object(job))
            return unreadable(error)
        return None

    def _filled(self, job_id: str, job: Json, gone: bool) -> Json | None:
        new = self._templates is not None and not gone and job_id not in self._told
        return self._templates.filled(job) if new and self._templates is not None else None

    def _judge_templates(self) -> None:
        """New jobs wait until the API server has said that their templates can be pods; some are refused here."""
        self._unsure = set()
        if self._templates is None:
            return
        for job_id, (job, gone) in list(self._dirty.items()):
            if gone or job_id in self._told or (job.get("status") or {}).get("state"):
                continue
            try:
                if not self._templates.known(job):
                    self._unsure.add(job_id)
                    continue
                fault = self._templates.fault(job)
                self._templates.filled(job)
            except Exception as error:
                log.exception("the templates of %s cannot be read", job_id)
                fault = unreadable(error)
            if fault is not None:
                del self._dirty[job_id]
                self._refuse(job, fault)

    def _answered(self, batch: dict[str, tuple[Json, bool]], outcome: Any) -> None:
        self._waiting = False
        if isinstance(outcome, BaseException):
            if not isinstance(outcome, TrainmasterError):
                raise outcome
            for job_id, item in batch.items():
                self._dirty.setdefault(job_id, item)
            self._soon(AGAIN_S)
            return
        for job, error in outcome:
            self._refuse(job, error)
        for job_id, (job, gone) in batch.items():
            if gone:
                self._told.pop(job_id, None)
                self._faults.pop(job_id, None)
            else:
                self._told[job_id] = {"spec": {"suspend": job["spec"].get("suspend")}}
            self._decided(job_id, None)
        if self._dirty:
            self._soon(0.0)


def _order(job: Json) -> tuple[str, int, str]:
    """By creation; within its second by version of the object, which rises with every write."""
    meta = job["metadata"]
    version = str(meta.get("resourceVersion", ""))
    return meta["creationTimestamp"], int(version) if version.isdigit() else 0, meta["name"]


def _same_spec(before: Json, now: Json) -> bool:
    a, b = before["metadata"], now["metadata"]
    return a.get("generation") == b.get("generation") and a.get("deletionTimestamp") == b.get("deletionTimestamp")

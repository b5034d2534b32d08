"""What clients may ask of the control plane: each request checks, stages its changes, and answers after the commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from trainmaster.engine import queries
from trainmaster.engine.persistence import ended_from_record
from trainmaster.engine.ports import EndedFilter
from trainmaster.estimate.speeds.knowledge import profile_of
from trainmaster.estimate.speeds.learned import MEASURED_SIGMA
from trainmaster.estimate.speeds.observations import Place, observed
from trainmaster.jobspec.diff import spec_diff
from trainmaster.jobspec.engine import OPEN_SIZE, request_of
from trainmaster.jobspec.limits import Workers
from trainmaster.jobspec.model import EDITABLE, JobRequest
from trainmaster.jobspec.reading import request_from
from trainmaster.model import event as ev
from trainmaster.model.errors import InputError
from trainmaster.model.job import Demand, JobId, JobSpec
from trainmaster.model.units import GPU_MILLI
from trainmaster.service.api.problems import Conflict, Forbidden, NotFound
from trainmaster.service.api.views import Json, Views
from trainmaster.service.control.control_plane import ControlPlane
from trainmaster.service.control.specs import check_array, spec_of
from trainmaster.service.local.tokens import OPERATOR, Principal
from trainmaster.wire.api import EntityRequest, SpeedsRequest

T = TypeVar("T")


@dataclass
class Read(Generic[T]):
    """Look, change nothing. Without `who`, for a reader who may see everything."""

    look: Callable[[Views], T]
    who: Principal | None = None
    changes = False

    def prepare(self, plane: ControlPlane) -> None:
        pass

    def answer(self, plane: ControlPlane) -> T:
        return self.look(Views(plane, self.who))


@dataclass
class Submit:
    """`snapshot`: name of the copy of the work folder."""

    request: JobRequest
    who: Principal
    snapshot: str = ""
    changes = True
    _answer: Json | None = None

    def prepare(self, plane: ControlPlane) -> None:
        request, stage = self.request, plane.stage
        key = None if request.request_id is None else f"{self.who.name}/{request.request_id}"
        if key is not None:
            self._answer = stage.answers.get(key) or plane.store.find_request(key)
            if self._answer is not None:
                return
        specs = jobs_of(plane, request, self.who)
        if self.snapshot:
            specs = [replace(spec, payload={**spec.payload, "snapshot": self.snapshot}) for spec in specs]
        stage.n_jobs += len(specs)
        stage.specs.update((spec.id, spec) for spec in specs)
        stage.events.extend(ev.JobSubmitted(spec) for spec in specs)
        self._answer = {"id": specs[0].id, "ids": [spec.id for spec in specs]}
        if key is not None:
            stage.answers[key] = self._answer

    def answer(self, plane: ControlPlane) -> Json:  # noqa: ARG002 - part of the protocol
        assert self._answer is not None
        return self._answer


@dataclass
class Preview:
    """What a submission would be refused for, or else the question when its jobs would start and finish."""

    request: JobRequest
    who: Principal
    changes = False
    _specs: tuple[JobSpec, ...] = ()

    def prepare(self, plane: ControlPlane) -> None:
        if plane.live_forecasts is None:
            raise NotFound("this service does not look ahead")
        self._specs = tuple(jobs_of(plane, self.request, self.who))

    def answer(self, plane: ControlPlane) -> Json:
        assert plane.live_forecasts is not None
        return plane.live_forecasts.question(plane, plane.now_ms, self._specs)


def jobs_of(plane: ControlPlane, request: JobRequest, who: Principal) -> list[JobSpec]:
    """The jobs that a request asks for, under the next ids; raises what is wrong with it."""
    request = of_team(request, who)
    check_array(request)
    after = found_all(plane, request.after)
    first = plane.next_job + plane.stage.n_jobs
    ids = [f"job-{first + k}" for k in range(request.array or 1)]
    specs: list[JobSpec] = []
    for k, job_id in enumerate(ids):
        index = None if request.array is None else k
        spec = spec_of(
            request,
            job_id,
            plane.cluster,
            plane.now_ms,
            after=after,
            user=who.name,
            array_index=index,
            array_of=None if index is None else ids[0],
        )
        plane.fitting.check(spec, None, plane.machine)
        specs.append(spec)
    return specs


def of_team(request: JobRequest, who: Principal) -> JobRequest:
    """The request under a team that its user is bound to: the one it names, or the user's first."""
    if who.teams is None or request.entity in who.teams:
        return request
    if request.entity is not None:
        raise Forbidden(
            f"{who.name} is not in team '{request.entity}'",
            where="entity",
            expected=" or ".join(who.teams),
            remedy="The operator binds users to teams in the file `tokens`.",
        )
    return request.model_copy(update={"entity": who.teams[0]})


@dataclass
class _OnJob:
    """What a user wants of a job of their own."""

    job: str
    who: Principal
    changes = True
    _job_id: str = field(default="", init=False)

    def _found(self, plane: ControlPlane) -> JobId:
        """The job's id; refuses jobs of others."""
        self._job_id = find(plane, self.job)
        owned(plane, self._job_id, self.who)
        return JobId(self._job_id)

    def answer(self, plane: ControlPlane) -> Json:
        return Views(plane, self.who).job(self._job_id)


def _spec_of(plane: ControlPlane, job_id: str) -> JobSpec:
    """Of a job that is not over."""
    spec = queries.spec_of(plane.live, job_id) or plane.stage.specs.get(job_id)
    if spec is None:
        raise Conflict(f"{job_id} is over", expected="a job that waits, runs or is paused")
    return spec


@dataclass
class Act(_OnJob):
    """Cancel, pause or resume a job. Asking for what already is so is no fault."""

    what: str

    def prepare(self, plane: ControlPlane) -> None:
        job_id = self._found(plane)
        if self.what != "cancel":
            _spec_of(plane, job_id)
        elif not queries.is_active(plane.live, job_id) and job_id not in plane.stage.specs:
            return
        kind = {"cancel": ev.JobCancelled, "pause": ev.JobPaused, "resume": ev.JobResumed}[self.what]
        plane.stage.events.append(kind(job_id))


@dataclass
class Resize(_OnJob):
    workers: Workers

    def prepare(self, plane: ControlPlane) -> None:
        job_id, size = self._found(plane), (self.workers.min, self.workers.max)
        spec = _spec_of(plane, job_id)
        plane.fitting.check(spec, size)
        plane.stage.events.append(ev.JobRangeChanged(job_id, *size))
        if spec.payload.get(OPEN_SIZE):
            plane.stage.events.append(ev.JobTermsChanged(job_id, noted={OPEN_SIZE: False}))


@dataclass
class Edit(_OnJob):
    """Change fields of a job that waits, runs or is paused: those of `EDITABLE`, checked as at submission."""

    changes_asked: Mapping[str, Any]

    def prepare(self, plane: ControlPlane) -> None:
        job_id = self._found(plane)
        spec = _spec_of(plane, job_id)
        for name in self.changes_asked:
            if name not in EDITABLE:
                raise InputError("cannot be changed", f"one of {', '.join(sorted(EDITABLE))}", column=name)
        fields = request_from({**request_of(spec), **self.changes_asked})
        for event in spec_diff(fields, spec):
            if isinstance(event, ev.JobRangeChanged):
                if event.servers is not None and queries.is_live(plane.live, job_id):
                    waits = "a job that waits, to change its servers"
                    raise Conflict(f"{job_id} runs", where="servers", expected=waits, remedy="Pause it first.")
                plane.fitting.check(spec, (fields.workers.min, fields.workers.max))
            plane.stage.events.append(event)


@dataclass
class SetPolicy:
    policy: str
    changes = True

    def prepare(self, plane: ControlPlane) -> None:
        plane.policies(self.policy)  # raises what is wrong with the name
        plane.stage.policy = self.policy.strip()
        plane.stage.events.append(ev.PolicyChanged())

    def answer(self, plane: ControlPlane) -> str:
        return plane.policy_name


@dataclass
class KeepSpeeds:
    """Measured elsewhere, for jobs of a model that run here."""

    request: SpeedsRequest
    who: Principal
    changes = True
    _profile: str = ""

    def prepare(self, plane: ControlPlane) -> None:
        if plane.live_forecasts is None:
            raise NotFound("this service does not learn speeds")
        told = self.request
        worker = Demand(round(told.gpus_per_worker * GPU_MILLI))
        profile = profile_of(JobSpec(JobId(""), model=told.model, batch_size=told.batch_size, worker=worker))
        for one in told.measured:
            place = Place(one.workers, one.servers, one.spread, one.accelerator)
            run = f"profile by {self.who.name}"
            seen = observed(profile, place, one.steps_per_s, MEASURED_SIGMA, one.seconds, run)
            plane.live_forecasts.estimator.knowledge.add(seen)
        plane.live_forecasts.learned()
        plane.stage.events.append(ev.SpeedsLearned())
        self._profile = profile.key

    def answer(self, plane: ControlPlane) -> Json:  # noqa: ARG002
        return {"profile": self._profile, "measured": len(self.request.measured)}


@dataclass
class SetEntity:
    name: str
    request: EntityRequest
    changes = True

    def prepare(self, plane: ControlPlane) -> None:
        quota = self.request.quota_gpus
        quota_milli = None if quota is None else round(quota * GPU_MILLI)
        event = ev.EntityChanged(self.name, self.request.weight, quota_milli, self.request.policy)
        plane.stage.events.append(event)

    def answer(self, plane: ControlPlane) -> Json:
        return next(view for view in Views(plane).entities(also=self.name) if view["name"] == self.name)


@dataclass
class ConfirmClock:
    """The operator says that the wall clock is right: history is deleted for its age again."""

    changes = True

    def prepare(self, plane: ControlPlane) -> None:
        plane.stage.clock_confirmed = True
        plane.stage.events.append(ev.Woken())

    def answer(self, plane: ControlPlane) -> None:
        plane.time.doubt_ms = 0


def found_all(plane: ControlPlane, texts: Sequence[str]) -> tuple[str, ...]:
    """The ids of the jobs that must finish first, each once. A thousand names are looked up in one walk over the
    active jobs, not in a thousand."""
    ids: dict[str, None] = {}
    unique = list(dict.fromkeys(texts))
    if len(unique) <= 1:
        return tuple(find(plane, text, "after") for text in unique)
    named: dict[str, list[str]] = {}
    for spec in (*plane.stage.specs.values(), *queries.active_specs(plane.live)):
        if spec.name:
            named.setdefault(spec.name, []).append(spec.id)
    for text in unique:
        job_ids = named.get(text, [])
        known = len(job_ids) == 1 and not _is_id(plane, text)
        ids[job_ids[0] if known else find(plane, text, "after")] = None
    return tuple(ids)


def _is_id(plane: ControlPlane, text: str) -> bool:
    engine = plane.live
    return queries.is_active(engine, text) or text in plane.stage.specs or plane.store.find_ended(text) is not None


def find(plane: ControlPlane, text: str, where: str = "job") -> str:
    """The id that an id or unique name stands for: of active jobs first, then of those that are over."""
    engine = plane.live
    if _is_id(plane, text):
        return text
    named = [spec.id for spec in plane.stage.specs.values() if spec.name == text]
    named += [spec.id for spec in queries.active_specs(engine) if spec.name == text]
    if named or not text:
        return the_one(named, len(named), text, where)
    return ended_named(plane, text, EndedFilter(name=text), where)


def ended_named(plane: ControlPlane, text: str, which: EndedFilter, where: str = "job") -> str:
    """The only job that is over of those that the filter lets through."""
    named = [record["spec"]["id"] for record in plane.store.ended_page(-1, 2, which)]
    return the_one(named, plane.store.count_ended(which) if len(named) > 1 else len(named), text, where)


def the_one(found: Sequence[str], count: int, text: str, where: str = "job") -> str:
    """The only id found for a text; a refusal says whether there are none or several."""
    if count > 1:
        told, remedy = f"{count} jobs are called '{text[:80]}'", f"Use an id, such as {found[0]}."
        raise Conflict(told, where=where, expected="a unique name", remedy=remedy)
    if not found:
        remedy = "`trainmaster queue --all` lists them."
        raise NotFound(f"job '{text[:80]}' not found", where=where, expected="an id or a name", remedy=remedy)
    return found[0]


def owned(plane: ControlPlane, job_id: str, who: Principal) -> None:
    """Users act on their own jobs, operators on all."""
    if who.role == OPERATOR:
        return
    spec = queries.spec_of(plane.live, job_id)
    if spec is not None:
        owner = spec.payload.get("user")
    elif job_id in plane.stage.specs:
        owner = plane.stage.specs[job_id].payload.get("user")
    else:
        record = plane.store.find_ended(job_id)
        owner = None if record is None else ended_from_record(record).spec.payload.get("user")
    if owner != who.name:
        raise Forbidden(f"{job_id} belongs to {owner or 'somebody else'}", expected="a job of your own")


@dataclass(frozen=True)
class LogState:
    """What the reader of a log must know: whether more may come."""

    job_id: str
    active: bool
    generation: int


def log_state(plane: ControlPlane, text: str) -> LogState:
    job_id = find(plane, text)
    generation = queries.generation_of(plane.live, job_id)
    return LogState(job_id, generation is not None, generation or 0)


@dataclass
class Inspect(Generic[T]):
    """Look at the control plane itself, even when its store has failed."""

    look: Callable[[ControlPlane], T]
    changes = False
    always = True

    def prepare(self, plane: ControlPlane) -> None:
        pass

    def answer(self, plane: ControlPlane) -> T:
        return self.look(plane)


def health(plane: ControlPlane) -> Json:
    if plane.engine is None:
        return {"status": "store unavailable", "what": str(plane.fault)}
    if plane.refused_commit is not None:
        return {"status": "store refuses commits", "what": str(plane.refused_commit)}
    return {"status": "ok", "policy": plane.policy_name, "jobs": queries.n_active(plane.engine)}

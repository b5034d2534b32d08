"""The control plane as one synchronous object: requests and reports in, commands out, everything committed.

It reads time from a clock that it is given, and knows neither threads nor sockets, so that the live driver and the
fault simulation run the same code. A batch of requests and reports becomes one step of the engine and one commit;
only then are commands performed and requests answered. When the store fails, nothing of the step is kept: the engine
is built again from what was committed, the requests are refused with `Unavailable`, reports are taken again, and an
inventory makes good what is missing still. When one request or report makes the engine fail, everything else of the
batch is taken without it: the request is refused, the report is set aside. What fails after the commit (a command, a
forecast) is noted and fails alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from trainmaster.engine.engine import Engine
from trainmaster.engine.grow import can_grow
from trainmaster.engine.persistence import Recorder, restore, stored_state_of
from trainmaster.engine.ports import Archive, Backend, Commit, Estimator, StoredState, StoreError
from trainmaster.engine.records import Ended, Settings
from trainmaster.engine.remap_nodes import remap_nodes
from trainmaster.model import event as ev
from trainmaster.model.cluster import Cluster
from trainmaster.model.command import Command
from trainmaster.model.errors import TrainmasterError
from trainmaster.model.job import Demand, JobId, JobSpec
from trainmaster.model.policy import Policy
from trainmaster.model.units import NEVER_MS
from trainmaster.policies.registry import create
from trainmaster.service.api.problems import unavailable
from trainmaster.service.control.clock import Clock, EngineTime
from trainmaster.service.control.deadline_answers import DeadlineAnswers
from trainmaster.service.control.event_log import Journal
from trainmaster.service.control.experience import IN_DATABASE, Bounds, Experience
from trainmaster.service.control.fallback_policy import FallbackPolicy
from trainmaster.service.control.forecasts import LiveForecasts
from trainmaster.service.control.job_watch import JobWatch
from trainmaster.service.control.quarantine import DOCUMENT as QUARANTINE
from trainmaster.service.control.quarantine import build_readable
from trainmaster.service.control.remap_nodes import check_shape, followed, moved_to, shape_of
from trainmaster.service.control.specs import Fitting

T = TypeVar("T", covariant=True)
log = logging.getLogger("trainmaster.control")

OBSERVE_MS = 15_000
PRUNE_MS = 3_600_000
RETRY_MS = 1_000
"""After this time a store that failed is tried again."""
DAY_MS = 86_400_000


class Request(Protocol[T]):
    """What a client wants. `prepare` checks and stages changes; `answer` tells the outcome, after the commit.

    With an attribute `always` it is answered even while there is no engine.
    """

    changes: bool

    def prepare(self, plane: ControlPlane) -> None: ...

    def answer(self, plane: ControlPlane) -> T: ...


@dataclass
class Stage:
    """What the requests of one batch want changed."""

    events: list[ev.Event] = field(default_factory=list)
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Answers by the id that the client gave its request."""
    specs: dict[str, JobSpec] = field(default_factory=dict)
    """Jobs that this batch submits, by id."""
    policy: str | None = None
    n_jobs: int = 0
    clock_confirmed: bool = False

    def mark(self) -> tuple[list[ev.Event], int, int, str | None, int, bool]:
        return [*self.events], len(self.answers), len(self.specs), self.policy, self.n_jobs, self.clock_confirmed

    def rewind(self, mark: tuple[list[ev.Event], int, int, str | None, int, bool]) -> None:
        """Forget what was staged since; what comes last into a dict leaves it first."""
        self.events, answers, specs, self.policy, self.n_jobs, self.clock_confirmed = mark
        while len(self.answers) > answers:
            self.answers.popitem()
        while len(self.specs) > specs:
            self.specs.popitem()


@dataclass(frozen=True)
class Retention:
    days: float = 30.0
    ended_jobs: int = 100_000
    log_lines: int = 1_000_000


@dataclass
class Listeners:
    """Who is told, in the scheduler thread: of the log entries of each commit, of the commit itself, and of the ids of
    jobs that the history no longer holds."""

    told: Callable[[Sequence[Any]], None] = lambda _: None
    committed: Callable[[Commit], None] = lambda _: None
    forgotten: Callable[[Sequence[str]], None] = lambda _: None


@dataclass
class Tally:
    """Counters for the metrics; of this process only."""

    batches: int = 0
    events: int = 0
    submitted: int = 0
    ended: dict[str, int] = field(default_factory=dict)
    commands: dict[str, int] = field(default_factory=dict)
    store_faults: int = 0
    set_aside: int = 0
    """Requests, reports and commands that failed in a way that nobody foresaw."""
    untold: list[tuple[str | None, str]] = field(default_factory=list)
    """What the event log is still to be told of them: job and text."""
    policy_faults: int = 0
    batch_s: float = 0.0


class ControlPlane:
    """See the module's text. `open` first; then `batch`, whenever something came or `next_wake_ms` has."""

    fault: StoreError | None = None
    """Why there is no engine at present."""
    refused_commit: StoreError | None = None
    """Why the store refused the last commit; it may be readable all the same. Health rests on it."""
    engine: Engine | None = None
    _retry_ms: int = NEVER_MS
    _pause_ms: int = 0
    """When a commit that failed is tried again: a store may be readable and refuse every commit."""
    _last_ms: int = 0
    is_gone: Callable[[str], bool] = staticmethod(lambda _: False)
    """Whether a node, by name, has left the cluster; its index stays. Set by a backend whose nodes come and go."""
    machine: Demand | None = None
    """Most that one worker can have, where emulated nodes do not say."""
    _shaped: tuple[Cluster, list[list[Any]]] | None = None

    def __init__(
        self,
        cluster: Cluster,
        store: Archive,
        backend: Backend | None,
        clock: Clock,
        estimator: Estimator,
        settings: Settings,
        policy: str,
        *,
        emulated: bool = False,
        retention: Retention | None = None,
        force_policy: str | None = None,
        keep_policy: bool = False,
        policies: Callable[[str], Policy] = create,
        listeners: Listeners | None = None,
        live_forecasts: LiveForecasts | None = None,
        experience: Bounds = IN_DATABASE,
        follow_nodes: bool = False,
    ) -> None:
        """`policy` decides in a new store, `force_policy` in any; with `keep_policy` not in one that was last opened
        with the same, so that what was chosen since stays. `backend` may be set later, before `open`."""
        self.cluster = cluster
        self.store = store
        self.backend: Backend
        if backend is not None:
            self.backend = backend
        self.clock = clock
        self.estimator = estimator
        self.settings = settings
        self.emulated = emulated
        self.retention = retention or Retention()
        self.tally = Tally()
        self.stage = Stage()
        self.fitting = Fitting(cluster, follow_nodes)
        self._follow_nodes = follow_nodes
        """Whether nodes may be others than when the store was written, without anybody asking for it."""
        self.listeners = listeners or Listeners()
        self.live_forecasts = live_forecasts
        self.experience = Experience(experience)
        self.watch = JobWatch()
        self.policies = policies
        self._first_policy = policy
        self._force_policy = self._policy_option = force_policy
        self._keep_policy = keep_policy
        self.quarantined: dict[str, Any] = {}
        """Records of stored jobs that could not be read, by id."""
        self.slow_starts: Mapping[str, str] = {}
        """What keeps jobs from starting that have their devices, as far as a backend can say."""
        self._untaken: list[ev.Event] = []
        """Reports that were lost with a commit, and are not told again."""

    # -- life ----------------------------------------------------------------------------------------

    def prepare_nodes(self, reset: bool = False) -> None:
        """Refuse a store that was written for other nodes, or (`reset`) bring it to the present ones."""
        stored_state = self.store.load_active()
        if stored_state.meta is None:
            return
        if reset:
            self.store.commit(moved_to(stored_state, self.cluster, self.estimator))
        else:
            check_shape(stored_state.meta, self.cluster)

    def take_nodes(self, cluster: Cluster) -> None:
        """Called by a request that is being prepared: these are the nodes from now on, those that were keep their
        index. What runs goes on; what policies remember stays unless it rests on nodes or types."""
        engine = self.live
        if engine.cluster.nodes == cluster.nodes:
            return
        if can_grow(engine.cluster, cluster):
            self.stage.events.insert(0, ev.ClusterGrew(cluster))
        else:
            stored_state = remap_nodes(stored_state_of(engine), engine.cluster, cluster, self.estimator)
            self.engine = restore(stored_state, cluster, engine.policy, self.estimator, self.settings)
            self.recorder = Recorder.of_new(self.engine)
            self.stage.events.append(ev.Woken())
        self.cluster = cluster
        self.fitting = Fitting(cluster, self._follow_nodes)

    def open(self) -> None:
        """Read the store, send what is pending, ask for an inventory. Raises `StoreError`."""
        stored_state = stored = self.store.load_active()
        self.set_time(stored_state)
        facts: Mapping[str, Any] = (stored_state.meta or {}).get("service", {})
        if self._follow_nodes:
            stored_state = followed(stored, self.cluster, self.estimator)
        self.policy_name = str(facts.get("policy", self._first_policy))
        if self._keep_policy and facts.get("policy_option") == self._policy_option:
            self._force_policy = None
        self.next_job = int(facts.get("next_job", 1))
        self.experience.opened(int(facts.get("experience", 0)))
        self.exits: dict[str, str] = dict(facts.get("exits", {}))
        self.outputs: dict[str, str] = dict(facts.get("outputs", {}))
        if self.live_forecasts is not None:
            self.live_forecasts.opened(self.store.document)
        self.engine, unreadable = build_readable(stored_state, self._engine)
        self.quarantined = {**(self.store.document(QUARANTINE) or {}), **unreadable}
        self.engine.known.update(JobId(job_id) for job_id in self.quarantined)
        as_stored = stored_state is stored and stored_state.meta is not None
        self.recorder = Recorder(self.engine) if as_stored else Recorder.of_new(self.engine)
        if not as_stored:
            # A new store begins with when it began: engine time is counted from there by every later process. And
            # nodes that are others than they were are so from the beginning.
            self.store.commit(self._commit(Journal(self.engine, self.now_ms), []))
        if unreadable:
            commit = self._commit(Journal(self.engine, self.now_ms), [])
            jobs = {**commit.jobs, **dict.fromkeys(unreadable)}
            self.store.commit(replace(commit, jobs=jobs, requests={}, documents={QUARANTINE: self.quarantined}))
        self.deadline_answers = DeadlineAnswers(self.engine)
        self.fault = None
        self._retry_ms = NEVER_MS
        self.log_number = self.store.last_log_number()
        self._dispatch(self.engine.pending_commands())
        self.next_observe_ms = self.now_ms
        self.next_prune_ms = self.now_ms + PRUNE_MS // 60

    def set_time(self, stored_state: StoredState) -> None:
        """Go on where the image left off, by as much as the clock did. Within a process time goes on as it did: leases
        are counted in it, and somebody may have set the wall clock."""
        facts: Mapping[str, Any] = (stored_state.meta or {}).get("service", {})
        known = getattr(self, "time", None)
        first_ms = int(facts.get("epoch_ms", self.clock.wall_ms() if known is None else known.epochs[0][1]))
        epochs = [(int(since_ms), int(epoch_ms)) for since_ms, epoch_ms in facts.get("epochs", [(0, first_ms)])]
        last_ms = max(0 if stored_state.meta is None else int(stored_state.meta["now_ms"]), self._last_ms)
        if known is None or known.epochs[: len(epochs)] != epochs or known.now_ms() < last_ms:
            self.time = EngineTime(
                self.clock, epochs, last_ms, int(facts.get("unseen_ms", 0)), int(facts.get("clock_doubt_ms", 0))
            )

    def _engine(self, stored_state: StoredState) -> Engine:
        return restore(stored_state, self.cluster, self._policy(self.policy_name), self.estimator, self.settings)

    def _policy(self, name: str) -> FallbackPolicy:
        return FallbackPolicy(self.policies(name), self._policy_failed)

    def _policy_failed(self, _: Exception) -> None:
        self.tally.policy_faults += 1

    @property
    def now_ms(self) -> int:
        return self.time.now_ms() if hasattr(self, "time") else 0

    @property
    def next_wake_ms(self) -> int:
        """When `batch` wants to be called at the latest, in the engine's time."""
        if self.engine is None:
            return self._retry_ms
        ahead_ms = NEVER_MS if self.live_forecasts is None else self.live_forecasts.next_ms
        due_ms = min(self.engine.next_wake_ms, self.watch.next_ms, self.next_observe_ms, self.next_prune_ms, ahead_ms)
        return self._pause_ms if self._untaken or self.refused_commit else max(due_ms, self._pause_ms)

    @property
    def live(self) -> Engine:
        """The engine; `Unavailable` when the store has failed."""
        if self.engine is None:
            assert self.fault is not None
            raise unavailable(self.fault)
        return self.engine

    # -- one batch -----------------------------------------------------------------------------------

    def batch(self, requests: Sequence[Request[Any]], events: Iterable[ev.Event] = ()) -> list[Any]:
        """Take them all in one step; returns for each request its answer, or the error that refuses it."""
        outcomes: list[Any] = [None] * len(requests)
        now_ms = self._last_ms = max(self.now_ms, self._last_ms)
        reports, self._untaken = [*self._untaken, *events], []
        if self.engine is None and not self._reopened(now_ms):
            assert self.fault is not None
            self._keep(reports)
            down = unavailable(self.fault)
            return [request.answer(self) if getattr(request, "always", False) else down for request in requests]
        self.stage = Stage()
        if self._force_policy is not None and self._force_policy != self.policy_name:
            self.stage.policy = self._force_policy
            self.stage.events.append(ev.PolicyChanged())
        refused: set[int] = set()
        for k, request in enumerate(requests):
            mark = self.stage.mark()
            try:
                request.prepare(self)
            except Exception as error:
                self.stage.rewind(mark)
                outcomes[k] = self._refusal(error, request)
                refused.add(k)
        try:
            self._advance(now_ms, [*reports, *self.stage.events])
        except StoreError as error:
            self.refused_commit = error
            self._failed(error, now_ms)
            self._keep(reports)
            for k, request in enumerate(requests):
                if k not in refused and request.changes:
                    outcomes[k] = unavailable(error)
                    refused.add(k)
        except Exception as error:
            if not reports and not requests:
                raise  # nobody is to blame but the engine
            self._failed(StoreError(f"the engine failed: {error}"), now_ms)
            return self._in_parts(requests, reports, error)
        for k, request in enumerate(requests):
            if k not in refused:
                try:
                    outcomes[k] = request.answer(self)
                except Exception as error:
                    outcomes[k] = self._refusal(error, request)
        self._keep_house(now_ms)
        return outcomes

    def _refusal(self, error: Exception, request: Request[Any]) -> TrainmasterError:
        """What the asker is told; of what we did not foresee only that it happened."""
        if isinstance(error, TrainmasterError):
            return error
        self.set_aside(f"request {type(request).__name__}", None, error)
        return TrainmasterError("the service could not carry this request out; its log says why")

    def _in_parts(self, requests: Sequence[Request[Any]], reports: Sequence[ev.Event], error: Exception) -> list[Any]:
        """Some part of a batch made the engine fail: find it, and take the rest."""
        if requests and reports:
            self.batch((), reports)
            return self.batch(requests)
        half = (len(requests) + len(reports)) // 2
        if half:
            outcomes = self.batch(requests[:half], reports[:half])
            return outcomes + self.batch(requests[half:], reports[half:])
        for report in reports:  # what it told is learned from the next inventory, if it was so
            self.set_aside(f"report {type(report).__name__}", getattr(report, "job_id", None), error)
        return [self._refusal(error, request) for request in requests]

    def set_aside(self, what: str, job_id: str | None, error: Exception) -> None:
        """Something failed in a way that nobody foresaw: count it, log it, and tell it with the next commit."""
        self.tally.set_aside += 1
        log.error("set aside: %s of %s", what, job_id, exc_info=error)
        text = f"{what} was set aside: {type(error).__name__}; the log of the service says more"
        self.tally.untold.append((job_id, text if job_id is None else f"{job_id}: {text}"))

    def _alone(self, what: str, call: Callable[..., object], *values: Any, job_id: str | None = None) -> None:
        """Call what nothing else rests on."""
        try:
            call(*values)
        except Exception as error:
            self.set_aside(what, job_id, error)

    def _advance(self, now_ms: int, events: list[ev.Event]) -> None:
        engine, stage = self.live, self.stage
        probe = self.refused_commit is not None and now_ms >= self._pause_ms  # does the store take commits again?
        idle = not events and not stage.answers and not self.tally.untold and not probe
        if idle and min(engine.next_wake_ms, self.watch.next_ms) > now_ms:
            return
        events += self.watch.declared(engine, events)
        journal = Journal(engine, now_ms)
        journal.before(events)
        untold = [*self.tally.untold]
        for job_id, text in untold:
            journal.add("set-aside", job_id, text)
        if stage.policy is not None:
            journal.add("policy", None, f"policy is now {stage.policy} (was {self.policy_name})", policy=stage.policy)
            engine.policy = self._policy(stage.policy)
            self.policy_name = stage.policy
        self.next_job += stage.n_jobs
        self.watch.reports.take(engine, now_ms, events)
        halts = self.watch.look(engine, now_ms, journal)
        journal.before(halts)
        commands = engine.step(now_ms, *events, *halts)
        ended = engine.drain_ended()
        notes, engine.notes = engine.notes, []
        journal.after(commands, ended, notes)
        self.deadline_answers.tell(engine, journal)
        self.exits.update(journal.exits)
        self.outputs.update(journal.outputs)
        if self.live_forecasts is not None:
            self._alone("forecast", self.live_forecasts.stepped, now_ms, events, commands, ended, self.cluster.types)
        self._alone("experience", self.experience.stepped, engine, commands, ended)
        commit = self._commit(journal, ended)
        self.store.commit(commit)
        self.refused_commit = None
        del self.tally.untold[: len(untold)]
        self._force_policy = None
        for end in ended:
            self.exits.pop(end.spec.id, None)
            self.outputs.pop(end.spec.id, None)
        self.watch.reports.forget(ended)
        self.log_number += len(journal.entries)
        if events or halts:
            self.watch.stir(now_ms)
        self._count(events, commands, ended)
        if journal.entries:
            self._alone("event log", self.listeners.told, journal.entries)
        self._alone("commit", self.listeners.committed, commit)
        self._dispatch(commands)

    def _commit(self, journal: Journal, ended: list[Ended]) -> Commit:
        commit = self.recorder.changes(ended)
        lived: dict[str, Any] = {}
        self._alone("experience", lambda: lived.update(self.experience.documents(self.live, self.policy_name)))
        over = {end.spec.id for end in ended}
        for job_id, record in commit.ended.items():
            record["service"] = {"exit": self.exits.get(job_id), "output": self.outputs.get(job_id, "")}
        facts = {
            "epoch_ms": self.time.epochs[0][1],
            "epochs": self.time.epochs,
            "unseen_ms": self.time.unseen_ms,
            "clock_doubt_ms": 0 if self.stage.clock_confirmed else self.time.doubt_ms,
            "policy": self.policy_name,
            "policy_option": self._policy_option,
            "next_job": self.next_job,
            "experience": self.experience.number,
            "shape": self._shape(),
            "exits": {job_id: how for job_id, how in sorted(self.exits.items()) if job_id not in over},
            "outputs": {job_id: text for job_id, text in sorted(self.outputs.items()) if text and job_id not in over},
        }
        meta = {**commit.meta, "service": facts}
        learned = {} if self.live_forecasts is None else self.live_forecasts.documents(self.live.now_ms)
        documents = {**learned, **lived}
        return replace(commit, meta=meta, log=journal.entries, requests=self.stage.answers, documents=documents)

    def _shape(self) -> list[list[Any]]:
        """What the store is told of the nodes; they are thousands, and mostly the same as at the last commit."""
        if self._shaped is None or self._shaped[0] is not self.cluster:
            self._shaped = (self.cluster, shape_of(self.cluster))
        return self._shaped[1]

    def _dispatch(self, commands: Iterable[Command]) -> None:
        """One that the backend fails at is sent again like one without an answer."""
        for command in commands:
            self._alone(f"command {type(command).__name__}", self.backend.perform, command, job_id=command.job_id)

    def _count(self, events: Sequence[ev.Event], commands: Sequence[Command], ended: Sequence[Ended]) -> None:
        tally = self.tally
        tally.batches += 1
        tally.events += len(events)
        tally.submitted += sum(isinstance(event, ev.JobSubmitted) for event in events)
        for command in commands:
            kind = type(command).__name__.lower()
            tally.commands[kind] = tally.commands.get(kind, 0) + 1
        for end in ended:
            state = end.phase.name.lower()
            tally.ended[state] = tally.ended.get(state, 0) + 1

    # -- faults and upkeep ---------------------------------------------------------------------------

    def _failed(self, error: StoreError, now_ms: int) -> None:
        """Keep nothing of the step that could not be committed."""
        self.tally.store_faults += 1
        self.engine = None
        self.fault = error
        self._retry_ms = self._pause_ms = now_ms + RETRY_MS
        self._reopened(now_ms, at_once=True)

    def _keep(self, reports: Iterable[ev.Event]) -> None:
        """Take them again with the next batch; to hear them twice does no harm. What is measured is soon out of date,
        and an inventory is asked for anew."""
        self._untaken += [report for report in reports if not isinstance(report, ev.Progressed | ev.Inventory)]

    def _reopened(self, now_ms: int, at_once: bool = False) -> bool:
        if not at_once and now_ms < self._retry_ms:
            return False
        try:
            self.open()
        except StoreError as error:
            self.fault = error
            self._retry_ms = now_ms + RETRY_MS
            return False
        return True

    def _keep_house(self, now_ms: int) -> None:
        if self.engine is None:
            return
        if now_ms >= self.next_observe_ms:
            self.next_observe_ms = now_ms + OBSERVE_MS
            self._alone("inventory", self.backend.observe)
            if jump_ms := self.time.follow_wall_clock():
                log.warning("the wall clock was set by %+.0f s; jobs and history are counted as before", jump_ms / 1000)
        if self.live_forecasts is not None:
            self._alone("forecast", self.live_forecasts.wake, now_ms)
            self._alone("forecast", self.live_forecasts.look_ahead, self, now_ms)
        if now_ms >= self.next_prune_ms:
            self.next_prune_ms = now_ms + PRUNE_MS
            keep = self.retention
            try:
                age_ms = int(keep.days * DAY_MS) + self.time.unseen_ms
                oldest_ms = 0 if self.time.doubt_ms else now_ms - age_ms
                gone = self.store.prune(oldest_ms, keep.ended_jobs, keep.log_lines)
                self.listeners.forgotten(gone)
            except StoreError:
                self.tally.store_faults += 1  # tried again in an hour; nothing depends on it

"""One possible future of a situation: the real engine and policy against a simulated backend that takes over
what runs now.

Policies see what they would see live. How fast jobs really are, and how much work those have that do not say,
is drawn by the seed from what is believed of them; seed 0 draws nothing and takes the middle of every belief.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from statistics import NormalDist

from trainmaster.engine import queries
from trainmaster.engine.core import Engine
from trainmaster.engine.image import restore
from trainmaster.engine.ports import Estimator
from trainmaster.engine.records import Ended
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.foresight.beyond import Span, expected
from trainmaster.foresight.situation import UNKNOWN_WORK, Belief, Situation
from trainmaster.model import event as ev
from trainmaster.model.command import Command, Launch
from trainmaster.model.job import JobId, JobSpec, Phase
from trainmaster.model.policy import Policy
from trainmaster.model.stable_hash import stable_hash
from trainmaster.model.units import NEVER_MS
from trainmaster.policies.registry import create
from trainmaster.sim.backend import SimulatedBackend
from trainmaster.sim.truth import Truth, TruthOptions

MAX_STEPS = 200_000
MAX_IDLE_WAKES = 10_000


@dataclass
class Future:
    """When jobs first run and end. Jobs that are neither (paused, or waiting for something that does not come)
    are in `left`. `expected`: jobs beyond the horizon, see `beyond`."""

    now_ms: int
    started_ms: dict[str, int] = field(default_factory=dict)
    ended: list[Ended] = field(default_factory=list)
    expected: dict[str, Span] = field(default_factory=dict)
    left: tuple[str, ...] = ()
    decisions: int = 0
    lost_gpu_s: float = 0.0


def roll(
    situation: Situation,
    seed: int = 0,
    events: tuple[ev.Event, ...] = (),
    policy: Policy | None = None,
    estimator: Estimator | None = None,
    decisions_max: int | None = None,
) -> Future:
    """Go on until every job that can end has ended. `events` happen at once; a node that one of them says to be
    lost is really gone. After `decisions_max` decisions the rest is estimated."""
    policy = policy or create(situation.policy)
    settings = replace(
        situation.settings, resend_ms=NEVER_MS // 2, restart_cost_ms=situation.costs.restart_ms,
        resize_cost_ms=situation.costs.resize_ms,
    )  # fmt: skip
    engine = restore(situation.image, situation.cluster, policy, estimator or DeclaredSpeeds(), settings)
    truths = _Truths(situation, engine, seed)
    backend = _take_over(situation, engine, truths)
    future = Future(situation.now_ms)
    active = {*queries.active_ids(engine), *(event.spec.id for event in events if isinstance(event, ev.JobSubmitted))}
    waited_for = set(active)
    last_decision = math.inf if decisions_max is None else engine.decisions + decisions_max
    now_ms = max(situation.now_ms, engine.now_ms)
    backend.now_ms = now_ms
    for command in engine.pending_commands():
        backend.perform(truths.of(command))
    for event in events:
        if isinstance(event, ev.NodeLost):
            backend.power_off(event.node)
    idle = 0
    upcoming_events: list[ev.Event] = [*events, ev.Woken()]
    newcomers = situation.arrivals.draw(now_ms, seed)[::-1]
    for _ in range(MAX_STEPS):
        while newcomers and newcomers[-1].submit_ms <= now_ms:
            upcoming_events.append(ev.JobSubmitted(newcomers.pop()))
        arrived = backend.advance(now_ms)
        for event in arrived:
            if isinstance(event, ev.Started) and event.job_id in active:
                future.started_ms.setdefault(event.job_id, now_ms)
        if arrived or upcoming_events or engine.next_wake_ms <= now_ms:
            idle = 0 if arrived or upcoming_events else idle + 1
            for command in engine.step(now_ms, *upcoming_events, *arrived):
                backend.perform(truths.of(command))
            upcoming_events = []
            ended = engine.drain_ended()
            future.ended += ended
            waited_for.difference_update(end.spec.id for end in ended)
            if (ended or idle) and _nobody_waits(engine, waited_for):
                break
            if engine.decisions >= last_decision:
                future.expected = expected(situation, engine, backend, waited_for, seed)
                waited_for -= future.expected.keys()
                break
        # else an incarnation has ended that was stopped before: nobody hears of it
        next_ms = min(backend.next_ms, engine.next_wake_ms, newcomers[-1].submit_ms if newcomers else NEVER_MS)
        if next_ms >= NEVER_MS // 4 or idle > MAX_IDLE_WAKES:
            break
        now_ms = max(now_ms, next_ms)
    future.ended = [end for end in future.ended if end.spec.id in active]
    future.left = tuple(sorted(job_id for job_id in waited_for if queries.is_active(engine, job_id)))
    future.decisions = engine.decisions
    future.lost_gpu_s = backend.lost_gpu_s
    return future


def _nobody_waits(engine: Engine, left: Set[JobId]) -> bool:
    """Whether all that are asked about and have not ended are paused."""
    return all(queries.phase_of(engine, job_id) in (None, Phase.PAUSED) for job_id in left)


def _take_over(situation: Situation, engine: Engine, truths: _Truths) -> SimulatedBackend:
    """A backend in which everything runs that runs now, as far as it has come."""
    costs, cluster = situation.costs, situation.cluster
    options = TruthOptions(
        restart_cost_ms=max(0, costs.restart_ms - costs.launch_ms), resize_cost_ms=costs.resize_ms,
        launch_ms=costs.launch_ms, stop_ms=costs.stop_ms, exit_ms=costs.exit_ms,
    )  # fmt: skip
    backend = SimulatedBackend(cluster, Truth(cluster, options, 0), situation.settings.lease)
    backend.now_ms = now_ms = max(situation.now_ms, engine.now_ms)
    for node in range(len(cluster.nodes)):
        if not queries.is_node_up(engine, node):
            backend.core.set_power(node, False)
    for job in queries.job_states(engine, queries.active_ids(engine), now_ms):
        job_id, generation, productive_ms = job.spec.id, job.generation, job.productive_ms
        begun_ms, work = situation.starting.get(job_id, (None, job.work_recorded))
        backend.remember(job_id, generation - (job.phase == Phase.LAUNCHING), work)
        if job.phase in (Phase.RUNNING, Phase.RESIZING, Phase.STOPPING) and job.occupied is not None:
            if begun_ms is None:
                work = job.work_done
            else:  # estimated progress has not been reported yet
                productive_ms = begun_ms + (costs.launch_ms if generation == 1 else costs.restart_ms)
            # A resize under way has an answer to come: until then it is where it was.
            allocation = job.allocation if job.phase == Phase.RUNNING else job.occupied
            assert allocation is not None
            backend.adopt(truths.spec(job_id), generation, allocation, work, max(now_ms, productive_ms))
    return backend


class _Truths:
    """The jobs as this future has them; the engine's own specs stay as they were submitted. A job is drawn when it is
    first needed: most of a long queue is not."""

    def __init__(self, situation: Situation, engine: Engine, seed: int) -> None:
        self._situation = situation
        self._engine = engine
        self._seed = seed
        self._specs: dict[JobId, JobSpec] = {}

    def spec(self, job_id: JobId) -> JobSpec:
        if job_id not in self._specs:
            engine = self._engine
            (job,) = queries.job_states(engine, [job_id], max(engine.now_ms, self._situation.now_ms))
            here, spread = queries.speeds_of(engine, job_id), queries.speeds_of(engine, job_id, spread=True)
            self._specs[job_id] = self._draw(job.spec, here, spread, job.work_done)
        return self._specs[job_id]

    def of(self, command: Command) -> Command:
        return replace(command, spec=self.spec(command.job_id)) if isinstance(command, Launch) else command

    def _draw(self, spec: JobSpec, here: Mapping[str, float], spread: Mapping[str, float], work_done: float) -> JobSpec:
        belief = self._situation.belief(spec.id)
        slower, percentile = 0.0, 0.5
        if self._seed:
            # One stream per (seed, job): a job's luck does not depend on who else is there.
            rng = random.Random(stable_hash(spec.id) << 32 | self._seed)
            slower, percentile = rng.gauss(), rng.uniform(0.01, 0.99)
        factor = math.exp(slower * belief.sigma)
        work = spec.work_total
        if work is None:
            fastest = max(here.values(), default=1.0) or 1.0
            work = _more_work(belief, work_done, fastest, percentile)
        return replace(
            spec,
            steps_per_s={name: speed * factor for name, speed in here.items() if speed > 0},
            steps_per_s_spread={name: speed * factor for name, speed in spread.items() if speed > 0},
            work_total=max(work, work_done * (1 + 1e-9)),
        )


def _more_work(belief: Belief, done: float, speed: float, percentile: float) -> float:
    """The amount in all, drawn from the log-normal belief given that `done` was not all of it."""
    median, sigma = belief.work or (UNKNOWN_WORK[0] * speed, UNKNOWN_WORK[1])
    normal = NormalDist(math.log(max(median, 1e-9)), max(sigma, 1e-3))
    below = normal.cdf(math.log(done)) if done > 0 else 0.0
    if below > 0.999:  # beyond anything seen: as much again, more or less
        return done * (1.0 + percentile)
    return math.exp(normal.inv_cdf(min(below + (1.0 - below) * percentile, 1 - 1e-9)))

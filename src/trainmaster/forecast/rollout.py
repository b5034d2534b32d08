"""One possible future of a situation: the real engine and policy against a simulated backend that takes over
what runs now.

Policies see what they would see live. How fast jobs really are, and how much work those have that do not say,
is drawn by the seed from what is believed of them (`worlds`).
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field, replace

import numpy as np

from trainmaster.core.engine.decision_pass import Pass
from trainmaster.core.int_list import IntList
from trainmaster.core.sim.run_codes import OVER, PAUSED_RUN, RESTLESS
from trainmaster.engine import queries
from trainmaster.engine.engine import HANDLERS
from trainmaster.engine.fork import fork
from trainmaster.engine.persistence import restore
from trainmaster.engine.ports import Estimator
from trainmaster.engine.records import Ended
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.forecast.limits import FutureLimits, is_limited
from trainmaster.forecast.queue_tail import Span, expected
from trainmaster.forecast.situation import Situation
from trainmaster.forecast.worlds import Believed
from trainmaster.model import event as ev
from trainmaster.model.capacity.packed_allocation import packed_list
from trainmaster.model.job import JobId, JobSpec, PhaseCode
from trainmaster.model.policy import Policy, pass_of, traits_of
from trainmaster.model.units import NEVER_MS
from trainmaster.policies.registry import create
from trainmaster.sim.backend import SimulatedBackend
from trainmaster.sim.drive import Drive
from trainmaster.sim.job_columns import Coming, enter_world
from trainmaster.sim.job_list import JobList
from trainmaster.sim.truth import Truth, TruthOptions

MAX_DECISIONS = 200_000
MAX_IDLE_WAKES = 10_000
MAX_STEPS_AT_ONCE = 10_000


@dataclass
class Future:
    """When jobs first run and end. Jobs that are neither (paused, or waiting for something that does not come)
    are in `left`. `expected`: jobs beyond the horizon, see `queue_tail`. `halted`: which limit ended a job."""

    now_ms: int
    started_ms: dict[str, int] = field(default_factory=dict)
    ended: list[Ended] = field(default_factory=list)
    expected: dict[str, Span] = field(default_factory=dict)
    left: tuple[str, ...] = ()
    halted: dict[str, str] = field(default_factory=dict)
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
    return Opening(situation, events, policy, estimator).roll(seed, decisions_max)


class Opening:
    """Where all futures of a situation begin: the engine is restored once, each future goes on with a copy."""

    def __init__(
        self,
        situation: Situation,
        events: tuple[ev.Event, ...] = (),
        policy: Policy | None = None,
        estimator: Estimator | None = None,
    ) -> None:
        settings = replace(
            situation.settings,
            resend_ms=NEVER_MS // 2,
            restart_cost_ms=situation.costs.restart_ms,
            resize_cost_ms=situation.costs.resize_ms,
        )
        self.situation, self.policy = situation, policy or create(situation.policy)
        self.estimator = estimator or DeclaredSpeeds()
        self.engine = restore(situation.stored_state, situation.cluster, self.policy, self.estimator, settings)
        self.now_ms = max(situation.now_ms, self.engine.now_ms)
        self.submitted = [event.spec for event in events if isinstance(event, ev.JobSubmitted)]
        self.events = [event for event in events if not isinstance(event, ev.JobSubmitted | ev.PolicyChanged)]
        if any(isinstance(event, ev.PolicyChanged) for event in events):
            HANDLERS[ev.PolicyChanged](self.engine, ev.PolicyChanged())
        self.jobs = queries.active_jobs(self.engine, self.now_ms)
        beliefs = [situation.belief(spec.id) for spec in self.jobs.specs]
        self.believed = Believed(self.jobs.specs, beliefs, self.jobs.speeds, self.jobs.work_done)
        self.attempts = self._attempts()

    def roll(self, seed: int = 0, decisions_max: int | None = None) -> Future:
        drive = self._drive(seed)
        engine, loop, backend = drive.engine, drive.loop, drive.backend
        loop.until_decided = engine.decisions + (MAX_DECISIONS if decisions_max is None else decisions_max)
        active: set[JobId] = {spec.id for spec in (*self.jobs.specs, *self.submitted)}
        limits = FutureLimits(drive, drive.jobs)
        ended, waited_for = self._go(drive, active, limits)
        future = Future(self.situation.now_ms, ended=[end for end in ended if end.spec.id in active])
        future.started_ms = {end.spec.id: end.first_start_ms for end in future.ended if end.first_start_ms >= 0}
        future.started_ms |= {key: at for key, at in queries.first_starts_ms(engine).items() if key in waited_for}
        if decisions_max is not None and engine.decisions >= loop.until_decided:
            future.expected = expected(self.situation, drive, waited_for, seed)
        future.left = tuple(sorted(waited_for - future.expected.keys()))
        future.halted = limits.halted
        future.decisions, future.lost_gpu_s = engine.decisions, backend.lost_gpu_s
        return future

    def _go(self, drive: Drive, active: Set[JobId], limits: FutureLimits) -> tuple[list[Ended], set[JobId]]:
        """Until nobody of `active` waits for an end, or as far as the loop goes; also who still waits for one."""
        engine, loop = drive.engine, drive.loop
        ended: list[Ended] = []
        paused = {
            spec.id for spec, phase in zip(self.jobs.specs, self.jobs.phases, strict=True) if phase == PhaseCode.PAUSED
        }
        waited_for = set(active)
        loop.until_over = len(waited_for - paused)
        while True:
            code = loop.go()
            if code not in (OVER, RESTLESS, PAUSED_RUN):
                limits.serve(code)
                drive.serve(code)
                continue
            ended = [*ended, *engine.drain_ended()] if engine.named else drive.over().objects()
            waited_for = set(active).difference(end.spec.id for end in ended)
            left = len(waited_for - paused)
            if code != PAUSED_RUN or not left or engine.decisions >= loop.until_decided:
                return ended, waited_for
            loop.until_over = engine.n_over + left

    def _drive(self, seed: int) -> Drive:
        """An engine and a world at the beginning of a future."""
        newcomers = [*self.submitted, *self.situation.arrivals.draw(self.now_ms, seed)]
        jobs = JobList.of([*newcomers, *self.jobs.specs])
        engine = fork(self.engine, len(jobs))
        decision = self._pass(newcomers)
        engine.named = decision is None or self._need_names(newcomers)
        coming = Coming(JobList.of(newcomers), engine, engine.named)
        backend = self._world(jobs, newcomers, seed)
        drive = Drive(engine, backend, jobs, coming.arrivals, decision)
        drive.loop.steps_at_once_max, drive.loop.idle_max = MAX_STEPS_AT_ONCE, MAX_IDLE_WAKES
        for event in self.events:
            if isinstance(event, ev.NodeLost):
                backend.power_off(event.node)
        drive.resume(self.now_ms, (*self.events, ev.Woken()))
        return drive

    def _pass(self, newcomers: list[JobSpec]) -> Pass | None:
        if queries.may_hold_back(self.engine) or any(spec.after for spec in newcomers):
            return None  # a pass sees all jobs
        changed = [e.priority for e in self.events if isinstance(e, ev.JobTermsChanged) and e.priority is not None]
        priorities = {*changed, *(spec.priority for spec in (*newcomers, *self.jobs.specs))}
        if queries.decides_in_bands(self.engine, priorities):
            return None  # and all as one band
        fills = self.engine.settings.elastic_fill and traits_of(self.policy).fixed_sizes
        if any(is_limited(spec) or (fills and spec.elastic) for spec in (*newcomers, *self.jobs.specs)):
            return None  # it would stop nobody at a limit, and stop gangs that may shrink
        return pass_of(self.policy)

    def _need_names(self, newcomers: list[JobSpec]) -> bool:
        """Whether jobs are spoken of by name although a compiled pass decides."""
        if self.events or queries.lost_members(self.engine) or hasattr(self.estimator, "observe"):
            return True
        late = any(spec.submit_ms > self.now_ms for spec in self.submitted)
        ids = {spec.id for spec in newcomers}
        return late or len(ids) < len(newcomers) or any(queries.was_submitted(self.engine, job_id) for job_id in ids)

    def _world(self, all_jobs: JobList, newcomers: list[JobSpec], seed: int) -> SimulatedBackend:
        """A backend in which everything runs that runs now, as far as it has come."""
        situation, costs, cluster, n_new = self.situation, self.situation.costs, self.situation.cluster, len(newcomers)
        options = TruthOptions(
            restart_cost_ms=max(0, costs.restart_ms - costs.launch_ms),
            resize_cost_ms=costs.resize_ms,
            launch_ms=costs.launch_ms,
            stop_ms=costs.stop_ms,
            exit_ms=costs.exit_ms,
        )
        backend = SimulatedBackend(cluster, Truth(cluster, options, 0), situation.settings.lease)
        rates, work = self.believed.draw(seed)
        if newcomers:
            speeds = np.array([np.hstack(self.estimator.profile(spec, cluster.types)) for spec in newcomers])
            beliefs = [situation.belief(spec.id) for spec in newcomers]
            new_rates, new_work = Believed(newcomers, beliefs, speeds, np.zeros(n_new)).draw(seed)
            rates, work = np.vstack([new_rates, rates]), np.concatenate([new_work, work])
        enter_world(backend, all_jobs, work, rates)
        core, jobs = backend.core, self.jobs
        for node in range(len(cluster.nodes)):
            if not queries.is_node_up(self.engine, node):
                core.set_power(node, False)
        core.now_ms = self.now_ms
        for k, index in enumerate(jobs.indices):
            core.arrived(index, n_new + k)
        active = slice(n_new, len(all_jobs))
        launching = np.array(jobs.phases, np.int64) == PhaseCode.LAUNCHING
        np.asarray(core.jobs.generation)[active] = np.array(jobs.generations, np.int64) - launching
        np.asarray(core.jobs.saved)[active] = self.saved
        for k, generation, gang, work_done, productive_ms in self.attempts:
            core.adopt(n_new + k, generation, gang, 0, work_done, productive_ms)
        return backend

    def _attempts(self) -> list[tuple[int, int, IntList, float, int]]:
        """Attempts that run now: place of the job among the active ones, generation, gang, work, productive from."""
        jobs, starting, costs = self.jobs, self.situation.starting, self.situation.costs
        self.saved = [
            starting[spec.id][1] if spec.id in starting else work
            for spec, work in zip(jobs.specs, jobs.work_recorded.tolist(), strict=True)
        ]
        places = [
            k
            for k, phase in enumerate(jobs.phases)
            if phase in (PhaseCode.RUNNING, PhaseCode.RESIZING, PhaseCode.STOPPING)
        ]
        found = []
        states = queries.job_states(self.engine, [jobs.specs[k].id for k in places], self.now_ms)
        for k, job in zip(places, states, strict=True):
            if job.occupied is None:
                continue
            begun_ms, work = starting.get(job.spec.id, (None, job.work_done))
            productive_ms = job.productive_ms
            if begun_ms is not None:  # estimated progress has not been reported yet
                productive_ms = begun_ms + (costs.launch_ms if job.generation == 1 else costs.restart_ms)
            # A resize under way has an answer to come: until then it is where it was.
            allocation = job.allocation if job.phase == PhaseCode.RUNNING else job.occupied
            assert allocation is not None
            found.append((k, job.generation, packed_list(allocation), work, max(self.now_ms, productive_ms)))
        return found

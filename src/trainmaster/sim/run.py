"""One simulated run: a list of jobs, a cluster, a policy; event to event until every job is accounted for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from trainmaster.core.sim.run_codes import DECIDE, FAIL_NODES, HEARD, OVER, PAUSED_RUN, RESTLESS, SENT
from trainmaster.engine.deciding import priority_bands
from trainmaster.engine.engine import Ended, Engine, Settings
from trainmaster.engine.ports import Estimator
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.estimate.pairs import PairSlowdowns
from trainmaster.model import event as ev
from trainmaster.model.cluster import Cluster, counting_only_gpus
from trainmaster.model.errors import TrainmasterError
from trainmaster.model.job import JobSpec, Phase
from trainmaster.model.placement import Strategy
from trainmaster.model.policy import Policy, pass_of
from trainmaster.model.units import MS_PER_S, NEVER_MS
from trainmaster.sim.backend import SimulatedBackend
from trainmaster.sim.drive import Drive
from trainmaster.sim.ended_jobs import EndedJobs
from trainmaster.sim.history import AllocationHistory
from trainmaster.sim.job_columns import Coming, enter_world, true_rates
from trainmaster.sim.job_list import JobList
from trainmaster.sim.truth import Truth, TruthOptions

MAX_STEPS_AT_ONCE = 10_000
"""Steps at one and the same moment after which a run is stuck: plans are carried out and nothing comes of it."""
MAX_IDLE_WAKES = 100_000
PROGRESS_EVERY = 64
"""Jobs that end between two calls of a progress function."""


class Unaccounted(TrainmasterError):
    """A run in which jobs are missing at the end: never a result, always a fault."""


@dataclass
class RunResult:
    """What happened, as columns; metrics are computed from it."""

    over: EndedJobs
    cluster: Cluster
    truth: TruthOptions
    settings: Settings
    end_ms: int
    decisions: int
    events: int
    lost_gpu_s: float
    cpu_s: float
    wall_s: float
    decide_cpu_s: float
    solver_cpu_s: float
    """Of that, on allocations by optimisation."""
    notes: list[str]
    plans_refused: int
    timeline: list[tuple[int, float, int, int]] = field(default_factory=list)
    """(ms, GPUs in use, jobs running, jobs waiting) at each change, when asked for."""
    history: AllocationHistory | None = None
    """Who held which device when, when asked for."""

    @cached_property
    def ended(self) -> list[Ended]:
        """The last word on each job, in the order of its end."""
        return self.over.objects()


Progress = Callable[[int, int, int], None]
"""Called now and then with (jobs over, jobs in all, virtual ms)."""


def simulate(
    specs: Sequence[JobSpec],
    cluster: Cluster,
    policy: Policy,
    settings: Settings | None = None,
    truth: TruthOptions | None = None,
    estimator: Estimator | None = None,
    pairs: PairSlowdowns | None = None,
    progress: Progress | None = None,
    record_timeline: bool = False,
    record_history: bool = False,
) -> RunResult:
    """Run to the end; `pairs` is how jobs really fare on shared devices.

    Raises `Unaccounted` unless every job has finished, failed or been rejected.
    """
    settings = settings or Settings()
    truth = truth or TruthOptions()
    if settings.placement == Strategy.COUNT:
        cluster = counting_only_gpus(cluster)
    settings = replace(
        settings,
        resend_ms=NEVER_MS // 2,
        restart_cost_ms=truth.restart_cost_ms,
        resize_cost_ms=truth.resize_cost_ms,
    )
    solver = getattr(policy, "solver_time", None)
    solver_begin_s = solver.measure(time.process_time) if solver is not None else 0.0
    wall_begin, cpu_begin = time.perf_counter(), time.process_time()
    run = _Run(
        JobList.of(specs), cluster, policy, settings, truth, estimator or DeclaredSpeeds(truth.spread_penalty), pairs
    )
    timeline: list[tuple[int, float, int, int]] | None = [] if record_timeline else None
    history = AllocationHistory(cluster) if record_history else None
    run.go(progress, timeline, history)
    engine, over = run.engine, run.drive.over()
    _account(over, engine)
    cpu_s, wall_s = time.process_time() - cpu_begin, time.perf_counter() - wall_begin
    result = RunResult(
        over=over,
        cluster=cluster,
        truth=truth,
        settings=settings,
        end_ms=run.loop.now_ms,
        decisions=engine.decisions,
        events=run.loop.events,
        lost_gpu_s=run.backend.lost_gpu_s,
        cpu_s=cpu_s,
        wall_s=wall_s,
        decide_cpu_s=engine.decide_cpu_s * min(1.0, cpu_s / wall_s) if wall_s > 0 else 0.0,
        solver_cpu_s=solver.spent_s - solver_begin_s if solver is not None else 0.0,
        notes=engine.notes,
        plans_refused=engine.plans_refused,
    )
    result.timeline, result.history = timeline or [], history
    return result


class _Run:
    """A world, an engine, and what drives them; here is what is watched."""

    def __init__(
        self,
        jobs: JobList,
        cluster: Cluster,
        policy: Policy,
        settings: Settings,
        truth: TruthOptions,
        estimator: Estimator,
        pairs: PairSlowdowns | None,
    ) -> None:
        self.jobs = jobs
        self.backend = SimulatedBackend(cluster, Truth(cluster, truth, settings.seed, pairs), settings.lease)
        self.engine = engine = Engine(cluster, policy, estimator, settings)
        engine._decide_clock = time.perf_counter  # cheap to read; scaled to CPU time at the end
        gated = any(spec.after for spec in jobs.templates)
        in_bands = priority_bands.several(policy, (spec.priority for spec in jobs.templates))
        decision = None if gated or in_bands else pass_of(policy)  # a pass sees all jobs, as one band
        engine.named = decision is None or _need_names(jobs, truth, estimator)
        self.coming = Coming(jobs, engine, engine.named)
        enter_world(self.backend, jobs, jobs.work_total, true_rates(jobs, self.backend.truth))
        self.failures = _NodeFailures(cluster, truth, settings.seed)
        self.drive = Drive(engine, self.backend, jobs, self.coming.arrivals, decision)
        self.loop = self.drive.loop
        if decision is not None and not hasattr(estimator, "observe"):  # else speeds of jobs that wait may change
            decision.follow(engine.columns)
        self.loop.failure_ms = self.failures.next_ms
        self.loop.steps_at_once_max, self.loop.idle_max = MAX_STEPS_AT_ONCE, MAX_IDLE_WAKES

    def go(
        self,
        progress: Progress | None,
        timeline: list[tuple[int, float, int, int]] | None,
        history: AllocationHistory | None,
    ) -> None:
        """Run to the end."""
        engine, loop, total = self.engine, self.loop, len(self.jobs)
        loop.watched = timeline is not None or history is not None
        loop.until_over = PROGRESS_EVERY if progress is not None else NEVER_MS
        while True:
            begun = time.perf_counter()
            code = loop.go()
            if loop.decision is not None:
                engine.decide_cpu_s += time.perf_counter() - begun
            if code == OVER:
                break
            if code == RESTLESS:
                at_s = loop.now_ms / MS_PER_S
                engine.notes.append(f"the policy does not come to rest at {at_s:g} s: it stops and starts")
                break
            if code == PAUSED_RUN and progress is not None:
                loop.until_over = engine.n_over + PROGRESS_EVERY
                progress(engine.n_over, total, loop.now_ms)
            elif code == HEARD and history is not None:
                history.reported(loop.now_ms, self._reports())
            elif code == SENT:
                if history is not None:
                    for command in engine.commands_so_far():
                        history.commanded(loop.now_ms, command)
                if timeline is not None:
                    timeline.append(_sample(engine, loop.now_ms))
            elif code == FAIL_NODES:
                self.failures.act(self.backend, loop.now_ms)
                loop.failure_ms = self.failures.next_ms
            else:
                if code == DECIDE and not engine.named:
                    self.coming.name_teams(engine)
                self.drive.serve(code)
        if progress is not None:
            progress(engine.n_over, total, loop.now_ms)

    def _reports(self) -> list[ev.Event]:
        arrivals = self.coming.arrivals
        events = [self.drive.report(k) for k in range(self.backend.core.reports.n)]
        number = arrivals.next
        while number < arrivals.n and self.jobs[number].submit_ms <= self.loop.now_ms:
            events.append(ev.JobSubmitted(self.jobs[number]))
            number += 1
        return events


def _need_names(jobs: JobList, truth: TruthOptions, estimator: Estimator) -> bool:
    """Whether jobs are spoken of by name although a compiled pass decides: they wait for others, an estimator learns of
    each, or losses are told. Else numbers will do."""
    if hasattr(estimator, "observe") or truth.loss_period_ms:
        return True
    return any(spec.after for spec in jobs.templates) or jobs.ids.is_duplicated().any()


def _sample(engine: Engine, now_ms: int) -> tuple[int, float, int, int]:
    columns = engine.columns
    workers = columns.ints["workers"][columns.rows]
    held = columns.ints["held_gpu_milli"][columns.rows]
    running = int((workers > 0).sum())
    return now_ms, float(held.sum()) / 1000.0, running, len(columns.rows) - running


def _account(over: EndedJobs, engine: Engine) -> None:
    ids = over.jobs.id_list
    if len(over.ints) == len(ids):
        return
    missing = [ids[number] for number in np.setdiff1d(np.arange(len(ids)), over.number).tolist()]
    first = missing[0]
    phase = ""
    columns = engine.columns
    for job_index in columns.rows.tolist():
        if columns.spec(job_index).id == first:
            phase = f" ({first} is {Phase(int(columns.ints['phase'][job_index])).name.lower()})"
    shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
    note = f" Last note: {engine.notes[-1]}." if engine.notes else ""
    raise Unaccounted(f"{len(missing)} of {len(ids)} jobs are not accounted for: {shown}{phase}.{note}")


class _NodeFailures:
    """Outages that are known, or exponential failures and fixed repair, drawn for each node apart."""

    def __init__(self, cluster: Cluster, truth: TruthOptions, seed: int) -> None:
        self.mtbf_ms, self.repair_ms = truth.node_mtbf_ms, max(1, truth.node_repair_ms)
        self.rng = np.random.Generator(np.random.PCG64([seed, 7]))
        self.pending: list[tuple[int, int, int]] = []
        """(when, node, length of the outage that begins, or 0: it ends)."""
        if self.mtbf_ms:
            self.pending += [(self._draw(0), node, self.repair_ms) for node in range(len(cluster.nodes))]
        self.pending = sorted([*self.pending, *((at_ms, node, for_ms) for node, at_ms, for_ms in truth.outages)])

    def _draw(self, after_ms: int) -> int:
        return after_ms + 1 + int(self.rng.exponential(self.mtbf_ms))

    @property
    def next_ms(self) -> int:
        return self.pending[0][0] if self.pending else NEVER_MS

    def act(self, backend: SimulatedBackend, now_ms: int) -> None:
        while self.pending and self.pending[0][0] <= now_ms:
            at_ms, node, lasts_ms = self.pending.pop(0)
            backend.now_ms = max(backend.now_ms, at_ms)
            if lasts_ms:
                backend.power_off(node)
                self.pending.append((at_ms + lasts_ms, node, 0))
            else:
                backend.power_on(node)
                if self.mtbf_ms:
                    self.pending.append((self._draw(at_ms), node, self.repair_ms))
            self.pending.sort()

"""One simulated run: a list of jobs, a cluster, a policy; event to event until every job is accounted for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from trainmaster.engine.core import Ended, Engine, Settings
from trainmaster.engine.ports import Estimator
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.estimate.pairs import PairSlowdowns
from trainmaster.model import event as ev
from trainmaster.model.cluster import Cluster, counting_only_gpus, parse_cluster
from trainmaster.model.errors import TrainmasterError
from trainmaster.model.job import JobId, JobSpec, Phase
from trainmaster.model.placement import Strategy
from trainmaster.model.policy import Policy
from trainmaster.model.units import MS_PER_S, NEVER_MS
from trainmaster.sim.backend import SimulatedBackend
from trainmaster.sim.history import AllocationHistory
from trainmaster.sim.instant import is_instant
from trainmaster.sim.passage import MAX_DECISIONS, Passage
from trainmaster.sim.passage_backend import PassageBackend
from trainmaster.sim.truth import Truth, TruthOptions

MAX_STEPS_AT_ONCE = 10_000
"""Steps at one and the same moment after which a run is stuck: plans are carried out and nothing comes of it."""
MAX_IDLE_WAKES = 100_000


class Unaccounted(TrainmasterError):
    """A run in which jobs are missing at the end: never a result, always a fault."""


@dataclass
class RunResult:
    """What happened, as columns; metrics are computed from it."""

    ended: list[Ended]
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
    notes: list[str]
    plans_refused: int
    timeline: list[tuple[int, float, int, int]] = field(default_factory=list)
    """(ms, GPUs in use, jobs running, jobs waiting) at each change, when asked for."""
    history: AllocationHistory | None = None
    """Who held which device when, when asked for."""


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
    at_once: bool = True,
    passage_decisions: int = MAX_DECISIONS,
) -> RunResult:
    """Run to the end; `pairs` is how jobs really fare on shared devices. `at_once`: where nothing can come in
    between, plans are carried out within a call (`trainmaster.engine.turnover`), and up to `passage_decisions` of
    them in one (`trainmaster.sim.passage`; 0: never). The results are the same.

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
    wall_begin, cpu_begin = time.perf_counter(), time.process_time()
    world_type = SimulatedBackend
    if at_once and not (record_timeline or record_history) and is_instant(truth):  # those want to see every event
        world_type = PassageBackend
    backend = world_type(cluster, Truth(cluster, truth, settings.seed, pairs), settings.lease)
    engine = Engine(cluster, policy, estimator or DeclaredSpeeds(truth.spread_penalty), settings)
    engine._decide_clock = time.perf_counter  # cheap to read; scaled to CPU time at the end
    passage = None
    if isinstance(backend, PassageBackend):
        engine.immediate = backend.answer_at_once()
        passage = Passage.of(engine, backend, specs, passage_decisions) if passage_decisions else None
    failures = _NodeFailures(cluster, truth, settings.seed)
    ended: list[Ended] = []
    timeline: list[tuple[int, float, int, int]] = []
    history = AllocationHistory(cluster) if record_history else None
    total, next_job, now_ms, events_seen, idle, still = len(specs), 0, 0, 0, 0, 0
    while len(ended) < total:
        if passage is not None:
            went_on = passage.go_on(next_job, now_ms, total - len(ended))
            if went_on is not None:
                next_job, now_ms, n_events = went_on
                events_seen += n_events
                if engine.changed:  # a decision that is the engine's
                    for command in engine.step(now_ms):
                        backend.perform(command)
                ended.extend(engine.drain_ended())
                if progress is not None:
                    progress(len(ended), total, now_ms)
                if passage.idle > MAX_IDLE_WAKES:
                    break
                continue
        next_arrival = specs[next_job].submit_ms if next_job < total else NEVER_MS
        upcoming = min(next_arrival, backend.next_ms, engine.next_wake_ms, failures.next_ms)
        if upcoming >= NEVER_MS // 4:
            break
        now_ms = max(now_ms, upcoming)
        if failures.next_ms <= now_ms and isinstance(backend, SimulatedBackend):
            failures.act(backend, now_ms)
        events = backend.advance(now_ms)
        while next_job < total and specs[next_job].submit_ms <= now_ms:
            events.append(ev.JobSubmitted(specs[next_job]))
            next_job += 1
        events_seen += len(events)
        if not events and engine.next_wake_ms > now_ms:
            continue  # the end of an incarnation that was stopped before: nobody hears of it
        still = still + 1 if now_ms == engine.now_ms else 0
        if still > MAX_STEPS_AT_ONCE:
            engine.notes.append(f"the policy does not come to rest at {now_ms / MS_PER_S:g} s: it stops and starts")
            break
        idle = 0 if events else idle + 1
        if passage is not None:
            passage.idle = 0 if events else passage.idle
        if idle > MAX_IDLE_WAKES:
            break
        if history is not None:
            history.reported(now_ms, events)
        for command in engine.step(now_ms, *events):
            if history is not None:
                history.commanded(now_ms, command)
            backend.perform(command)
        over = engine.drain_ended()
        if over:
            ended.extend(over)
            if progress is not None and len(ended) % 64 < len(over):
                progress(len(ended), total, now_ms)
        if record_timeline:
            timeline.append(_sample(engine, now_ms))
    if progress is not None:
        progress(len(ended), total, now_ms)
    _account(specs, ended, engine)
    cpu_s, wall_s = time.process_time() - cpu_begin, time.perf_counter() - wall_begin
    return RunResult(
        ended=ended,
        cluster=cluster,
        truth=truth,
        settings=settings,
        end_ms=now_ms,
        decisions=engine.decisions,
        events=events_seen,
        lost_gpu_s=backend.lost_gpu_s,
        cpu_s=cpu_s,
        wall_s=wall_s,
        decide_cpu_s=engine.decide_cpu_s * min(1.0, cpu_s / wall_s) if wall_s > 0 else 0.0,
        notes=engine.notes,
        plans_refused=engine.plans_refused,
        timeline=timeline,
        history=history,
    )


_loaded: set[str] = set()


def load_kernels(policy: Policy) -> None:
    """Run a toy world once before a run that is timed, so that compiling or loading kernels is not counted."""
    if repr(policy) in _loaded:
        return
    _loaded.add(repr(policy))
    sizes = ((2, 50.0, 0), (1, 20.0, 0), (2, 10.0, 5), (1, 5.0, 6))
    toys = [
        JobSpec(JobId(f"toy-{k}"), at_s * 1000, workers_min=n, workers_max=n, workers_ref=n, work_total=work)
        for k, (n, work, at_s) in enumerate(sizes)
    ]
    with suppress(Exception):  # a policy that fails here fails again, visibly, in the run itself
        simulate(toys, parse_cluster("toy=2x2,other=2x1"), policy)


def _sample(engine: Engine, now_ms: int) -> tuple[int, float, int, int]:
    columns = engine.columns
    workers = columns.ints["workers"][columns.rows]
    held = columns.ints["held_gpu_milli"][columns.rows]
    running = int((workers > 0).sum())
    return now_ms, float(held.sum()) / 1000.0, running, len(columns.rows) - running


def _account(specs: Sequence[JobSpec], ended: list[Ended], engine: Engine) -> None:
    if len(ended) == len(specs):
        return
    over = {end.spec.id for end in ended}
    missing = [spec.id for spec in specs if spec.id not in over]
    first = missing[0]
    phase = ""
    slot = engine.columns.slot_of.get(first)
    if slot is not None:
        phase = f" ({first} is {Phase(int(engine.columns.ints['phase'][slot])).name.lower()})"
    shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
    note = f" Last note: {engine.notes[-1]}." if engine.notes else ""
    raise Unaccounted(f"{len(missing)} of {len(specs)} jobs are not accounted for: {shown}{phase}.{note}")


class _NodeFailures:
    """Exponential failures and fixed repair, drawn in advance of the run for each node apart."""

    def __init__(self, cluster: Cluster, truth: TruthOptions, seed: int) -> None:
        self.mtbf_ms, self.repair_ms = truth.node_mtbf_ms, truth.node_repair_ms
        self.rng = np.random.Generator(np.random.PCG64([seed, 7]))
        self.pending: list[tuple[int, int, bool]] = []
        if self.mtbf_ms:
            self.pending = sorted((self._draw(0), node, True) for node in range(len(cluster.nodes)))

    def _draw(self, after_ms: int) -> int:
        return after_ms + 1 + int(self.rng.exponential(self.mtbf_ms))

    @property
    def next_ms(self) -> int:
        return self.pending[0][0] if self.pending else NEVER_MS

    def act(self, backend: SimulatedBackend, now_ms: int) -> None:
        while self.pending and self.pending[0][0] <= now_ms:
            at_ms, node, down = self.pending.pop(0)
            backend.now_ms = max(backend.now_ms, at_ms)
            if down:
                backend.power_off(node)
                self.pending.append((at_ms + self.repair_ms, node, False))
            else:
                backend.power_on(node)
                self.pending.append((self._draw(at_ms), node, True))
            self.pending.sort()

"""The simulated backend: nodes, attempts of jobs on them, leases, and reports that take their way through a channel
(which a fault test makes unreliable).

It is the *world*: what it holds is true, whatever the engine believes. The world itself is arrays (`core.sim.backend`);
here are commands and reports as objects, and what is rare. What it *reports* is only what a real backend could know: it
vouches for nodes that it can reach, and names those that it cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import numpy as np

from trainmaster.core.int_list import IntList
from trainmaster.core.sim.backend import SimBackend
from trainmaster.core.sim.jobs import NO_CODE
from trainmaster.core.state.message_kinds import LAUNCH, RESIZE, STOP
from trainmaster.engine.message_rows import put_report, report_of
from trainmaster.model import event as ev
from trainmaster.model.allocation import Allocation
from trainmaster.model.capacity.packed_allocation import packed
from trainmaster.model.cluster import Cluster
from trainmaster.model.command import Command, Launch, Resize
from trainmaster.model.job import JobId, JobSpec
from trainmaster.model.lease import LeaseRule
from trainmaster.model.scaling import Scaling
from trainmaster.sim import outages
from trainmaster.sim.attempt_view import AttemptView
from trainmaster.sim.truth import Truth

Channel = Callable[[ev.Event], list[int]]
"""Delays (ms) at which an event is delivered: [0] is reliable, [] is lost, two entries are a duplicate."""


def reliable(_: ev.Event) -> list[int]:
    return [0]


class SimulatedBackend:
    def __init__(
        self,
        cluster: Cluster,
        truth: Truth,
        lease: LeaseRule,
        channel: Channel = reliable,
        detect_ms: int = 10_000,
    ) -> None:
        self.cluster = cluster
        self.truth = truth
        self.options = truth.options
        self.lease = lease
        self.detect_ms = detect_ms
        self.outage: list[int] = [0] * len(cluster.nodes)
        """Counts the outages of a node, so that what was scheduled for an earlier one is void."""
        self.declared: list[ev.NodeLost | None] = [None] * len(cluster.nodes)
        """The loss of a node as it was declared; until it is back, and then no lease is renewed."""
        self.clock_drift: list[float] = [0.0] * len(cluster.nodes)
        self.ids: list[JobId] = []
        self.jobs: Sequence[JobSpec] = ()
        """Those of a run, by number."""
        self.launched: dict[int, JobSpec] = {}
        """By job number, as launched last, of jobs that are known by their launch."""
        self._number_of: dict[JobId, int] = {}
        self._curves: dict[tuple[Scaling, int, int], int] = {}
        self._launch_fails: Callable[[JobId], bool] = lambda _: False
        self._stop_takes_ms: Callable[[], int] = lambda: self.options.stop_ms
        self._due: dict[int, Callable[[], None]] = {}
        self._gang = IntList()
        self.core = _world_of(cluster, truth, self)
        self.channel = channel

    # -- injected faults -----------------------------------------------------------------------------

    @property
    def channel(self) -> Channel:
        return self._channel

    @channel.setter
    def channel(self, channel: Channel) -> None:
        self._channel = channel
        self.core.unreliable = channel is not reliable

    @property
    def launch_fails(self) -> Callable[[JobId], bool]:
        return self._launch_fails

    @launch_fails.setter
    def launch_fails(self, fails: Callable[[JobId], bool]) -> None:
        self._launch_fails, self.core.may_fail = fails, True

    def set_stop_delay(self, stop_takes_ms: Callable[[], int]) -> None:
        """Stops take as long as this says, asked for each."""
        self._stop_takes_ms, self.core.slow_stops = stop_takes_ms, True

    # -- time ----------------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        return self.core.now_ms

    @now_ms.setter
    def now_ms(self, now_ms: int) -> None:
        self.core.now_ms = now_ms

    @property
    def next_ms(self) -> int:
        return int(self.core.next_due_ms())

    def advance(self, now_ms: int) -> list[ev.Event]:
        """Let the world go on to this time; returns the reports that arrive until then."""
        self.core.advance_rows(now_ms)
        rows = self.core.reports
        arrived = [report_of(rows, k, self.ids) for k in range(rows.n)]
        rows.clear()
        return arrived

    def later(self, at_ms: int, act: Callable[[], None]) -> None:
        """Have something done then."""
        self._due[self.core.schedule_other(at_ms)] = act

    def report(self, event: ev.Event, job: int = -1) -> None:
        """Send a report (about the job of this number) through the channel."""
        for delay_ms in self._channel(event):
            if delay_ms == 0:
                put_report(self.core.reports, event, job)
            else:
                self.later(self.now_ms + delay_ms, partial(put_report, self.core.reports, event, job))

    # -- commands ------------------------------------------------------------------------------------

    def perform(self, command: Command) -> None:
        job, kind = self.number(command.job_id), STOP
        if isinstance(command, Launch):
            kind = LAUNCH
            self._describe(job, command.spec)
        elif isinstance(command, Resize):
            kind = RESIZE
        if kind != STOP:
            self._gang.values = np.array(packed(command.allocation), np.int64)  # type: ignore[union-attr]
        self.core.perform_row(kind, job, command.generation, command.seq, self._gang, 0)

    def adopt(self, spec: JobSpec, generation: int, allocation: Allocation, work: float, productive_ms: int) -> None:
        """Let an attempt run here that began elsewhere and has come so far. Nothing is reported."""
        job = self.number(spec.id)
        self._describe(job, spec)
        self._gang.values = np.array(packed(allocation), np.int64)
        self.core.adopt(job, generation, self._gang, 0, work, productive_ms)

    def remember(self, job_id: JobId, generation: int, work: float) -> None:
        """The job was here before: its last generation, and what its checkpoint holds."""
        job = self.number(job_id)
        self.core.jobs.generation[job], self.core.jobs.saved[job] = generation, work

    def number(self, job_id: JobId) -> int:
        """By which the world's arrays know a job."""
        job = self._number_of.get(job_id)
        if job is None:
            job = self._number_of[job_id] = self.core.jobs.add()
            self.core.arrived(job, job)
            self.ids.append(job_id)
        return job

    def introduce(self, jobs: Sequence[JobSpec], ids: list[JobId]) -> None:
        """All jobs of a run."""
        self.jobs, self.ids = jobs, ids
        self._number_of = {job_id: number for number, job_id in enumerate(ids)}

    def _describe(self, job: int, spec: JobSpec) -> None:
        if self.launched.get(job) is spec:
            return
        self.launched[job] = spec
        curve = (spec.scaling, spec.workers_ref, spec.servers_ref)
        self.core.jobs.describe(
            job,
            float("nan") if spec.work_total is None else spec.work_total,
            spec.worker.share_milli,
            spec.workers_ref,
            spec.servers_ref,
            self._curves.setdefault(curve, len(self._curves)),
            self.truth.reference_rates(spec),
        )
        self.core.jobs.key[job] = self.truth.key_of(spec.id)
        self.core.jobs.sensitivity[job] = self.truth.sensitivity(spec.model)

    # -- what the world asks (`core.sim.backend.Hooks`) ----------------------------------------------

    def pass_on(self, row: int) -> None:
        rows = self.core.reports
        event, job = report_of(rows, row, self.ids), int(rows.job[row])
        rows.n = row
        self.report(event, job)

    def fails_to_launch(self, job: int) -> bool:
        return self._launch_fails(self.ids[job])

    def stop_takes_ms(self) -> int:
        return self._stop_takes_ms()

    def loss_of(self, job: int, work: float) -> float:
        loss = self.truth.loss(self.spec(job), float(work))
        return float("nan") if loss is None else loss

    def speedup(self, job: int, workers: int, servers: int) -> float:
        return self.truth.speedup(self.spec(job), workers, servers)

    def kept_beside(self, job: int, other: int, kind: int) -> float:
        return self.truth.kept_beside(self.spec(job), self.spec(other), self.cluster.types[kind])

    def other_due(self, number: int) -> None:
        self._due.pop(number)()

    def spec(self, job: int) -> JobSpec:
        spec = self.launched.get(job)
        return self.jobs[job] if spec is None else spec

    # -- nodes and faults ----------------------------------------------------------------------------

    def power_off(self, node: int) -> None:
        outages.power_off(self, node)

    def power_on(self, node: int) -> None:
        outages.power_on(self, node)

    def cut(self, node: int, renewed_ago_ms: int = 0) -> None:
        outages.cut(self, node, renewed_ago_ms)

    def heal(self, node: int) -> None:
        outages.heal(self, node)

    def crash(self, job_id: JobId, code: int = 1) -> bool:
        """The job ends by a fault of its own, if all its members run within reach."""
        return job_id in self._number_of and bool(self.core.crash_attempt(self._number_of[job_id], code))

    # -- what is true --------------------------------------------------------------------------------

    @property
    def lost_gpu_s(self) -> float:
        return self.core.lost_gpu_s

    @property
    def seen_up_to(self) -> int:
        return self.core.seen_up_to

    @property
    def running(self) -> dict[JobId, AttemptView]:
        """Attempts by job, in the order in which they began."""
        attempts = self.core.attempts
        rows = [int(a) for a in np.asarray(self.core.jobs.attempt)[: len(self.ids)] if a >= 0]
        rows.sort(key=lambda a: int(attempts.order[a]))
        return {self.ids[int(attempts.job[a])]: AttemptView(self, a) for a in rows}

    @property
    def zombies(self) -> list[AttemptView]:
        """Attempts that another generation has superseded while they lived (should never be)."""
        zombies = self.core.zombies
        return [AttemptView(self, int(a)) for a in zombies.values[: zombies.n]]

    @property
    def saved(self) -> dict[JobId, float]:
        """The checkpoint storage: outlives every node. The last writer wins."""
        return dict(zip(self.ids, np.asarray(self.core.jobs.saved)[: len(self.ids)].tolist(), strict=True))

    def reachable_nodes(self) -> Iterator[int]:
        return (node for node in range(len(self.cluster.nodes)) if self.core.is_reachable(node))

    # -- inventory -----------------------------------------------------------------------------------

    def observe(self) -> None:
        """Report what every reachable node holds, its records of the past included, and lost nodes."""
        reachable = frozenset(self.reachable_nodes())
        entries = (*self._observed_running(reachable), *self._observed_records())
        self.report(ev.Inventory(entries, self.seen_up_to, reachable))
        for node, declared in enumerate(self.declared):
            if declared is not None and node not in reachable:
                # Still lost: true of every command seen until now, for none could be carried out there.
                outages.declare(self, node, declared.last_renewed_ms, declared.confirmed)

    def _observed_running(self, reachable: frozenset[int]) -> Iterable[ev.Observed]:
        jobs = self.core.jobs
        for job_id, attempt in sorted(self.running.items()):
            if attempt.alive & reachable:
                self.core.settle(int(jobs.attempt[self._number_of[job_id]]))
                yield ev.Observed(
                    job_id, attempt.generation, attempt.work, attempt.allocation_seq, starting=not attempt.started
                )

    def _observed_records(self) -> Iterable[ev.Observed]:
        core, jobs = self.core, self.core.jobs
        recorded = np.asarray(jobs.recorded)[: len(self.ids)]
        idle = (np.asarray(jobs.attempt)[: len(self.ids)] < 0) & (np.asarray(jobs.record_failed)[: len(self.ids)] == 0)
        for job in sorted(np.flatnonzero((recorded > 0) & idle).tolist(), key=lambda job: self.ids[job]):
            if core.is_recorded(job):
                code = int(jobs.record_code[job])
                generation, work = int(jobs.record_generation[job]), float(jobs.record_work[job])
                stopped = code == NO_CODE
                yield ev.Observed(self.ids[job], generation, work, 0, None if stopped else code, stopped)

    def live_members(self) -> Iterator[tuple[JobId, int, int, tuple[int, ...], int]]:
        """Truth for the checkers: (job, generation, node, devices, share) of every member alive."""
        for attempt in (*self.running.values(), *self.zombies):
            allocation, alive = attempt.allocation, attempt.alive
            for part in allocation.parts:
                if part.node in alive:
                    yield attempt.spec.id, attempt.generation, part.node, part.devices, allocation.share_milli


def _world_of(cluster: Cluster, truth: Truth, backend: SimulatedBackend) -> SimBackend:
    options = truth.options
    world = SimBackend(cluster.gpus.astype(np.float64), len(cluster.types), backend)
    world.restart_cost_ms, world.resize_cost_ms = options.restart_cost_ms, options.resize_cost_ms
    world.launch_ms, world.stop_ms, world.exit_ms = options.launch_ms, options.stop_ms, options.exit_ms
    world.report_period_ms = options.report_period_ms or options.loss_period_ms
    world.first_report_ms = options.report_ms or world.report_period_ms
    world.interference, world.noise = options.interference, options.noise
    world.checkpoint_period_s = options.checkpoint_period_ms / 1000.0
    world.tells_loss = bool(options.loss_period_ms)
    world.node_variation = bool(options.node_variation)
    if options.node_variation:
        world.node_speed = np.array([truth.node_speed(node) for node in range(len(cluster.nodes))])
    return world

"""The simulated backend: nodes, incarnations of jobs on them, leases, and reports that take their way
through a channel (which a fault test makes unreliable).

It is the *world*: what it holds is true, whatever the engine believes. Commands are fenced here as an
agent on a real node fences them: per job by sequence number, and by generation.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from trainmaster.model import event as ev
from trainmaster.model.allocation import Allocation
from trainmaster.model.cluster import Cluster
from trainmaster.model.command import Command, Launch, Resize, Stop
from trainmaster.model.job import JobId, JobSpec
from trainmaster.model.lease import LeaseRule
from trainmaster.model.units import GPU_MILLI, MS_PER_S, NEVER_MS
from trainmaster.sim.truth import Truth

Channel = Callable[[ev.Event], list[int]]
"""Delays (ms) at which an event is delivered: [0] is reliable, [] is lost, two entries are a duplicate."""


def reliable(_: ev.Event) -> list[int]:
    return [0]


@dataclass(slots=True)
class Incarnation:
    """One run of a job's gang. `alive` are the nodes on which its members still exist."""

    spec: JobSpec
    generation: int
    allocation: Allocation
    allocation_seq: int
    work: float
    work_at_start: float
    as_of_ms: int
    rate: float
    alive: set[int] = field(default_factory=set)
    started: bool = False
    stopping: bool = False
    epoch: int = 0
    """Counts rate changes; a scheduled finish of an older epoch is void."""


@dataclass(slots=True)
class Record:
    """What is left of an incarnation that has ended."""

    generation: int
    nodes: frozenset[int]
    work_saved: float
    exit_code: int | None
    stopped: bool


class SimulatedBackend:
    def __init__(
        self, cluster: Cluster, truth: Truth, lease: LeaseRule, channel: Channel = reliable, detect_ms: int = 10_000
    ) -> None:
        self.cluster = cluster
        self.truth = truth
        self.options = truth.options
        self.lease = lease
        self.channel = channel
        self.detect_ms = detect_ms
        self.now_ms = 0
        self.powered = [True] * len(cluster.nodes)
        self.linked = [True] * len(cluster.nodes)
        self.running: dict[JobId, Incarnation] = {}
        self.zombies: list[Incarnation] = []
        """Incarnations on cut-off nodes that another generation has superseded (should never be alive)."""
        self.records: dict[JobId, Record] = {}
        self.saved: dict[JobId, float] = {}
        """The checkpoint storage: outlives every node."""
        self.seen_seq: dict[JobId, int] = {}
        self.generations: dict[JobId, int] = {}
        self.seen_up_to = 0
        self.launch_fails: Callable[[], bool] = lambda: False
        self.stop_delay_ms: Callable[[], int] = lambda: self.options.stop_ms
        self.lost_gpu_s = 0.0
        self._heap: list[tuple[int, int, str, Any]] = []
        self._counter = 0
        self._inbox: list[ev.Event] = []

    # -- time ----------------------------------------------------------------------------------------

    @property
    def next_ms(self) -> int:
        if self._inbox:
            return self.now_ms
        return self._heap[0][0] if self._heap else NEVER_MS

    def advance(self, now_ms: int) -> list[ev.Event]:
        """Let the world go on to this time; returns the reports that arrive until then."""
        self.now_ms = now_ms
        while self._heap and self._heap[0][0] <= now_ms:
            _, _, kind, item = heapq.heappop(self._heap)
            _INTERNAL[kind](self, item)
        arrived, self._inbox = self._inbox, []
        return arrived

    def _schedule(self, at_ms: int, kind: str, item: Any) -> None:
        self._counter += 1
        heapq.heappush(self._heap, (at_ms, self._counter, kind, item))

    def _report(self, event: ev.Event, node: int | None = None) -> None:
        """Send a report; what a cut-off node says is not heard."""
        if node is not None and not self.linked[node]:
            return
        for delay in self.channel(event):
            if delay == 0:
                self._inbox.append(event)
            else:
                self._schedule(self.now_ms + delay, "deliver", event)

    def _deliver(self, event: ev.Event) -> None:
        self._inbox.append(event)

    # -- commands ------------------------------------------------------------------------------------

    def perform(self, command: Command) -> None:
        self.seen_up_to = max(self.seen_up_to, command.seq)
        if command.seq < self.seen_seq.get(command.job_id, 0):
            return  # overtaken by a later command for the same job
        self.seen_seq[command.job_id] = command.seq
        if isinstance(command, Launch):
            self._launch(command)
        elif isinstance(command, Stop):
            self._stop(command)
        else:
            self._resize(command)

    def _reachable(self, node: int) -> bool:
        return self.powered[node] and self.linked[node]

    def _launch(self, command: Launch) -> None:
        job_id = command.job_id
        present = self.running.get(job_id)
        if present is not None and present.generation == command.generation:
            if present.started:  # a repeated command: answer again
                self._report(ev.Started(job_id, present.generation, present.work_at_start, self.now_ms))
            return
        if command.generation <= self.generations.get(job_id, 0):
            self._answer_again(job_id, command.generation)
            return
        self.generations[job_id] = command.generation
        nodes = {part.node for part in command.allocation.parts}
        if not all(self._reachable(node) for node in nodes) or self.launch_fails():
            self._report(ev.StartFailed(job_id, command.generation, "a member of the gang did not start"))
            return
        if present is not None:
            self.zombies.append(present)
        resumed = command.generation > 1
        work = self.saved.get(job_id, 0.0)
        productive = self.now_ms + self.options.launch_ms + (self.options.restart_cost_ms if resumed else 0)
        if resumed:
            self.lost_gpu_s += command.allocation.gpu_milli / GPU_MILLI * self.options.restart_cost_ms / MS_PER_S
        incarnation = Incarnation(
            spec=command.spec, generation=command.generation, allocation=command.allocation,
            allocation_seq=command.seq, work=work, work_at_start=work, as_of_ms=productive, rate=0.0, alive=nodes,
        )  # fmt: skip
        self.running[job_id] = incarnation
        self.records.pop(job_id, None)
        incarnation.rate = self._rate(incarnation)
        self._plan_finish(incarnation)
        if self.options.launch_ms:
            self._schedule(self.now_ms + self.options.launch_ms, "started", (incarnation, productive))
        else:
            self._started((incarnation, productive))
        if self.options.interference:
            self._rates_changed(nodes, incarnation)
        if self.options.report_period_ms:
            self._schedule(productive + self.options.report_period_ms, "measure", incarnation)

    def _started(self, item: tuple[Incarnation, int]) -> None:
        incarnation, productive = item
        if self.running.get(incarnation.spec.id) is incarnation and not incarnation.stopping:
            incarnation.started = True
            self._report(
                ev.Started(incarnation.spec.id, incarnation.generation, incarnation.work_at_start, productive),
                min(incarnation.alive, default=None),
            )

    def _answer_again(self, job_id: JobId, generation: int) -> None:
        """A command for an incarnation that has ended: its report may have been lost, so repeat it."""
        record = self.records.get(job_id)
        if record is not None and record.generation == generation:
            if record.exit_code is not None:
                self._report(ev.Exited(job_id, generation, record.exit_code, record.work_saved))
            else:
                self._report(ev.Stopped(job_id, generation, record.work_saved))
        elif record is None and job_id not in self.running:
            self._report(ev.StartFailed(job_id, generation, "it never ran"))

    def _stop(self, command: Stop) -> None:
        incarnation = self.running.get(command.job_id)
        if incarnation is None or incarnation.generation != command.generation:
            if command.generation == self.generations.get(command.job_id, 0):
                self._answer_again(command.job_id, command.generation)
            elif command.generation > self.generations.get(command.job_id, 0):
                # The launch never arrived: fence it, so that it does nothing should it arrive later.
                self.generations[command.job_id] = command.generation
                self._report(ev.Stopped(command.job_id, command.generation, self.saved.get(command.job_id, 0.0)))
            return
        if incarnation.stopping:
            return
        incarnation.stopping = True
        delay = self.stop_delay_ms()
        if delay:
            self._schedule(self.now_ms + delay, "stopped", incarnation)
        else:
            self._stopped(incarnation)

    def _stopped(self, incarnation: Incarnation) -> None:
        """A told stop takes effect on the reachable members, with a checkpoint of the present work."""
        job_id = incarnation.spec.id
        if self.running.get(job_id) is not incarnation:
            return
        self._settle(incarnation)
        if all(self._reachable(part.node) for part in incarnation.allocation.parts):
            self._save(job_id, incarnation.work)
        cut = {node for node in incarnation.alive if not self._reachable(node)}
        saved = self.saved.get(job_id, 0.0)
        if cut:
            incarnation.alive = cut
            incarnation.stopping = False
            self._report(ev.Stopped(job_id, incarnation.generation, saved))
            return
        self._end(incarnation, Record(incarnation.generation, self._nodes(incarnation), saved, None, True))
        self._report(ev.Stopped(job_id, incarnation.generation, saved))

    def _resize(self, command: Resize) -> None:
        incarnation = self.running.get(command.job_id)
        if incarnation is None or incarnation.generation != command.generation or incarnation.stopping:
            return
        if command.seq > incarnation.allocation_seq:
            nodes = {part.node for part in command.allocation.parts}
            if not all(self._reachable(node) for node in nodes | incarnation.alive):
                return
            self._settle(incarnation)
            touched = nodes | incarnation.alive
            incarnation.allocation = command.allocation
            incarnation.allocation_seq = command.seq
            incarnation.alive = nodes
            incarnation.as_of_ms = max(incarnation.as_of_ms, self.now_ms + self.options.resize_cost_ms)
            self.lost_gpu_s += command.allocation.gpu_milli / GPU_MILLI * self.options.resize_cost_ms / MS_PER_S
            incarnation.rate = self._rate(incarnation)
            self._plan_finish(incarnation)
            if self.options.interference:
                self._rates_changed(touched, incarnation)
        self._report(
            ev.Resized(command.job_id, command.generation, command.seq, incarnation.work, incarnation.as_of_ms)
        )

    # -- physics -------------------------------------------------------------------------------------

    def _settle(self, incarnation: Incarnation) -> None:
        """Bring its work up to now. A gang that is not whole makes no progress."""
        if self.now_ms > incarnation.as_of_ms:
            if len(incarnation.alive) == len(incarnation.allocation.parts):
                incarnation.work += incarnation.rate * (self.now_ms - incarnation.as_of_ms) / MS_PER_S
                total = incarnation.spec.work_total
                if total is not None:
                    incarnation.work = min(incarnation.work, total)
            incarnation.as_of_ms = self.now_ms

    def _rate(self, incarnation: Incarnation) -> float:
        others = self._others_use(incarnation) if self.options.interference else 0.0
        return self.truth.rate(incarnation.spec, incarnation.allocation, incarnation.generation, others)

    def _others_use(self, incarnation: Incarnation) -> float:
        own = {part.node for part in incarnation.allocation.parts}
        used = dict.fromkeys(sorted(own), 0.0)
        for other in self.running.values():
            if other is not incarnation:
                for part in other.allocation.parts:
                    if part.node in used:
                        used[part.node] += len(part.devices) * other.allocation.share_milli / GPU_MILLI
        return max((used[node] / max(self.cluster.nodes[node].gpus, 1) for node in used), default=0.0)

    def _rates_changed(self, nodes: set[int], but: Incarnation | None) -> None:
        for incarnation in list(self.running.values()):
            if incarnation is not but and any(part.node in nodes for part in incarnation.allocation.parts):
                self._settle(incarnation)
                incarnation.rate = self._rate(incarnation)
                self._plan_finish(incarnation)
                self._report(
                    ev.Progressed(
                        incarnation.spec.id, incarnation.generation, incarnation.work, self.now_ms, incarnation.rate
                    ),
                    min(incarnation.alive, default=None),
                )

    def _measure(self, incarnation: Incarnation) -> None:
        """A periodic report of measured progress, for as long as the incarnation runs."""
        if self.running.get(incarnation.spec.id) is not incarnation or incarnation.stopping:
            return
        self._settle(incarnation)
        self._report(
            ev.Progressed(
                incarnation.spec.id, incarnation.generation, incarnation.work, self.now_ms, incarnation.rate
            ),
            min(incarnation.alive, default=None),
        )
        self._schedule(self.now_ms + self.options.report_period_ms, "measure", incarnation)

    def _plan_finish(self, incarnation: Incarnation) -> None:
        incarnation.epoch += 1
        total = incarnation.spec.work_total
        if total is None or incarnation.rate <= 0.0:
            return
        left_ms = -(-(total - incarnation.work) * MS_PER_S // incarnation.rate)
        self._schedule(incarnation.as_of_ms + max(int(left_ms), 0), "finish", (incarnation, incarnation.epoch))

    def _finish(self, item: tuple[Incarnation, int]) -> None:
        incarnation, epoch = item
        job_id = incarnation.spec.id
        if incarnation.epoch != epoch or self.running.get(job_id) is not incarnation:
            return
        if len(incarnation.alive) != len(incarnation.allocation.parts):
            return
        total = incarnation.spec.work_total
        assert total is not None
        incarnation.work = total
        node = min(incarnation.alive)
        if any(not self.linked[n] for n in incarnation.alive) and len(incarnation.alive) > 1:
            return  # a gang cut in two does not finish
        self._save(job_id, total)
        self._end(incarnation, Record(incarnation.generation, self._nodes(incarnation), total, 0, False))
        self._report(ev.Exited(job_id, incarnation.generation, 0, total), node)

    def _save(self, job_id: JobId, work: float) -> None:
        self.saved[job_id] = max(self.saved.get(job_id, 0.0), work)

    def _nodes(self, incarnation: Incarnation) -> frozenset[int]:
        return frozenset(part.node for part in incarnation.allocation.parts)

    def _end(self, incarnation: Incarnation, record: Record) -> None:
        incarnation.alive = set()
        incarnation.epoch += 1
        del self.running[incarnation.spec.id]
        self.records[incarnation.spec.id] = record
        if self.options.interference:
            self._rates_changed(set(record.nodes), None)

    # -- nodes ---------------------------------------------------------------------------------------

    def power_off(self, node: int) -> None:
        """A power cut: everything on the node ends at once, and its agent's records are gone."""
        if not self.powered[node]:
            return
        self.powered[node] = False
        self._members_end(node)
        for job_id in [j for j, record in self.records.items() if node in record.nodes]:
            del self.records[job_id]
        self._schedule(self.now_ms + self.detect_ms, "notice", (node, self.now_ms, True))

    def power_on(self, node: int) -> None:
        if not self.powered[node]:
            self.powered[node] = True
            self._schedule(self.now_ms + self.detect_ms, "return", node)

    def cut(self, node: int, renewed_ago_ms: int) -> None:
        """The network cable is pulled: workers go on until their lease, last renewed a while ago, ends."""
        if not self.linked[node]:
            return
        self.linked[node] = False
        sent_ms = self.now_ms - renewed_ago_ms
        self._schedule(self.lease.worker_ends_ms(sent_ms), "lease-end", (node, sent_ms))
        self._schedule(self.now_ms + self.detect_ms, "notice", (node, sent_ms, False))

    def heal(self, node: int) -> None:
        if not self.linked[node]:
            self.linked[node] = True
            self._schedule(self.now_ms + self.detect_ms, "return", node)

    def _lease_end(self, item: tuple[int, int]) -> None:
        node, _ = item
        if not self.linked[node]:
            self._members_end(node)

    def _members_end(self, node: int) -> None:
        """Members on a node end. The incarnation is over when none is left anywhere."""
        for incarnation in [*self.running.values(), *self.zombies]:
            if node not in incarnation.alive:
                continue
            self._settle(incarnation)
            rate = incarnation.rate
            self._save(
                incarnation.spec.id,
                float(self.truth.saved(incarnation.work_at_start, incarnation.work, rate)),
            )
            incarnation.alive.discard(node)
            incarnation.epoch += 1
            if not incarnation.alive and self.running.get(incarnation.spec.id) is incarnation:
                lost_s = (incarnation.work - self.saved[incarnation.spec.id]) / rate if rate > 0 else 0.0
                self.lost_gpu_s += lost_s * incarnation.allocation.gpu_milli / GPU_MILLI
                saved = self.saved[incarnation.spec.id]
                self._end(incarnation, Record(incarnation.generation, self._nodes(incarnation), saved, None, True))
        self.zombies = [z for z in self.zombies if z.alive]

    def _notice(self, item: tuple[int, int, bool]) -> None:
        """The service side notices that a node is gone. Repeated, as a report about it may be lost."""
        node, last_renewed_ms, confirmed = item
        if (self.powered[node] if confirmed else self.linked[node]):
            return
        self._report(ev.NodeLost(node, last_renewed_ms, confirmed))

    def _return(self, node: int) -> None:
        if self._reachable(node):
            self._report(ev.NodeJoined(node))

    # -- inventory -----------------------------------------------------------------------------------

    def observe(self) -> None:
        """Report what every reachable node holds, its records of the past included, and node states."""
        reachable = frozenset(n for n in range(len(self.cluster.nodes)) if self._reachable(n))
        entries = []
        for job_id, incarnation in sorted(self.running.items()):
            if incarnation.alive & reachable:
                whole = len(incarnation.alive) == len(incarnation.allocation.parts)
                if not whole and incarnation.alive <= reachable:
                    # Members are missing and the rest is of no use: the agents end it.
                    self._end(
                        incarnation,
                        Record(incarnation.generation, self._nodes(incarnation), self.saved.get(job_id, 0.0), None, True),
                    )
                    continue
                entries.append(self._observed(job_id, incarnation))
        for job_id, record in sorted(self.records.items()):
            if record.nodes & reachable:
                entries.append(
                    ev.Observed(
                        job_id, record.generation, record.work_saved, 0, record.exit_code, record.exit_code is None
                    )
                )
        self._report(ev.Inventory(tuple(entries), self.seen_up_to, reachable))
        for node in range(len(self.cluster.nodes)):
            if node in reachable:
                self._report(ev.NodeJoined(node))
            elif not self.powered[node]:
                self._report(ev.NodeLost(node, self.now_ms, True))

    def _observed(self, job_id: JobId, incarnation: Incarnation) -> ev.Observed:
        self._settle(incarnation)
        return ev.Observed(
            job_id, incarnation.generation, incarnation.work, incarnation.allocation_seq,
            starting=not incarnation.started,
        )  # fmt: skip

    def live_members(self) -> Iterator[tuple[JobId, int, int, tuple[int, ...], int]]:
        """Truth for the checkers: (job, generation, node, devices, share) of every member alive."""
        for incarnation in (*self.running.values(), *self.zombies):
            for part in incarnation.allocation.parts:
                if part.node in incarnation.alive:
                    yield (
                        incarnation.spec.id, incarnation.generation, part.node, part.devices,
                        incarnation.allocation.share_milli,
                    )  # fmt: skip


_INTERNAL: dict[str, Callable[[SimulatedBackend, Any], None]] = {
    "deliver": SimulatedBackend._deliver,
    "started": SimulatedBackend._started,
    "stopped": SimulatedBackend._stopped,
    "finish": SimulatedBackend._finish,
    "measure": SimulatedBackend._measure,
    "lease-end": SimulatedBackend._lease_end,
    "notice": SimulatedBackend._notice,
    "return": SimulatedBackend._return,
}

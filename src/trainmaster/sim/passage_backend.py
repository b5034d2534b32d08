"""The backend of worlds without delays, until the compiled loop serves them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any

from trainmaster.model import event as ev
from trainmaster.model.allocation import Allocation
from trainmaster.model.cluster import Cluster
from trainmaster.model.command import Command, Launch, Resize, Stop
from trainmaster.model.job import JobId, JobSpec
from trainmaster.model.lease import LeaseRule
from trainmaster.model.units import GPU_MILLI, MS_PER_S, NEVER_MS
from trainmaster.sim.incarnation import Incarnation, Record, companions
from trainmaster.sim.instant import InstantWorld, is_instant
from trainmaster.sim.truth import Truth

Channel = Callable[[ev.Event], list[int]]
"""Delays (ms) at which an event is delivered: [0] is reliable, [] is lost, two entries are a duplicate."""


def reliable(_: ev.Event) -> list[int]:
    return [0]


class PassageBackend:
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
        self.report_period_ms = truth.options.report_period_ms or truth.options.loss_period_ms
        self.lease = lease
        self.channel = channel
        self.detect_ms = detect_ms
        self.now_ms = 0
        self.powered = [True] * len(cluster.nodes)
        self.linked = [True] * len(cluster.nodes)
        self.outage: list[int] = [0] * len(cluster.nodes)
        """Counts the outages of a node, so that what was scheduled for an earlier one is void."""
        self.declared: list[ev.NodeLost | None] = [None] * len(cluster.nodes)
        """The loss of a node as it was declared; until it is back, and then no lease is renewed."""
        self.clock_drift: list[float] = [0.0] * len(cluster.nodes)
        self.running: dict[JobId, Incarnation] = {}
        self.zombies: list[Incarnation] = []
        """Incarnations that another generation has superseded while they lived (should never be)."""
        self.records: dict[JobId, Record] = {}
        self.saved: dict[JobId, float] = {}
        """The checkpoint storage: outlives every node. The last writer wins."""
        self.seen_seq: dict[tuple[JobId, int], int] = {}
        self.generations: dict[JobId, int] = {}
        self.launched_on: dict[JobId, frozenset[int]] = {}
        self.seen_up_to = 0
        self.launch_fails: Callable[[JobId], bool] = lambda _: False
        self.stop_delay_ms: Callable[[], int] = lambda: self.options.stop_ms
        self.collapse_ms = 2_000
        """After this time the members of a gang that has lost one give up too."""
        self.lost_gpu_s = 0.0
        self._heap: list[tuple[int, int, str, Any]] = []
        self._counter = 0
        self._inbox: list[ev.Event] = []
        self.instant: InstantWorld | None = None
        """Where plans are carried out at once; None: by commands and answers alone."""

    def answer_at_once(self) -> InstantWorld | None:
        """Let the engine hand whole plans over to be carried out within the call, if this world has no delays."""
        if self.instant is None and self.channel is reliable and is_instant(self.options):
            self.instant = InstantWorld(self)
        return self.instant

    # -- time ----------------------------------------------------------------------------------------

    @property
    def next_ms(self) -> int:
        if self._inbox:
            return self.now_ms
        soonest_ms = self._heap[0][0] if self._heap else NEVER_MS
        return soonest_ms if self.instant is None else min(soonest_ms, self.instant.next_ms)

    def advance(self, now_ms: int) -> list[ev.Event]:
        """Let the world go on to this time; returns the reports that arrive until then."""
        if self.instant is not None and self.instant.next_ms <= now_ms:
            self.instant.move_due(now_ms)
        while self._heap and self._heap[0][0] <= now_ms:
            self.now_ms, _, kind, item = heapq.heappop(self._heap)
            _INTERNAL[kind](self, item)
        self.now_ms = now_ms
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
        incarnation = (command.job_id, command.generation)
        if command.seq < self.seen_seq.get(incarnation, 0):
            return  # overtaken by a later command for the same incarnation
        self.seen_seq[incarnation] = command.seq
        if isinstance(command, Launch):
            self._launch(command)
        elif isinstance(command, Stop):
            self._stop(command)
        else:
            self._resize(command)

    def _reachable(self, node: int) -> bool:
        return self.powered[node] and self.linked[node]

    def _silent(self, nodes: Iterable[int]) -> frozenset[int]:
        """Those that cannot be asked."""
        return frozenset(node for node in nodes if not self._reachable(node))

    def _launch(self, command: Launch) -> None:
        job_id, generation = command.job_id, command.generation
        present = self.running.get(job_id)
        if present is not None and present.generation == generation:
            if present.started and not self._silent(present.alive):  # a repeated command: answer again
                self._report(ev.Started(job_id, generation, present.work_at_start, self.now_ms))
            return
        if generation <= self.generations.get(job_id, 0):
            self._answer_again(job_id, generation)
            return
        self.generations[job_id] = generation
        nodes = {part.node for part in command.allocation.parts}
        self.launched_on[job_id] = frozenset(nodes)
        unreachable = min(self._silent(nodes), default=None)
        if unreachable is not None or self.launch_fails(job_id):
            record = Record(generation, set(nodes), self.saved.get(job_id, 0.0), None, unreachable, True)
            self.records[job_id] = record
            self._answer_again(job_id, generation)
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
            allocation_seq=command.seq, work=work, work_at_start=work, as_of_ms=productive, rate=0.0,
            alive=nodes,
        )  # fmt: skip
        self.running[job_id] = incarnation
        self.records.pop(job_id, None)
        incarnation.rate = self._rate(incarnation)
        self._plan_finish(incarnation)
        if self.options.launch_ms:
            self._schedule(self.now_ms + self.options.launch_ms, "started", (incarnation, productive))
            self._sharing_changed(incarnation)
        else:
            self._started((incarnation, productive))
        if self.options.interference:
            self._rates_changed(nodes, incarnation)

    def adopt(self, spec: JobSpec, generation: int, allocation: Allocation, work: float, productive_ms: int) -> None:
        """Let an incarnation run here that began elsewhere and has come so far. Nothing is reported."""
        nodes = {part.node for part in allocation.parts}
        incarnation = Incarnation(
            spec=spec, generation=generation, allocation=allocation, allocation_seq=0, work=work, work_at_start=work,
            as_of_ms=productive_ms, rate=0.0, alive=nodes, started=True,
        )  # fmt: skip
        self.running[spec.id] = incarnation
        self.generations[spec.id] = generation
        self.launched_on[spec.id] = frozenset(nodes)
        incarnation.rate = self._rate(incarnation)
        self._plan_finish(incarnation)

    def _started(self, item: tuple[Incarnation, int]) -> None:
        incarnation, productive = item
        if self.running.get(incarnation.spec.id) is incarnation and not incarnation.stopping and incarnation.whole:
            incarnation.started = True
            self._report(
                ev.Started(incarnation.spec.id, incarnation.generation, incarnation.work_at_start, productive),
                min(incarnation.alive, default=None),
            )
            self._sharing_changed(incarnation)
            first_ms = self.options.report_ms or self.report_period_ms
            if first_ms:
                self._schedule(productive + first_ms, "measured", incarnation)

    def _measured(self, incarnation: Incarnation) -> None:
        """A report of measured progress, repeated for as long as the incarnation runs if so wished."""
        if self.running.get(incarnation.spec.id) is incarnation and not incarnation.stopping:
            self._settle(incarnation)
            self._tell_progress(incarnation)
            if self.report_period_ms:
                self._schedule(self.now_ms + self.report_period_ms, "measured", incarnation)

    def _tell_progress(self, incarnation: Incarnation) -> None:
        spec, work = incarnation.spec, incarnation.work
        loss = self.truth.loss(spec, work)
        self._report(
            ev.Progressed(spec.id, incarnation.generation, work, self.now_ms, incarnation.rate, loss),
            min(incarnation.alive, default=None),
        )

    def _answer_again(self, job_id: JobId, generation: int) -> None:
        """A command for an incarnation that has ended: its report may have been lost, so repeat it."""
        if generation != self.generations.get(job_id, 0) or job_id in self.running:
            return
        record = self.records.get(job_id)
        if record is None:  # no agent knows of it any more
            silent = self._silent(self.launched_on.get(job_id, ()))
            self._report(ev.Stopped(job_id, generation, self.saved.get(job_id, 0.0), silent))
        elif record.failed_to_start:
            why = "a member of the gang did not start"
            self._report(ev.StartFailed(job_id, generation, why, record.blamed_node))
        elif record.exit_code is not None and any(self._reachable(node) for node in record.nodes):
            self._report(ev.Exited(job_id, generation, record.exit_code, record.work_saved))
        else:
            self._report(ev.Stopped(job_id, generation, record.work_saved, self._silent(self.launched_on[job_id])))

    def _stop(self, command: Stop) -> None:
        job_id, generation = command.job_id, command.generation
        incarnation = self.running.get(job_id)
        if incarnation is None or incarnation.generation != generation:
            if generation > self.generations.get(job_id, 0):
                # The launch never arrived: fence it, so that it does nothing should it arrive later.
                self.generations[job_id] = generation
                self.launched_on[job_id] = frozenset()
            self._answer_again(job_id, generation)
            return
        if incarnation.stopping:
            return
        incarnation.stopping = incarnation.told_to_stop = True
        delay = self.stop_delay_ms()
        if delay:
            self._schedule(self.now_ms + delay, "stopped", incarnation)
        else:
            self._stopped(incarnation)

    def _stopped(self, incarnation: Incarnation) -> None:
        """A told stop takes effect on the reachable members, with a checkpoint if the gang is whole."""
        job_id = incarnation.spec.id
        if self.running.get(job_id) is not incarnation:
            return
        self._settle(incarnation)
        if incarnation.started and self._productive(incarnation) and not self._silent(incarnation.alive):
            self._save(job_id, incarnation.work)
        incarnation.stopping = False
        incarnation.epoch += 1
        incarnation.alive = set(self._silent(incarnation.alive))
        if not incarnation.alive:
            self._end(incarnation, self.saved.get(job_id, 0.0), None)
        silent = self._silent(incarnation.nodes)
        self._report(ev.Stopped(job_id, incarnation.generation, self.saved.get(job_id, 0.0), silent))

    def _resize(self, command: Resize) -> None:
        incarnation = self.running.get(command.job_id)
        if incarnation is None or incarnation.generation != command.generation:
            self._answer_again(command.job_id, command.generation)
            return
        if incarnation.told_to_stop:
            return
        if command.seq > incarnation.allocation_seq:
            nodes = {part.node for part in command.allocation.parts}
            touched = nodes | incarnation.alive
            if self._silent(touched) or not incarnation.whole:
                return  # not now; it is asked again
            self._settle(incarnation)
            moved = command.allocation.parts != incarnation.allocation.parts
            cost_ms = self.options.resize_cost_ms if moved else 0  # a change of share alone is free
            left = companions(incarnation, self.running)
            incarnation.allocation = command.allocation
            incarnation.allocation_seq = command.seq
            incarnation.alive = nodes
            self.launched_on[command.job_id] = frozenset(nodes)
            incarnation.as_of_ms = max(incarnation.as_of_ms, self.now_ms + cost_ms)
            self.lost_gpu_s += command.allocation.gpu_milli / GPU_MILLI * cost_ms / MS_PER_S
            incarnation.rate = self._rate(incarnation)
            self._plan_finish(incarnation)
            if self.options.interference:
                self._rates_changed(touched, incarnation)
            for other in left:
                self._rate_changed(other)
        self._report(
            ev.Resized(command.job_id, command.generation, command.seq, incarnation.work, incarnation.as_of_ms)
        )
        self._sharing_changed(incarnation)

    # -- physics -------------------------------------------------------------------------------------

    def _productive(self, incarnation: Incarnation) -> bool:
        """Whether the gang makes progress: all members live, and they can talk to each other."""
        return incarnation.whole and (len(incarnation.alive) == 1 or all(self.linked[n] for n in incarnation.alive))

    def _settle(self, incarnation: Incarnation) -> None:
        """Bring its work up to now. Called before anything changes that its progress depends on."""
        if self.now_ms > incarnation.as_of_ms:
            if self._productive(incarnation):
                incarnation.work += incarnation.rate * (self.now_ms - incarnation.as_of_ms) / MS_PER_S
                total = incarnation.spec.work_total
                if total is not None:
                    incarnation.work = min(incarnation.work, total)
            incarnation.as_of_ms = self.now_ms

    def _rate(self, incarnation: Incarnation) -> float:
        others = self._others_use(incarnation) if self.options.interference else 0.0
        beside = [other.spec for other in companions(incarnation, self.running)]
        return self.truth.rate(incarnation.spec, incarnation.allocation, incarnation.generation, others, beside)

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
                self._rate_changed(incarnation)

    def _sharing_changed(self, incarnation: Incarnation) -> None:
        """It has begun beside others, or has told its start there: their speeds and its own are news."""
        beside = companions(incarnation, self.running)
        for other in (*beside, incarnation) if beside else ():
            self._rate_changed(other)

    def _rate_changed(self, incarnation: Incarnation) -> None:
        self._settle(incarnation)
        incarnation.rate = self._rate(incarnation)
        self._plan_finish(incarnation)
        self._tell_progress(incarnation)

    def _plan_finish(self, incarnation: Incarnation) -> None:
        incarnation.epoch += 1
        incarnation.finish_ms = NEVER_MS
        total = incarnation.spec.work_total
        if total is None or incarnation.rate <= 0.0:
            return
        left_ms = -(-(total - incarnation.work) * MS_PER_S // incarnation.rate)
        incarnation.finish_ms = incarnation.as_of_ms + max(int(left_ms), 0) + self.options.exit_ms
        self._schedule(incarnation.finish_ms, "finish", (incarnation, incarnation.epoch))
        incarnation.finish_order = self._counter

    def _finish(self, item: tuple[Incarnation, int]) -> None:
        incarnation, epoch = item
        job_id = incarnation.spec.id
        if incarnation.epoch != epoch or self.running.get(job_id) is not incarnation:
            return
        if not self._productive(incarnation):
            return  # planned anew when the gang is whole again
        total = incarnation.spec.work_total
        assert total is not None
        incarnation.work = total
        node = min(incarnation.alive)
        self._save(job_id, total)
        self._end(incarnation, total, 0)
        self._report(ev.Exited(job_id, incarnation.generation, 0, total), node)

    def _end_at_once(self, slot: int) -> None:
        assert self.instant is not None
        self.instant.end(slot)

    def _save(self, job_id: JobId, work: float) -> None:
        self.saved[job_id] = work

    def _end(self, incarnation: Incarnation, work_saved: float, exit_code: int | None) -> None:
        incarnation.alive = set()
        incarnation.epoch += 1
        job_id = incarnation.spec.id
        del self.running[job_id]
        nodes = {node for node in incarnation.nodes if self.powered[node]}
        if nodes:
            self.records[job_id] = Record(incarnation.generation, nodes, work_saved, exit_code)
        if self.options.interference:
            self._rates_changed(set(incarnation.nodes), None)
        for other in companions(incarnation, self.running):
            self._rate_changed(other)


_INTERNAL: dict[str, Callable[[PassageBackend, Any], None]] = {
    "deliver": PassageBackend._deliver,
    "started": PassageBackend._started,
    "measured": PassageBackend._measured,
    "stopped": PassageBackend._stopped,
    "finish": PassageBackend._finish,
    "end": PassageBackend._end_at_once,
}

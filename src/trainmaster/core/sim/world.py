"""What is true in a simulated world, as arrays: the attempts that run, how fast they are, what they have done, and what
agents remember of those that have ended.

It is true whatever the engine believes. Reports are rows (`reports`); who has read them clears them. What is rare
(outages, inventories, injected faults, sharing, losses) is Python around it, called through `Hooks`.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from trainmaster.core.arithmetic import floor_div
from trainmaster.core.codes import GPU_TYPE, HEAD, MS_PER_S, NEVER_MS, PART, SHARE
from trainmaster.core.int_list import Floats, IntList, new_ints
from trainmaster.core.sim.attempts import Attempts
from trainmaster.core.sim.due_heap import DueHeap
from trainmaster.core.sim.due_kinds import DUE_FINISH
from trainmaster.core.sim.jobs import NodeLists, SimJobs
from trainmaster.core.state.message_kinds import EXITED, PROGRESSED, STOPPED
from trainmaster.core.state.messages import Messages
from trainmaster.core.state.packed_allocation import gang_devices, gang_hosts, gang_servers, gang_workers

HEAP_MIN = 64
FURTHEST_MS = 2.0**60
"""An end that lies further ahead does not come."""


class Hooks(Protocol):
    """What is rare or not a matter of numbers: asked only where the named flag is set, gangs share devices, or a gang
    has another size than the reference."""

    def pass_on(self, row: int) -> None:
        """`unreliable`: the last report, in this row, goes through a channel."""

    def fails_to_launch(self, job: int) -> bool:
        """`may_fail`: whether a launch fails by a fault of the job's own."""
        ...

    def stop_takes_ms(self) -> int:
        """`slow_stops`: how long a stop takes."""
        ...

    def loss_of(self, job: int, work: float) -> float:
        """`tells_loss`: the measured loss; NaN: none."""
        ...

    def speedup(self, job: int, workers: int, servers: int) -> float:
        """Speed at a size relative to the reference size; asked once for each curve and size."""
        ...

    def kept_beside(self, job: int, other: int, kind: int) -> float:
        """Part of its speed that a job keeps beside another on the same devices of a type."""
        ...

    def other_due(self, number: int) -> None:
        """What was scheduled under this number (`schedule_other`) is due."""


class SimWorld:
    """Times in milliseconds. Who makes it sets costs and flags before anything happens."""

    def __init__(self, gpus_of_node: Floats, n_types: int, hooks: Hooks) -> None:
        self.hooks = hooks
        n_nodes = len(gpus_of_node)
        self.now_ms = self.seen_up_to = self.serials = 0
        self.lost_gpu_s = 0.0
        self.restart_cost_ms = self.resize_cost_ms = self.launch_ms = self.stop_ms = self.exit_ms = 0
        self.first_report_ms = self.report_period_ms = 0
        self.interference = self.noise = 0.0
        self.checkpoint_period_s = 0.0
        self.collapse_ms = 2_000
        """After this time the members of a gang that has lost one give up too."""
        self.node_variation = self.unreliable = self.may_fail = self.slow_stops = self.tells_loss = False
        self.jobs, self.attempts = SimJobs(n_types), Attempts(n_nodes)
        self.job_at = new_ints(64)
        """Job number by the engine's index."""
        self.heap, self.reports = DueHeap(), Messages()
        self.heap_max = HEAP_MIN
        """With more rows, those that no longer hold are removed."""
        self.zombies = IntList()
        """Attempts that another generation has superseded while they lived (should never be)."""
        self.gpus_of_node, self.node_speed = np.maximum(gpus_of_node, 1.0), np.ones(n_nodes)
        self.powered, self.linked = np.ones(n_nodes, np.uint8), np.ones(n_nodes, np.uint8)
        self.n_unpowered: int = 0
        self.n_unlinked: int = 0
        self.off_since, self.on_since = new_ints(n_nodes), new_ints(n_nodes)
        """Serial numbers of a node's last power cut and return: what agents wrote down before is gone."""
        self.factors: dict[tuple[int, int, int], float] = {}
        """Speed relative to the reference size, by (curve, workers, servers)."""
        self._changed, self._beside, self._left, self._there = IntList(), IntList(), IntList(), IntList()

    # -- reports -------------------------------------------------------------------------------------

    def _new_report(self, kind: int, job: int, generation: int, work: float) -> int:
        k = self.reports.add(kind, self.jobs.index[job], generation, 0)
        self.reports.work[k] = work
        return k

    def _sent(self, row: int) -> None:
        if self.unreliable:
            self.hooks.pass_on(row)

    def _is_heard(self, a: int) -> bool:
        """Whether a report of the gang's first living node arrives: what a cut-off node says is not heard."""
        if self.n_unlinked == 0:
            return True
        node = self.attempts.first_node(a)
        return node < 0 or self.linked[node] != 0

    def _report_progress(self, a: int) -> None:
        attempts = self.attempts
        if not self._is_heard(a):
            return
        job, work = attempts.job[a], attempts.work[a]
        k = self._new_report(PROGRESSED, job, attempts.generation[a], work)
        self.reports.at_ms[k], self.reports.rate[k] = self.now_ms, attempts.rate[a]
        if self.tells_loss:
            self.reports.loss[k] = self.hooks.loss_of(job, work)
        self._sent(k)

    def _report_stopped(self, job: int, generation: int, work: float) -> None:
        """Ended wherever it was launched and can be asked."""
        k = self._new_report(STOPPED, job, generation, work)
        self.reports.code[k] = 0
        if self.n_unpowered + self.n_unlinked > 0:
            self._add_silent(k, self.jobs.launched, job)
        self._sent(k)

    def _add_silent(self, k: int, lists: NodeLists, job: int) -> None:
        numbers = self.reports.numbers
        numbers.reserve(numbers.n + lists.n[job])
        self.reports.extra[k] = numbers.n
        for i in range(lists.at[job], lists.at[job] + lists.n[job]):
            if not self._is_reachable(lists.values.values[i]):
                numbers.append(lists.values.values[i])
        self.reports.code[k] = numbers.n - self.reports.extra[k]

    def _report_exit(self, job: int, generation: int, code: int, work: float) -> None:
        k = self._new_report(EXITED, job, generation, work)
        self.reports.code[k] = code
        self._sent(k)

    # -- what agents remember ------------------------------------------------------------------------

    def _record(self, job: int, generation: int, code: int, packed: IntList, at: int) -> None:
        """Agents write down how an attempt ended."""
        jobs = self.jobs
        note_nodes(jobs.record_nodes, job, packed, at)
        self.serials += 1
        jobs.recorded[job] = self.serials
        jobs.record_generation[job], jobs.record_code[job] = generation, code
        jobs.record_work[job], jobs.record_failed[job] = jobs.saved[job], 0

    def _knows(self, job: int, node: int) -> bool:
        """Whether the node's agent has kept the record: it had power then, and has not lost it since."""
        recorded = self.jobs.recorded[job]
        if self.off_since[node] > recorded:
            return False
        return self.jobs.record_failed[job] != 0 or (self.powered[node] != 0 and self.on_since[node] < recorded)

    def _has_record(self, job: int) -> bool:
        nodes = self.jobs.record_nodes
        if self.jobs.recorded[job]:
            for k in range(nodes.at[job], nodes.at[job] + nodes.n[job]):
                if self._knows(job, nodes.values.values[k]):
                    return True
        return False

    def _record_is_reachable(self, job: int) -> bool:
        nodes = self.jobs.record_nodes
        for k in range(nodes.at[job], nodes.at[job] + nodes.n[job]):
            node = nodes.values.values[k]
            if self._knows(job, node) and self._is_reachable(node):
                return True
        return False

    # -- physics -------------------------------------------------------------------------------------

    def _is_reachable(self, node: int) -> bool:
        return self.powered[node] != 0 and self.linked[node] != 0

    def _any_silent(self, a: int) -> bool:
        """Whether a node with living members cannot be asked."""
        if self.n_unpowered + self.n_unlinked > 0:
            attempts = self.attempts
            for part in range(attempts.n_parts(a)):
                if attempts.alive[a, part] and not self._is_reachable(attempts.node(a, part)):
                    return True
        return False

    def _is_productive(self, a: int) -> bool:
        """Whether the gang makes progress: all members live, and they can talk to each other."""
        attempts = self.attempts
        if not attempts.is_whole(a):
            return False
        if self.n_unlinked > 0 and attempts.n_alive[a] != 1:
            for part in range(attempts.n_parts(a)):
                if not self.linked[attempts.node(a, part)]:
                    return False
        return True

    def _settle(self, a: int) -> None:
        """Bring its work up to now. Called before anything changes that its progress depends on."""
        attempts = self.attempts
        if self.now_ms > attempts.as_of_ms[a]:
            if self._is_productive(a):
                work = attempts.work[a] + attempts.rate[a] * (self.now_ms - attempts.as_of_ms[a]) / MS_PER_S
                total = self.jobs.work_total[attempts.job[a]]
                attempts.work[a] = total if total < work else work
            attempts.as_of_ms[a] = self.now_ms

    def _rate(self, a: int) -> float:
        """Steps per second."""
        attempts, jobs = self.attempts, self.jobs
        job, packed, at = attempts.job[a], attempts.packed, a * attempts.width
        kind = max(packed.values[at + GPU_TYPE], 0)
        spread = gang_hosts(packed, at) > 1
        rate = jobs.speed[job, kind + jobs.n_types if spread else kind]
        workers, servers = gang_workers(packed, at), gang_servers(packed, at)
        if workers != jobs.workers_ref[job] or servers != jobs.servers_ref[job]:
            rate *= self._known_speedup(job, workers, servers)
        self._companions(a, self._beside)
        for k in range(self._beside.n):
            other: int = self._beside.values[k]
            rate *= self.hooks.kept_beside(job, attempts.job[other], kind)
        if self.interference > 0.0:
            rate /= 1.0 + self.interference * jobs.sensitivity[job] * self._others_use(a)
        if self.node_variation:
            slowest = self.node_speed[attempts.node(a, 0)]
            for part in range(1, attempts.n_parts(a)):
                slowest = min(slowest, self.node_speed[attempts.node(a, part)])
            rate *= slowest
        return rate * attempts.luck[a]

    def _known_speedup(self, job: int, workers: int, servers: int) -> float:
        key = (self.jobs.curve[job], workers, servers)
        known = self.factors.get(key)
        if known is None:
            known = self.factors[key] = self.hooks.speedup(job, workers, servers)
        return known

    def _others_use(self, a: int) -> float:
        """Share of the busiest of its nodes' GPUs that others use."""
        attempts, most = self.attempts, 0.0
        for part in range(attempts.n_parts(a)):
            node = attempts.node(a, part)
            used = 0.0
            for k in range(attempts.n_on_node[node]):
                other = attempts.on_node[node, k]
                if other != a:
                    used += (
                        self._devices_on(other, node) * attempts.packed.values[other * attempts.width + SHARE] / 1000.0
                    )
            most = max(most, used / self.gpus_of_node[node])
        return most

    def _devices_on(self, a: int, node: int) -> int:
        attempts = self.attempts
        for part in range(attempts.n_parts(a)):
            if attempts.node(a, part) == node:
                return attempts.packed.values[a * attempts.width + HEAD + PART * part + 3]
        return 0

    def _companions(self, a: int, out: IntList) -> None:
        """Those that live on devices which this one would have to itself, had it all that it asks for.

        A job that has all it asks for, a fraction of a device included, has none: it gets what was measured.
        """
        attempts = self.attempts
        out.clear()
        if attempts.packed.values[a * attempts.width + SHARE] >= self.jobs.share_asked[attempts.job[a]]:
            return
        attempts.neighbours(a, out)
        kept = 0
        for k in range(out.n):
            if attempts.shares_device(a, out.values[k]):
                out.values[kept] = out.values[k]
                kept += 1
        out.n = kept

    def _rates_changed(self) -> None:
        """Of the attempts in `_changed`."""
        for k in range(self._changed.n):
            self._rate_changed(self._changed.values[k])

    def _sharing_changed(self, a: int) -> None:
        """It has begun beside others, or has told its start there: their speeds and its own are news."""
        self._companions(a, self._left)
        for k in range(self._left.n):
            self._rate_changed(self._left.values[k])
        if self._left.n > 0:
            self._rate_changed(a)

    def _rate_changed(self, a: int) -> None:
        self._settle(a)
        self.attempts.rate[a] = self._rate(a)
        self._plan_finish(a)
        self._report_progress(a)

    def _plan_finish(self, a: int) -> None:
        attempts = self.attempts
        attempts.epoch[a] += 1
        attempts.finish_ms[a] = NEVER_MS
        total, rate = self.jobs.work_total[attempts.job[a]], attempts.rate[a]
        if total != total or rate <= 0.0:
            return
        left_ms = -floor_div(-(total - attempts.work[a]) * MS_PER_S, rate)
        if left_ms < FURTHEST_MS:
            whole_ms = int(max(left_ms, 0.0))
            attempts.finish_ms[a] = attempts.as_of_ms[a] + whole_ms + self.exit_ms
            self.heap.add(attempts.finish_ms[a], DUE_FINISH, a, attempts.epoch[a])
            if self.heap.n > self.heap_max:  # jobs that take turns leave an end behind each time
                self.heap.drop_stale(DUE_FINISH, attempts.epoch)
                self.heap_max = 2 * self.heap.n + HEAP_MIN

    def _save_at_failure(self, a: int) -> None:
        """What survives a failure: the last checkpoint."""
        attempts = self.attempts
        work, rate = attempts.work[a], attempts.rate[a]
        kept = work
        if self.checkpoint_period_s > 0.0 and rate > 0.0:
            each, begin = rate * self.checkpoint_period_s, attempts.work_at_start[a]
            kept = begin + each * math.floor((work - begin) / each)
        self.jobs.saved[attempts.job[a]] = kept
        if rate > 0.0:
            self.lost_gpu_s += (work - kept) / rate * self._gpus(attempts.packed, a * attempts.width)

    def _end(self, a: int, code: int) -> None:
        """Nothing of the attempt lives any more."""
        attempts, jobs = self.attempts, self.jobs
        job: int = attempts.job[a]
        for part in range(attempts.n_parts(a)):
            attempts.alive[a, part] = 0
        attempts.n_alive[a] = 0
        attempts.epoch[a] += 1
        attempts.leave_nodes(a)
        jobs.attempt[job] = -1
        self._record(job, attempts.generation[a], code, attempts.packed, a * attempts.width)
        if self.interference > 0.0:
            attempts.neighbours(a, self._changed)
            self._rates_changed()
        self._companions(a, self._left)
        for k in range(self._left.n):
            self._rate_changed(self._left.values[k])
        attempts.release(a)

    def _gpus(self, packed: IntList, at: int) -> float:
        return gang_devices(packed, at) * packed.values[at + SHARE] / 1000.0


def note_nodes(lists: NodeLists, job: int, packed: IntList, at: int) -> None:
    begin = lists.begin(job, packed.values[at])
    for part in range(packed.values[at]):
        lists.values.values[begin + part] = packed.values[at + HEAD + PART * part]

"""The simulated world as arrays: attempts of jobs on nodes, what they have done, and what is due when.

What it holds is true, whatever the engine believes. Commands are fenced as an agent on a real node fences them: by
generation, and within one by sequence number. Reports are rows (`reports`); who has read them clears them. What is rare
(outages, inventories, injected faults, sharing, losses) is Python around it, called through `Hooks`.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from trainmaster.core.arithmetic import floor_div, lucky
from trainmaster.core.codes import HEAD, KIND, MS_PER_S, NEVER_MS, PART, SHARE
from trainmaster.core.due_heap import DueHeap
from trainmaster.core.int_list import Floats, IntList, new_ints
from trainmaster.core.message_kinds import (
    EXITED,
    LAUNCH,
    PROGRESSED,
    RESIZED,
    START_FAILED,
    STARTED,
    STOP,
    STOPPED,
)  # fmt: skip
from trainmaster.core.messages import Messages
from trainmaster.core.packed import gang_devices, gang_hosts, gang_servers, gang_workers, same_place
from trainmaster.core.sim_attempts import Attempts
from trainmaster.core.sim_jobs import NO_CODE, NodeLists, SimJobs

DUE_STARTED, DUE_MEASURED, DUE_STOPPED, DUE_FINISH, DUE_COLLAPSE, DUE_OTHER = range(6)
FURTHEST_MS = 2.0**60
"""An end that lies further ahead does not come."""
NOT_MEASURED = float("nan")


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


class SimBackend:
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
        self.zombies = IntList()
        """Attempts that another generation has superseded while they lived (should never be)."""
        self.gpus_of_node, self.node_speed = np.maximum(gpus_of_node, 1.0), np.ones(n_nodes)
        self.powered, self.linked = np.ones(n_nodes, np.uint8), np.ones(n_nodes, np.uint8)
        self.n_unpowered = self.n_unlinked = 0
        self.off_since, self.on_since = new_ints(n_nodes), new_ints(n_nodes)
        """Serial numbers of a node's last power cut and return: what agents wrote down before is gone."""
        self.factors: dict[tuple[int, int, int], float] = {}
        """Speed relative to the reference size, by (curve, workers, servers)."""
        self._changed, self._beside, self._left, self._there = IntList(), IntList(), IntList(), IntList()

    # -- time ----------------------------------------------------------------------------------------

    def next_due_ms(self) -> int:
        return self.now_ms if self.reports.n > 0 else self.heap.next_ms()

    def advance_rows(self, now_ms: int) -> None:
        """Let the world go on to this time; what is reported until then is in `reports`."""
        heap = self.heap
        while heap.next_ms() <= now_ms:
            heap.pop()
            self.now_ms = heap.at_ms
            self._happen(heap.kind, heap.item, heap.epoch, heap.order)
        self.now_ms = now_ms

    def _happen(self, kind: int, a: int, epoch: int, number: int) -> None:
        attempts = self.attempts
        if kind == DUE_FINISH:
            if attempts.epoch[a] == epoch and self.jobs.attempt[attempts.job[a]] == a:
                self._finish(a)
        elif kind == DUE_OTHER:
            self.hooks.other_due(number)
        elif attempts.serial[a] == epoch and self.jobs.attempt[attempts.job[a]] == a:
            if kind == DUE_STARTED:
                self._started(a)
            elif kind == DUE_MEASURED:
                self._measured(a)
            elif kind == DUE_STOPPED:
                self._stopped(a)
            else:
                self._collapse(a)

    def schedule_other(self, at_ms: int) -> int:
        """Have `other_due` called then; returns the number that it will be given."""
        return self.heap.add(at_ms, DUE_OTHER, 0, 0)

    def _schedule(self, at_ms: int, kind: int, a: int) -> None:
        self.heap.add(at_ms, kind, a, self.attempts.serial[a])

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
            if not self.is_reachable(lists.values.values[i]):
                numbers.append(lists.values.values[i])
        self.reports.code[k] = numbers.n - self.reports.extra[k]

    # -- commands ------------------------------------------------------------------------------------

    def arrived(self, index: int, job: int) -> None:
        """The engine's job index stands for this job number from now on."""
        if index >= self.job_at.shape[0]:
            self.job_at = np.concatenate([np.asarray(self.job_at), np.zeros(index + 1, np.int64)])
        before = self.job_at[index]
        if self.jobs.index[before] == index:
            self.jobs.index[before] = -1
        self.job_at[index] = job
        self.jobs.index[job] = index

    def perform_row(self, kind: int, index: int, generation: int, seq: int, gangs: IntList, at: int) -> None:
        """Carry out a command; a launch's or resize's gang begins at `at`."""
        job, jobs = self.job_at[index], self.jobs
        self.seen_up_to = max(self.seen_up_to, seq)
        if generation == jobs.seen_generation[job] and seq < jobs.seen_seq[job]:
            return  # overtaken by a later command for the same attempt
        if generation >= jobs.seen_generation[job]:
            jobs.seen_generation[job], jobs.seen_seq[job] = generation, seq
        if kind == LAUNCH:
            self._launch(job, generation, seq, gangs, at)
        elif kind == STOP:
            self._stop(job, generation)
        else:
            self._resize(job, generation, seq, gangs, at)

    def is_reachable(self, node: int) -> bool:
        return self.powered[node] != 0 and self.linked[node] != 0

    def _any_silent(self, a: int) -> bool:
        """Whether a node with living members cannot be asked."""
        if self.n_unpowered + self.n_unlinked > 0:
            attempts = self.attempts
            for part in range(attempts.n_parts(a)):
                if attempts.alive[a, part] and not self.is_reachable(attempts.node(a, part)):
                    return True
        return False

    def _first_unreachable(self, gangs: IntList, at: int) -> int:
        first = -1
        if self.n_unpowered + self.n_unlinked > 0:
            for part in range(gangs.values[at]):
                node = gangs.values[at + HEAD + PART * part]
                if not self.is_reachable(node) and (first < 0 or node < first):
                    first = node
        return first

    def _launch(self, job: int, generation: int, seq: int, gangs: IntList, at: int) -> None:
        jobs, attempts = self.jobs, self.attempts
        present: int = jobs.attempt[job]
        if present >= 0 and attempts.generation[present] == generation:
            if attempts.started[present] and not self._any_silent(present):  # a repeated command: answer again
                k = self._new_report(STARTED, job, generation, attempts.work_at_start[present])
                self.reports.at_ms[k] = self.now_ms
                self._sent(k)
            return
        if generation <= jobs.generation[job]:
            self._answer_again(job, generation)
            return
        jobs.generation[job] = generation
        _note_nodes(jobs.launched, job, gangs, at)
        unreachable = self._first_unreachable(gangs, at)
        if unreachable >= 0 or (self.may_fail and self.hooks.fails_to_launch(job)):
            self._record(job, generation, NO_CODE, gangs, at)
            jobs.record_node[job], jobs.record_failed[job] = unreachable, 1
            self._answer_again(job, generation)
            return
        cost_ms = self.restart_cost_ms if generation > 1 else 0
        self.lost_gpu_s += self._gpus(gangs, at) * cost_ms / MS_PER_S
        a = self._begin(job, generation, gangs, at, jobs.saved[job], self.now_ms + self.launch_ms + cost_ms)
        attempts.seq[a] = seq
        jobs.recorded[job] = 0
        if self.launch_ms:
            self._schedule(self.now_ms + self.launch_ms, DUE_STARTED, a)
            self._sharing_changed(a)
        else:
            self._started(a)
        if self.interference > 0.0:
            attempts.neighbours(a, self._changed)
            self._rates_changed()

    def adopt(self, job: int, generation: int, gangs: IntList, at: int, work: float, productive_ms: int) -> None:
        """An attempt that began elsewhere and has come so far goes on here. Nothing is reported."""
        self.jobs.generation[job] = generation
        _note_nodes(self.jobs.launched, job, gangs, at)
        a = self._begin(job, generation, gangs, at, work, productive_ms)
        self.attempts.started[a] = 1

    def _begin(self, job: int, generation: int, gangs: IntList, at: int, work: float, productive_ms: int) -> int:
        """A new attempt that goes on from this work; returns its row."""
        jobs, attempts = self.jobs, self.attempts
        present, a = jobs.attempt[job], attempts.new_row()
        attempts.orders += 1
        attempts.order[a] = attempts.orders
        if present >= 0:
            attempts.leave_nodes(present)
            attempts.order[a] = attempts.order[present]
            self.zombies.reserve(self.zombies.n + 1)
            self.zombies.append(present)
        jobs.attempt[job] = a
        attempts.job[a], attempts.generation[a], attempts.seq[a] = job, generation, 0
        attempts.work[a] = attempts.work_at_start[a] = work
        attempts.as_of_ms[a] = attempts.productive_ms[a] = productive_ms
        attempts.set_gang(a, gangs, at)
        attempts.enter_nodes(a)
        attempts.luck[a] = lucky(int(jobs.key[job]), int(generation), self.noise) if self.noise > 0.0 else 1.0
        attempts.rate[a] = self._rate(a)
        self._plan_finish(a)
        return a

    def _started(self, a: int) -> None:
        attempts = self.attempts
        if attempts.stopping[a] or not attempts.is_whole(a):
            return
        attempts.started[a] = 1
        if self._is_heard(a):
            k = self._new_report(STARTED, attempts.job[a], attempts.generation[a], attempts.work_at_start[a])
            self.reports.at_ms[k] = attempts.productive_ms[a]
            self._sent(k)
        self._sharing_changed(a)
        if self.first_report_ms:
            self._schedule(attempts.productive_ms[a] + self.first_report_ms, DUE_MEASURED, a)

    def _measured(self, a: int) -> None:
        """A report of measured progress, repeated for as long as the attempt runs if so wished."""
        if self.attempts.stopping[a]:
            return
        self.settle(a)
        self._report_progress(a)
        if self.report_period_ms:
            self._schedule(self.now_ms + self.report_period_ms, DUE_MEASURED, a)

    def _stop(self, job: int, generation: int) -> None:
        jobs, attempts = self.jobs, self.attempts
        a = jobs.attempt[job]
        if a < 0 or attempts.generation[a] != generation:
            if generation > jobs.generation[job]:
                # The launch never arrived: fence it, so that it does nothing should it arrive later.
                jobs.generation[job] = generation
                jobs.launched.n[job] = 0
            self._answer_again(job, generation)
            return
        if attempts.stopping[a]:
            return
        attempts.stopping[a] = attempts.told_to_stop[a] = 1
        delay_ms = self.hooks.stop_takes_ms() if self.slow_stops else self.stop_ms
        if delay_ms:
            self._schedule(self.now_ms + delay_ms, DUE_STOPPED, a)
        else:
            self._stopped(a)

    def _stopped(self, a: int) -> None:
        """A told stop takes effect on the reachable members, with a checkpoint if the gang is whole."""
        attempts, jobs = self.attempts, self.jobs
        job: int = attempts.job[a]
        self.settle(a)
        if attempts.started[a] and self._is_productive(a) and not self._any_silent(a):
            jobs.saved[job] = attempts.work[a]
        attempts.stopping[a] = 0
        attempts.epoch[a] += 1
        for part in range(attempts.n_parts(a)):
            if attempts.alive[a, part] and self.is_reachable(attempts.node(a, part)):
                attempts.alive[a, part] = 0
                attempts.n_alive[a] -= 1
        if attempts.n_alive[a] == 0:
            self._end(a, NO_CODE)
        self._report_stopped(job, attempts.generation[a], jobs.saved[job])

    def _resize(self, job: int, generation: int, seq: int, gangs: IntList, at: int) -> None:
        attempts = self.attempts
        a: int = self.jobs.attempt[job]
        if a < 0 or attempts.generation[a] != generation:
            self._answer_again(job, generation)
            return
        if attempts.told_to_stop[a]:
            return
        if seq > attempts.seq[a]:
            if self._first_unreachable(gangs, at) >= 0 or self._any_silent(a) or not attempts.is_whole(a):
                return  # not now; it is asked again
            self._change_gang(a, seq, gangs, at)
        k = self._new_report(RESIZED, job, generation, attempts.work[a])
        self.reports.seq[k], self.reports.at_ms[k] = seq, attempts.as_of_ms[a]
        self._sent(k)
        self._sharing_changed(a)

    def _change_gang(self, a: int, seq: int, gangs: IntList, at: int) -> None:
        attempts = self.attempts
        self.settle(a)
        moved = not same_place(gangs, at, attempts.gangs, a * attempts.width)
        cost_ms = self.resize_cost_ms if moved else 0  # a change of share alone is free
        self._companions(a, self._left)
        attempts.neighbours(a, self._changed)
        attempts.leave_nodes(a)
        attempts.set_gang(a, gangs, at)
        attempts.enter_nodes(a)
        attempts.seq[a] = seq
        _note_nodes(self.jobs.launched, attempts.job[a], gangs, at)
        attempts.as_of_ms[a] = max(attempts.as_of_ms[a], self.now_ms + cost_ms)
        self.lost_gpu_s += self._gpus(gangs, at) * cost_ms / MS_PER_S
        attempts.rate[a] = self._rate(a)
        self._plan_finish(a)
        if self.interference > 0.0:
            attempts.neighbours(a, self._beside)
            for k in range(self._beside.n):
                attempts.insert(self._beside.values[k], self._changed)
            self._rates_changed()
        for k in range(self._left.n):
            self._rate_changed(self._left.values[k])

    def _answer_again(self, job: int, generation: int) -> None:
        """A command for an attempt that has ended: its report may have been lost, so repeat it."""
        jobs = self.jobs
        if generation != jobs.generation[job] or jobs.attempt[job] >= 0:
            return
        if not self.has_record(job):  # no agent knows of it any more
            self._report_stopped(job, generation, jobs.saved[job])
        elif jobs.record_failed[job]:
            k = self._new_report(START_FAILED, job, generation, NOT_MEASURED)
            self.reports.code[k] = jobs.record_node[job]
            self._sent(k)
        elif jobs.record_code[job] != NO_CODE and self.record_is_reachable(job):
            self._report_exit(job, generation, jobs.record_code[job], jobs.record_work[job])
        else:
            self._report_stopped(job, generation, jobs.record_work[job])

    def _report_exit(self, job: int, generation: int, code: int, work: float) -> None:
        k = self._new_report(EXITED, job, generation, work)
        self.reports.code[k] = code
        self._sent(k)

    # -- nodes ---------------------------------------------------------------------------------------

    def set_power(self, node: int, on: bool) -> None:
        """With its power a node's agent loses what it has written down."""
        self.serials += 1
        if on:
            self.on_since[node] = self.serials
            self.n_unpowered -= 1
        else:
            self.off_since[node] = self.serials
            self.n_unpowered += 1
        self.powered[node] = on

    def set_link(self, node: int, on: bool) -> None:
        """The gangs there have worked until now as they could."""
        attempts = self.attempts
        for k in range(attempts.n_on_node[node]):
            if attempts.lives_on(attempts.on_node[node, k], node):
                self.settle(attempts.on_node[node, k])
        self.n_unlinked += -1 if on else 1
        self.linked[node] = on

    def replan_on(self, node: int) -> None:
        """The gangs there may go on: when will they have finished?"""
        attempts = self.attempts
        for k in range(attempts.n_on_node[node]):
            if attempts.lives_on(attempts.on_node[node, k], node):
                self._plan_finish(attempts.on_node[node, k])

    def end_members(self, node: int) -> None:
        """Everything that runs on a node ends."""
        attempts, there = self.attempts, self._there
        there.clear()
        there.reserve(attempts.n_on_node[node] + self.zombies.n)
        for k in range(attempts.n_on_node[node]):
            there.append(attempts.on_node[node, k])
        for k in range(self.zombies.n):
            there.append(self.zombies.values[k])
        for k in range(there.n):
            if attempts.lives_on(there.values[k], node):
                self._lose_members(there.values[k], node)
        kept = 0
        for k in range(self.zombies.n):
            a = self.zombies.values[k]
            if attempts.n_alive[a]:
                self.zombies.values[kept] = a
                kept += 1
            else:
                attempts.release(a)
        self.zombies.n = kept

    # -- what agents remember ------------------------------------------------------------------------

    def _record(self, job: int, generation: int, code: int, gangs: IntList, at: int) -> None:
        """Agents write down how an attempt ended."""
        jobs = self.jobs
        _note_nodes(jobs.record_nodes, job, gangs, at)
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

    def has_record(self, job: int) -> bool:
        nodes = self.jobs.record_nodes
        if self.jobs.recorded[job]:
            for k in range(nodes.at[job], nodes.at[job] + nodes.n[job]):
                if self._knows(job, nodes.values.values[k]):
                    return True
        return False

    def record_is_reachable(self, job: int) -> bool:
        nodes = self.jobs.record_nodes
        for k in range(nodes.at[job], nodes.at[job] + nodes.n[job]):
            node = nodes.values.values[k]
            if self._knows(job, node) and self.is_reachable(node):
                return True
        return False

    # -- physics -------------------------------------------------------------------------------------

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

    def settle(self, a: int) -> None:
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
        job, gangs, at = attempts.job[a], attempts.gangs, a * attempts.width
        kind = max(gangs.values[at + KIND], 0)
        spread = gang_hosts(gangs, at) > 1
        rate = jobs.speed[job, kind + jobs.n_types if spread else kind]
        workers, servers = gang_workers(gangs, at), gang_servers(gangs, at)
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
                        self._devices_on(other, node) * attempts.gangs.values[other * attempts.width + SHARE] / 1000.0
                    )
            most = max(most, used / self.gpus_of_node[node])
        return most

    def _devices_on(self, a: int, node: int) -> int:
        attempts = self.attempts
        for part in range(attempts.n_parts(a)):
            if attempts.node(a, part) == node:
                return attempts.gangs.values[a * attempts.width + HEAD + PART * part + 3]
        return 0

    def _companions(self, a: int, out: IntList) -> None:
        """Those that live on devices which this one would have to itself, had it all that it asks for.

        A job that has all it asks for, a fraction of a device included, has none: it gets what was measured.
        """
        attempts = self.attempts
        out.clear()
        if attempts.gangs.values[a * attempts.width + SHARE] >= self.jobs.share_asked[attempts.job[a]]:
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
        self.settle(a)
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

    def _finish(self, a: int) -> None:
        if not self._is_productive(a):
            return  # planned anew when the gang is whole again
        attempts, jobs = self.attempts, self.jobs
        job: int = attempts.job[a]
        attempts.work[a] = jobs.saved[job] = jobs.work_total[job]
        heard = self._is_heard(a)
        self._end(a, 0)
        if heard:
            self._report_exit(job, attempts.generation[a], 0, jobs.saved[job])

    def crash_attempt(self, job: int, code: int) -> bool:
        """The job ends by a fault of its own, if all its members run within reach."""
        attempts = self.attempts
        a: int = self.jobs.attempt[job]
        if a < 0 or not attempts.started[a] or not attempts.is_whole(a) or self._any_silent(a):
            return False
        self.settle(a)
        self._save_at_failure(a)
        self._end(a, code)
        self._report_exit(job, attempts.generation[a], code, self.jobs.saved[job])
        return True

    def _collapse(self, a: int) -> None:
        """The rest of a gang that lost members ends by itself, and those that can say so."""
        attempts, heard = self.attempts, False
        job: int = attempts.job[a]
        for part in range(attempts.n_parts(a)):
            heard = heard or (attempts.alive[a, part] != 0 and self.is_reachable(attempts.node(a, part)))
        self._end(a, NO_CODE)
        if heard:
            self._report_stopped(job, attempts.generation[a], self.jobs.saved[job])

    def _lose_members(self, a: int, node: int) -> None:
        """Members on a node end. The attempt is over when none is left anywhere."""
        attempts, jobs = self.attempts, self.jobs
        self.settle(a)
        if attempts.is_whole(a):
            self._save_at_failure(a)
        for part in range(attempts.n_parts(a)):
            if attempts.node(a, part) == node and attempts.alive[a, part]:
                attempts.alive[a, part] = 0
                attempts.n_alive[a] -= 1
        attempts.epoch[a] += 1
        if jobs.attempt[attempts.job[a]] != a:
            return
        if attempts.n_alive[a]:
            self._schedule(self.now_ms + self.collapse_ms, DUE_COLLAPSE, a)
        else:
            self._end(a, NO_CODE)

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
            self.lost_gpu_s += (work - kept) / rate * self._gpus(attempts.gangs, a * attempts.width)

    def _gpus(self, gangs: IntList, at: int) -> float:
        return gang_devices(gangs, at) * gangs.values[at + SHARE] / 1000.0

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
        self._record(job, attempts.generation[a], code, attempts.gangs, a * attempts.width)
        if self.interference > 0.0:
            attempts.neighbours(a, self._changed)
            self._rates_changed()
        self._companions(a, self._left)
        for k in range(self._left.n):
            self._rate_changed(self._left.values[k])
        attempts.release(a)


def _note_nodes(lists: NodeLists, job: int, gangs: IntList, at: int) -> None:
    begin = lists.begin(job, gangs.values[at])
    for part in range(gangs.values[at]):
        lists.values.values[begin + part] = gangs.values[at + HEAD + PART * part]

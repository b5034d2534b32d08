"""A simulated world under command, compiled: launches, resizes and stops, what is due when, and nodes that fail.

Commands are fenced as an agent on a real node fences them: by generation, and within one by sequence number.
"""

from __future__ import annotations

import numpy as np

from trainmaster.core.arithmetic import lucky
from trainmaster.core.codes import HEAD, MS_PER_S, PART
from trainmaster.core.int_list import IntList
from trainmaster.core.sim.due_kinds import DUE_COLLAPSE, DUE_FINISH, DUE_MEASURED, DUE_OTHER, DUE_STARTED, DUE_STOPPED
from trainmaster.core.sim.jobs import NO_CODE
from trainmaster.core.sim.world import SimWorld, note_nodes
from trainmaster.core.state.message_kinds import LAUNCH, RESIZED, START_FAILED, STARTED, STOP
from trainmaster.core.state.packed_allocation import same_place

NOT_MEASURED = float("nan")


class SimBackend(SimWorld):
    """A world that takes commands and goes on in time."""

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

    def perform_row(self, kind: int, index: int, generation: int, seq: int, packed: IntList, at: int) -> None:
        """Carry out a command; a launch's or resize's gang begins at `at`."""
        job, jobs = self.job_at[index], self.jobs
        self.seen_up_to = max(self.seen_up_to, seq)
        if generation == jobs.seen_generation[job] and seq < jobs.seen_seq[job]:
            return  # overtaken by a later command for the same attempt
        if generation >= jobs.seen_generation[job]:
            jobs.seen_generation[job], jobs.seen_seq[job] = generation, seq
        if kind == LAUNCH:
            self._launch(job, generation, seq, packed, at)
        elif kind == STOP:
            self._stop(job, generation)
        else:
            self._resize(job, generation, seq, packed, at)

    def _first_unreachable(self, packed: IntList, at: int) -> int:
        first = -1
        if self.n_unpowered + self.n_unlinked > 0:
            for part in range(packed.values[at]):
                node = packed.values[at + HEAD + PART * part]
                if not self._is_reachable(node) and (first < 0 or node < first):
                    first = node
        return first

    def _launch(self, job: int, generation: int, seq: int, packed: IntList, at: int) -> None:
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
        note_nodes(jobs.launched, job, packed, at)
        unreachable = self._first_unreachable(packed, at)
        if unreachable >= 0 or (self.may_fail and self.hooks.fails_to_launch(job)):
            self._record(job, generation, NO_CODE, packed, at)
            jobs.record_node[job], jobs.record_failed[job] = unreachable, 1
            self._answer_again(job, generation)
            return
        cost_ms = self.restart_cost_ms if generation > 1 else 0
        self.lost_gpu_s += self._gpus(packed, at) * cost_ms / MS_PER_S
        a = self._begin(job, generation, packed, at, jobs.saved[job], self.now_ms + self.launch_ms + cost_ms)
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

    def adopt(self, job: int, generation: int, packed: IntList, at: int, work: float, productive_ms: int) -> None:
        """An attempt that began elsewhere and has come so far goes on here. Nothing is reported."""
        self.jobs.generation[job] = generation
        note_nodes(self.jobs.launched, job, packed, at)
        a = self._begin(job, generation, packed, at, work, productive_ms)
        self.attempts.started[a] = 1

    def _begin(self, job: int, generation: int, packed: IntList, at: int, work: float, productive_ms: int) -> int:
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
        attempts.set_gang(a, packed, at)
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
        self._settle(a)
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
        self._settle(a)
        if attempts.started[a] and self._is_productive(a) and not self._any_silent(a):
            jobs.saved[job] = attempts.work[a]
        attempts.stopping[a] = 0
        attempts.epoch[a] += 1
        for part in range(attempts.n_parts(a)):
            if attempts.alive[a, part] and self._is_reachable(attempts.node(a, part)):
                attempts.alive[a, part] = 0
                attempts.n_alive[a] -= 1
        if attempts.n_alive[a] == 0:
            self._end(a, NO_CODE)
        self._report_stopped(job, attempts.generation[a], jobs.saved[job])

    def _resize(self, job: int, generation: int, seq: int, packed: IntList, at: int) -> None:
        attempts = self.attempts
        a: int = self.jobs.attempt[job]
        if a < 0 or attempts.generation[a] != generation:
            self._answer_again(job, generation)
            return
        if attempts.told_to_stop[a]:
            return
        if seq > attempts.seq[a]:
            if self._first_unreachable(packed, at) >= 0 or self._any_silent(a) or not attempts.is_whole(a):
                return  # not now; it is asked again
            self._change_gang(a, seq, packed, at)
        k = self._new_report(RESIZED, job, generation, attempts.work[a])
        self.reports.seq[k], self.reports.at_ms[k] = seq, attempts.as_of_ms[a]
        self._sent(k)
        self._sharing_changed(a)

    def _change_gang(self, a: int, seq: int, packed: IntList, at: int) -> None:
        attempts = self.attempts
        self._settle(a)
        moved = not same_place(packed, at, attempts.packed, a * attempts.width)
        cost_ms = self.resize_cost_ms if moved else 0  # a change of share alone is free
        self._companions(a, self._left)
        attempts.neighbours(a, self._changed)
        attempts.leave_nodes(a)
        attempts.set_gang(a, packed, at)
        attempts.enter_nodes(a)
        attempts.seq[a] = seq
        note_nodes(self.jobs.launched, attempts.job[a], packed, at)
        attempts.as_of_ms[a] = max(attempts.as_of_ms[a], self.now_ms + cost_ms)
        self.lost_gpu_s += self._gpus(packed, at) * cost_ms / MS_PER_S
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
        if not self._has_record(job):  # no agent knows of it any more
            self._report_stopped(job, generation, jobs.saved[job])
        elif jobs.record_failed[job]:
            k = self._new_report(START_FAILED, job, generation, NOT_MEASURED)
            self.reports.code[k] = jobs.record_node[job]
            self._sent(k)
        elif jobs.record_code[job] != NO_CODE and self._record_is_reachable(job):
            self._report_exit(job, generation, jobs.record_code[job], jobs.record_work[job])
        else:
            self._report_stopped(job, generation, jobs.record_work[job])

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
                self._settle(attempts.on_node[node, k])
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

    def is_reachable(self, node: int) -> bool:
        return self._is_reachable(node)

    def is_recorded(self, job: int) -> bool:
        """Whether an agent that can be asked remembers how the job's last attempt ended."""
        return self._record_is_reachable(job)

    def settle(self, a: int) -> None:
        """Bring an attempt's work up to now."""
        self._settle(a)

    # -- ends ----------------------------------------------------------------------------------------

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
        self._settle(a)
        self._save_at_failure(a)
        self._end(a, code)
        self._report_exit(job, attempts.generation[a], code, self.jobs.saved[job])
        return True

    def _collapse(self, a: int) -> None:
        """The rest of a gang that lost members ends by itself, and those that can say so."""
        attempts, heard = self.attempts, False
        job: int = attempts.job[a]
        for part in range(attempts.n_parts(a)):
            heard = heard or (attempts.alive[a, part] != 0 and self._is_reachable(attempts.node(a, part)))
        self._end(a, NO_CODE)
        if heard:
            self._report_stopped(job, attempts.generation[a], self.jobs.saved[job])

    def _lose_members(self, a: int, node: int) -> None:
        """Members on a node end. The attempt is over when none is left anywhere."""
        attempts, jobs = self.attempts, self.jobs
        self._settle(a)
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

"""Decisions that go down a list of jobs: what fits runs, in the order of a key.

A pass takes any jobs and any free resources. It writes on the free resources while it works and undoes that in the end.
"""

from __future__ import annotations

import numpy as np

from trainmaster.core.cluster_arrays import ClusterArrays
from trainmaster.core.codes import (
    BY_ARRIVAL,
    BY_DEADLINE,
    BY_GIVEN_KEY,
    BY_QUEUE,
    BY_REMAINING,
    BY_SERVICE,
    LOST,
    MS_PER_S,
    PENDING,
    RESERVED,
    RUNNING,
    SHAPE,
    STOPPING,
    WHOLE,
)
from trainmaster.core.free_resources import FreeResources, fits_gang, give_gang, take_gang
from trainmaster.core.int_list import Floats, IntList, new_floats, new_ints
from trainmaster.core.job_arrays import JobArrays, remaining_now, service_now
from trainmaster.core.passes import Pass
from trainmaster.core.placement import Placer
from trainmaster.core.plan_arrays import PlanArrays
from trainmaster.core.sorting import sort_by, sort_by_two


class QueuePass(Pass):
    """Waiting jobs (and, if `preemptive`, those that run) in the order of a key; `strict`: who does not fit holds up
    all
    behind it."""

    def __init__(self, key: int, preemptive: bool, strict: bool, default: int) -> None:
        super().__init__()
        self.for_waiting = True
        self.default = default
        self.key, self.preemptive, self.strict = key, preemptive, strict
        self.hopeless_last = self.any_waiting = False
        self.quantum_ms = 0
        self.promote = 0.0
        self.thresholds: Floats = new_floats(0)
        self.ready, self.start, self.kinds, self.stopped = IntList(64), IntList(64), IntList(64), IntList(64)
        self.start_at, self.stop_at = IntList(64), IntList(64)
        self.spare, self.nothing, self.kept = IntList(64), IntList(1), IntList(64)
        self.keys: Floats = new_floats(64)
        self.available, self.other_count = new_ints(1), new_ints(1)
        self.last, self.stamp, self.round, self.n_sorted = IntList(64), new_ints(1), 0, 0
        """The order of the last decision, as far as it was sorted, and marks by job."""

    def set_keys(self, keys: Floats) -> None:
        """Keys by job index, as somebody else computed them (`BY_GIVEN_KEY`)."""
        self.keys = keys

    def decide(
        self, jobs: JobArrays, which: IntList, now_ms: int, cluster: ClusterArrays, free: FreeResources, placer: Placer,
        plan: PlanArrays,
    ) -> bool:  # fmt: skip
        plan.clear()
        if self._list_ready(jobs, which, now_ms):
            if self.preemptive and self._all_fit(jobs, now_ms, free, placer):
                self._start_all(jobs, free, placer, plan)
            else:
                self._keep_order()
                self._sort(jobs, now_ms)
                if self.preemptive:
                    self.run_in_order(jobs, self.ready, free, placer, plan)
                else:
                    self.place_in_order(jobs, self.ready, self.strict, free, placer, plan)
        plan.wake_at_ms = self._next_look_ms(jobs, which, now_ms)
        plan.default = self.default
        return True

    def _make_room(self, n: int, jobs: JobArrays) -> None:
        self.ready.reserve(n)
        self.spare.reserve(max(n, 16))
        self.start.reserve(n)
        self.kinds.reserve(n)
        self.stopped.reserve(n)
        self.start_at.reserve(n)
        self.stop_at.reserve(n)
        self.kept.reserve(max(n, 16))
        self.last.reserve(n)
        if len(self.stamp) < jobs.capacity:
            self.stamp = np.zeros(jobs.capacity, np.int64)
            self.n_sorted = 0
        if len(self.keys) < jobs.capacity:
            self.keys = np.zeros(jobs.capacity)
        if len(self.available) < jobs.n_types:
            self.available, self.other_count = np.zeros(jobs.n_types, np.int64), np.zeros(jobs.n_types, np.int64)

    def _list_ready(self, jobs: JobArrays, which: IntList, now_ms: int) -> bool:
        """List the jobs that may be started now or, if preemptive, preempted. False: none could be started."""
        self._make_room(which.n, jobs)
        ready, any_ready = self.spare, False
        self.any_waiting = False
        ready.clear()
        for k in range(which.n):
            i = which.values[k]
            if i < 0:
                continue
            phase = jobs.phase[i]
            if phase == PENDING:
                self.any_waiting = True
                if jobs.not_before_ms[i] <= now_ms:
                    any_ready = True
                    ready.append(i)
            elif self.preemptive and (phase == RESERVED or (phase == RUNNING and jobs.preemptible[i] > 0)):
                ready.append(i)
        return any_ready

    def _all_fit(self, jobs: JobArrays, now_ms: int, free: FreeResources, placer: Placer) -> bool:
        """Whether all that wait fit, each on its fastest type, in the whole devices that are free by count. Then
        nobody has
        to stop, whatever the order of those that run, and who waits is in `start`, in the order of the key."""
        start, available = self.start, self.available
        if self.hopeless_last or self.key == BY_GIVEN_KEY:
            return False
        placer.count_up(free, available, self.other_count)
        for kind in range(jobs.n_types):
            available[kind] *= WHOLE
        start.clear()
        for k in range(self.spare.n):
            i = self.spare.values[k]
            if jobs.phase[i] != PENDING:
                continue
            fastest = -1
            for kind in range(jobs.n_types):
                if jobs.may_use[i, kind] and (fastest < 0 or jobs.speed[i, kind] > jobs.speed[i, fastest]):
                    fastest = kind
            if fastest < 0 or jobs.ask_gpu_milli[i] > available[fastest]:
                return False
            available[fastest] -= jobs.ask_gpu_milli[i]
            start.append(i)
            self.keys[i] = self._key_of(jobs, i, now_ms)
        sort_by_two(start, self.keys, jobs.arrival, self.kept)
        return True

    def _start_all(self, jobs: JobArrays, free: FreeResources, placer: Placer, plan: PlanArrays) -> None:
        start = self.start
        self.stopped.clear()
        placer.begin()
        placer.place_list(jobs, start, 0, start.n, self.nothing, False, jobs.workers_ask, jobs.servers_ask, free)
        if placer.failure >= 0:
            self._note_misfits(placer, plan)
        self._write(jobs, start, free, placer, plan)

    def _key_of(self, jobs: JobArrays, i: int, now_ms: int) -> float:
        key = self.key
        if key == BY_REMAINING:
            return remaining_now(jobs, i, now_ms)
        if key == BY_SERVICE:
            return service_now(jobs, i, now_ms)
        if key == BY_DEADLINE:
            return float(jobs.deadline_ms[i])
        if key == BY_QUEUE:
            return float(self._queue_of(jobs, i, now_ms))
        return 0.0

    def _keep_order(self) -> None:
        """From the jobs listed in `spare`, in order of arrival, to `ready`: those of the last decision in its order,
        then
        the others. Most keys change little from one decision to the next, so sorting is quick."""
        ready, listed, stamp, n = self.ready, self.spare, self.stamp, 0
        if self.key == BY_ARRIVAL:
            ready.n = listed.n
            for k in range(listed.n):
                ready.values[k] = listed.values[k]
            return
        self.round += 2
        for k in range(listed.n):
            stamp[listed.values[k]] = self.round
        for k in range(self.n_sorted):
            i = self.last.values[k]
            if stamp[i] == self.round:
                stamp[i] = self.round + 1
                ready.values[n] = i
                n += 1
        for k in range(listed.n):
            i = listed.values[k]
            if stamp[i] == self.round:
                ready.values[n] = i
                n += 1
        ready.n = n

    def _sort(self, jobs: JobArrays, now_ms: int) -> None:
        ready, keys, key = self.ready, self.keys, self.key
        if key == BY_ARRIVAL:
            return
        if key != BY_GIVEN_KEY:
            for k in range(ready.n):
                keys[ready.values[k]] = self._key_of(jobs, ready.values[k], now_ms)
        sort_by_two(ready, keys, jobs.arrival, self.spare)
        self.n_sorted = self.last.n = ready.n
        for k in range(ready.n):
            self.last.values[k] = ready.values[k]
        if self.hopeless_last:
            for k in range(ready.n):
                i = ready.values[k]
                late = now_ms + remaining_now(jobs, i, now_ms) * 1000.0 > jobs.deadline_ms[i]
                keys[i] = 1.0 if late else 0.0
            sort_by(ready, keys, self.spare)

    # -- queues by attained service ------------------------------------------------------------------

    def _level(self, service: float) -> int:
        """How many thresholds the service has passed."""
        level = 0
        while level < len(self.thresholds) and self.thresholds[level] <= service:
            level += 1
        return level

    def _run_ms(self, jobs: JobArrays, i: int, now_ms: int) -> float:
        running = RUNNING <= jobs.phase[i] <= STOPPING
        since_s = (now_ms - jobs.as_of_ms[i]) / MS_PER_S if running else 0.0
        return (jobs.run_s[i] + since_s) * MS_PER_S

    def _queue_of(self, jobs: JobArrays, i: int, now_ms: int) -> int:
        """Its queue; the first for one that has waited `promote` times as long as it has run."""
        if self.promote > 0.0:
            run_ms = self._run_ms(jobs, i, now_ms)
            waited_ms = now_ms - jobs.waiting_since_ms[i] if jobs.phase[i] == PENDING else 0
            if run_ms > 0.0 and waited_ms >= self.promote * run_ms:
                return 0
        return self._level(service_now(jobs, i, now_ms))

    def _next_look_ms(self, jobs: JobArrays, which: IntList, now_ms: int) -> int:
        """When the order changes by the passing of time alone; -1: never, or nobody waits."""
        if not self.any_waiting:
            return -1
        if self.quantum_ms:
            return now_ms + self.quantum_ms
        return self._next_queue_change_ms(jobs, which, now_ms) if self.key == BY_QUEUE else -1

    def _next_queue_change_ms(self, jobs: JobArrays, which: IntList, now_ms: int) -> int:
        """When the next running job sinks or the next waiting one is promoted."""
        soonest_s, soonest_ms = -1.0, -1.0
        for k in range(which.n):
            i = which.values[k]
            if i < 0:
                continue
            if jobs.workers[i] > 0 and jobs.phase[i] != LOST:
                gpus = jobs.workers[i] * jobs.worker_gpu_milli[i] / 1000.0
                service = service_now(jobs, i, now_ms)
                level = self._level(service)
                if gpus > 0.0 and level < len(self.thresholds):
                    left_s = (self.thresholds[level] - service) / gpus
                    if soonest_s < 0.0 or left_s < soonest_s:
                        soonest_s = left_s
            elif self.promote > 0.0 and jobs.phase[i] == PENDING:
                run_ms = self._run_ms(jobs, i, now_ms)
                waited_ms = now_ms - jobs.waiting_since_ms[i]
                if run_ms > 0.0 and waited_ms < self.promote * run_ms:
                    left_ms = self.promote * run_ms - waited_ms
                    if soonest_ms < 0.0 or left_ms < soonest_ms:
                        soonest_ms = left_ms
        if soonest_s >= 0.0 and (soonest_ms < 0.0 or soonest_s * MS_PER_S < soonest_ms):
            soonest_ms = soonest_s * MS_PER_S
        if soonest_ms < 0.0:
            return -1
        return now_ms + max(1, _ceiling(soonest_ms))  # type: ignore

    # -- down the list -------------------------------------------------------------------------------

    def place_in_order(
        self, jobs: JobArrays, order: IntList, strict: bool, free: FreeResources, placer: Placer, plan: PlanArrays
    ) -> None:
        """Waiting jobs in this order start where they fit."""
        placer.begin()
        placer.place_list(jobs, order, 0, order.n, self.nothing, strict, jobs.workers_ask, jobs.servers_ask, free)
        if strict and placer.failure >= 0:
            plan.blocker = order.values[placer.failure]
        self.stopped.clear()
        self._write(jobs, order, free, placer, plan)

    def run_in_order(
        self, jobs: JobArrays, order: IntList, free: FreeResources, placer: Placer, plan: PlanArrays
    ) -> None:
        """Preemptive: down this list, what fits in the cluster shall run and the rest shall wait.

        Jobs chosen that run already stay where they are. A stop that turns out not to be needed (the gang did not fit
        in
        the end) is taken back, before those that come after it in the list can take its place: it would have to be
        given
        back to it the next time."""
        self._make_room(order.n, jobs)
        self._choose(jobs, order, free, placer)
        start, stopped, kept = self.start, self.stopped, self.kept
        if start.n == 0:
            return
        for k in range(stopped.n):
            i = stopped.values[k]
            give_gang(free, jobs.allocation, i * jobs.width, i, jobs)
        placer.begin()
        begin = 0
        kept.clear()
        for k in range(stopped.n):
            i, end = stopped.values[k], begin
            while end < start.n and self.start_at.values[end] < self.stop_at.values[k]:
                end += 1
            placer.place_list(jobs, start, begin, end, self.nothing, False, jobs.workers_ask, jobs.servers_ask, free)
            begin = end
            if fits_gang(free, jobs.allocation, i * jobs.width, i, jobs):
                take_gang(free, jobs.allocation, i * jobs.width, i, jobs)
            else:
                kept.append(i)
        placer.place_list(jobs, start, begin, start.n, self.nothing, False, jobs.workers_ask, jobs.servers_ask, free)
        stopped.n = kept.n
        for k in range(kept.n):
            stopped.values[k] = kept.values[k]
        if placer.failure >= 0:
            self._note_misfits(placer, plan)
        self._write(jobs, start, free, placer, plan)

    def _note_misfits(self, placer: Placer, plan: PlanArrays) -> None:
        """Those that were counted to fit and were not placed."""
        plan.stated.reserve(2 * self.start.n)
        at = 0
        for k in range(self.start.n):
            if at < placer.placed.n and placer.placed.values[at] == k:
                at += 1
            else:
                plan.stated.append(self.start.values[k])
                plan.stated.append(SHAPE)

    def _choose(self, jobs: JobArrays, order: IntList, free: FreeResources, placer: Placer) -> None:
        """Down the list, every job that fits by count in what is left of its type shall run.

        A job that runs is measured by what it holds and keeps its type. Lists the jobs to start and to stop, and where
        they stand; nothing is stopped when nothing is started."""
        start, stop, available = self.start, self.stopped, self.available
        start.n = stop.n = self.start_at.n = self.stop_at.n = 0
        placer.count_up(free, self.other_count, available)
        for k in range(order.n):
            i = order.values[k]
            if jobs.workers[i] > 0 and jobs.held_type[i] >= 0:
                available[jobs.held_type[i]] += jobs.held_gpu_milli[i]
        for k in range(order.n):
            i = order.values[k]
            if jobs.workers[i] > 0:
                held, need = jobs.held_type[i], jobs.held_gpu_milli[i]
                if held < 0 or need == 0:
                    continue
                if need <= available[held]:
                    available[held] -= need
                else:
                    stop.append(i)
                    self.stop_at.append(k)
                continue
            need = jobs.ask_gpu_milli[i]
            best = -1
            for kind in range(jobs.n_types):
                if (
                    jobs.may_use[i, kind]
                    and need <= available[kind]
                    and (best < 0 or jobs.speed[i, kind] > jobs.speed[i, best])
                ):
                    best = kind
            if best >= 0:
                available[best] -= need
                start.append(i)
                self.start_at.append(k)
        if start.n == 0:
            stop.clear()

    def _write(self, jobs: JobArrays, order: IntList, free: FreeResources, placer: Placer, plan: PlanArrays) -> None:
        """Write the changes (stops first, then in order of arrival) and undo them in the free resources."""
        stopped, placed, keys, gangs = self.stopped, placer.placed, self.keys, self.kinds
        for k in range(placed.n):
            i = order.values[placed.values[k]]
            placer.take_back(jobs, i, placer.first.values[k], free)  # type: ignore
        plan.jobs.reserve(stopped.n + placed.n)
        plan.first.reserve(stopped.n + placed.n)
        for k in range(stopped.n):
            i = stopped.values[k]
            take_gang(free, jobs.allocation, i * jobs.width, i, jobs)
            keys[i] = float(jobs.arrival[i])
        sort_by(stopped, keys, self.spare)
        for k in range(stopped.n):
            plan.jobs.append(stopped.values[k])
            plan.first.append(-1)
        gangs.clear()
        for k in range(placed.n):
            gangs.append(order.values[placed.values[k]])  # type: ignore
            keys[gangs.values[k]] = float(jobs.arrival[gangs.values[k]])
        sort_by(gangs, keys, self.spare)
        for k in range(placed.n):
            keys[order.values[placed.values[k]]] = float(placer.first.values[k])
        for k in range(placed.n):
            plan.jobs.append(gangs.values[k])
            plan.first.append(int(keys[gangs.values[k]]))
        plan.flat, placer.flat = placer.flat, plan.flat


def _ceiling(value: float) -> int:
    whole = float(int(value))
    return int(whole) if whole == value else int(whole) + 1

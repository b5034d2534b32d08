"""Decisions that go down a list of jobs: what fits runs, in the order of a key.

A pass takes any jobs and any free resources. It writes on the free resources while it works and undoes that in the end.
"""

from __future__ import annotations

import numpy as np

from trainmaster.core.codes import (
    BY_DEADLINE,
    BY_GIVEN_KEY,
    BY_QUEUE,
    BY_REMAINING,
    BY_SERVICE,
    LOST,
    MS_PER_S,
    NO_NODE,
    PENDING,
    RESERVED,
    RUNNING,
    SHAPE,
    STOPPING,
    WHOLE,
)
from trainmaster.core.engine.decision_pass import Pass
from trainmaster.core.engine.placement import Placer
from trainmaster.core.int_list import Floats, IntList, new_floats, new_ints
from trainmaster.core.sorting import sort_by, sort_by_two
from trainmaster.core.state.cluster_arrays import ClusterArrays
from trainmaster.core.state.free_resources import FreeResources, fits_gang, give_gang, take_gang
from trainmaster.core.state.job_arrays import JobArrays, log_phase, remaining_now, service_now
from trainmaster.core.state.plan_arrays import PlanArrays
from trainmaster.core.waiting_queue import JobHeap, WaitingQueue


class QueuePass(Pass):
    """Waiting jobs (and, if `preemptive`, those that run) in the order of a key; `strict`: who does not fit holds up
    all behind it that could use the same nodes."""

    def __init__(self, key: int, preemptive: bool, strict: bool, default: int) -> None:
        super().__init__()
        self.for_waiting = True
        self.default = default
        self.key, self.preemptive, self.strict = key, preemptive, strict
        self.hopeless_last = self.any_waiting = False
        self.quantum_ms = 0
        self.promote = 0.0
        self.thresholds: Floats = new_floats(0)
        self.followed: JobArrays | None = None
        self.waiting, self.promotions = WaitingQueue(), JobHeap()
        """Jobs that may be started now, and those that will be promoted, by the time of that."""
        self.deferred = IntList(64)
        """Jobs that wait for a while before they may be started."""
        self.active, self.is_active = IntList(64), np.zeros(0, np.uint8)
        """Jobs that have been given something, about in the order of the key, and which those are."""
        self.ready, self.start, self.gpu_types, self.stopped = IntList(64), IntList(64), IntList(64), IntList(64)
        self.start_at, self.stop_at = IntList(64), IntList(64)
        self.spare, self.nothing, self.kept = IntList(64), IntList(1), IntList(64)
        self.keys, self.late = new_floats(64), new_floats(64)
        self.available, self.other_count = new_ints(1), new_ints(1)
        self.contested = np.zeros(0, np.uint8)
        """Nodes that a job which is held up, or holds others up, could use."""

    def set_keys(self, keys: Floats) -> None:
        """Keys by job index, as somebody else computed them (`BY_GIVEN_KEY`)."""
        self.keys = keys

    def follow(self, jobs: JobArrays) -> None:
        if self.hopeless_last or self.key == BY_GIVEN_KEY:
            return
        self.followed, jobs.logs_phases = jobs, True
        self._make_room(jobs)
        jobs.phase_log.clear()
        for k in range(jobs.order.n):
            if jobs.order.values[k] >= 0:
                log_phase(jobs, jobs.order.values[k])

    def decide(
        self,
        jobs: JobArrays,
        which: IntList,
        now_ms: int,
        cluster: ClusterArrays,
        free: FreeResources,
        placer: Placer,
        plan: PlanArrays,
    ) -> bool:
        plan.clear()
        self._make_room(jobs)
        if self.followed is jobs:
            self._catch_up(jobs, now_ms)
        else:
            self._list(jobs, which, now_ms)
        self.any_waiting = self.waiting.n + self.deferred.n > 0
        if self.waiting.n > 0:
            if not self.preemptive:
                self._place_in_order(jobs, cluster, free, placer, plan)
            elif self._all_fit(jobs, free, placer):
                self._start_all(jobs, free, placer, plan)
            else:
                self._sort_active(jobs, now_ms)
                self._run_in_order(jobs, free, placer, plan)
        plan.wake_at_ms = self._next_look_ms(jobs, now_ms)
        plan.default = self.default
        return True

    def _make_room(self, jobs: JobArrays) -> None:
        self.waiting.fit(jobs)
        if len(self.is_active) < jobs.capacity:
            is_active = np.zeros(jobs.capacity, np.uint8)
            is_active[: len(self.is_active)] = self.is_active
            self.is_active = is_active
            self.late = np.zeros(jobs.capacity)
        if len(self.keys) < jobs.capacity:
            self.keys = np.zeros(jobs.capacity)
        if len(self.available) < jobs.n_types:
            self.available, self.other_count = np.zeros(jobs.n_types, np.int64), np.zeros(jobs.n_types, np.int64)

    # -- who waits, who runs -------------------------------------------------------------------------

    def _list(self, jobs: JobArrays, which: IntList, now_ms: int) -> None:
        """List these jobs anew."""
        self.waiting.clear()
        for k in range(self.active.n):
            self.is_active[self.active.values[k]] = 0
        self.active.n = self.deferred.n = self.promotions.n = 0
        for k in range(which.n):
            if which.values[k] >= 0:
                self._enter(jobs, which.values[k], now_ms)

    def _catch_up(self, jobs: JobArrays, now_ms: int) -> None:
        """Take note of what has changed."""
        log, deferred, kept = jobs.phase_log, self.deferred, 0
        for k in range(log.n):
            self._enter(jobs, log.values[k], now_ms)
        log.clear()
        for k in range(deferred.n):
            i = deferred.values[k]
            if jobs.phase[i] != PENDING or self.waiting.holds(i):
                continue
            if jobs.not_before_ms[i] <= now_ms:
                self._push(jobs, i, now_ms)
            else:
                deferred.values[kept] = i
                kept += 1
        deferred.n = kept
        self._promote(jobs, now_ms)

    def _enter(self, jobs: JobArrays, i: int, now_ms: int) -> None:
        """A job waits, or has been given something, or is over."""
        phase = jobs.phase[i]
        self.waiting.remove(i)
        if phase == PENDING:
            if self.promote > 0.0:
                self._note_promotion(jobs, i)
            if jobs.not_before_ms[i] <= now_ms:
                self._push(jobs, i, now_ms)
            else:
                self.deferred.reserve(self.deferred.n + 1)
                self.deferred.append(i)
        elif self.preemptive and RESERVED <= phase <= LOST and not self.is_active[i]:
            self.is_active[i] = 1
            self.active.reserve(self.active.n + 1)
            self.active.append(i)

    def _push(self, jobs: JobArrays, i: int, now_ms: int) -> None:
        rank = 1 if self.hopeless_last and self._is_late(jobs, i, now_ms) else 0
        self.waiting.push(jobs, i, rank, self._key_of(jobs, i, now_ms))

    def _is_late(self, jobs: JobArrays, i: int, now_ms: int) -> bool:
        """Whether it can no longer make its deadline."""
        return now_ms + remaining_now(jobs, i, now_ms) * 1000.0 > jobs.deadline_ms[i]

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
        return self.keys[i] if key == BY_GIVEN_KEY else 0.0

    def _sort_active(self, jobs: JobArrays, now_ms: int) -> None:
        """List the jobs that may be preempted in the order of the key; most keys change little from one decision to the
        next, so sorting is quick."""
        active, ready, others = self.active, self.ready, self.spare
        ready.clear()
        others.clear()
        ready.reserve(active.n)
        others.reserve(max(active.n, 16))
        for k in range(active.n):
            i = active.values[k]
            phase = jobs.phase[i]
            if phase == RESERVED or (phase == RUNNING and jobs.preemptible[i] > 0):
                ready.append(i)
                self.keys[i] = self._key_of(jobs, i, now_ms)
            elif RESERVED <= phase <= LOST:
                others.append(i)
            else:
                self.is_active[i] = 0
        active.n = ready.n + others.n
        for k in range(others.n):
            active.values[ready.n + k] = others.values[k]
        sort_by_two(ready, self.keys, jobs.arrival, self.spare)
        if self.hopeless_last:
            for k in range(ready.n):
                self.late[ready.values[k]] = 1.0 if self._is_late(jobs, ready.values[k], now_ms) else 0.0
            sort_by(ready, self.late, self.spare)
        for k in range(ready.n):
            active.values[k] = ready.values[k]

    def _all_fit(self, jobs: JobArrays, free: FreeResources, placer: Placer) -> bool:
        """Whether all that wait fit, each on its fastest type, in the whole devices that are free by count. Then
        nobody has to stop, whatever the order of those that run."""
        available, waiting = self.available, self.waiting
        if self.hopeless_last or self.key == BY_GIVEN_KEY or waiting.n_homeless > 0:
            return False
        placer.count_up(free, available, self.other_count)
        for gpu_type in range(jobs.n_types):
            if waiting.asked[gpu_type] > available[gpu_type] * WHOLE:
                return False
        return True

    def _start_all(self, jobs: JobArrays, free: FreeResources, placer: Placer, plan: PlanArrays) -> None:
        start = self.start
        self.waiting.take_all(start)
        self.kept.reserve(max(start.n, 16))
        sort_by_two(start, self.waiting.key_of, jobs.arrival, self.kept)
        self.stopped.clear()
        placer.begin()
        placer.place_list(jobs, start, 0, start.n, self.nothing, False, jobs.workers_ask, jobs.servers_ask, free)
        self._close(jobs, free, placer, plan)

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

    def _note_promotion(self, jobs: JobArrays, i: int) -> None:
        """A job that waits and has run before goes back to the first queue when it has waited long enough."""
        since_ms = jobs.waiting_since_ms[i]
        after_ms = self.promote * self._run_ms(jobs, i, since_ms)
        if after_ms > 0.0:
            self.promotions.push(0, since_ms + after_ms, jobs.arrival[i], i, since_ms)

    def _promote(self, jobs: JobArrays, now_ms: int) -> None:
        """Put those that have waited long enough in the first queue; the first promotion that is left is to come."""
        promotions = self.promotions
        while promotions.n > 0:
            i = promotions.job[0]
            waits = jobs.phase[i] == PENDING and jobs.arrival[i] == promotions.tie[0]
            if waits and jobs.waiting_since_ms[i] == promotions.mark[0]:
                if now_ms - jobs.waiting_since_ms[i] < self.promote * self._run_ms(jobs, i, now_ms):
                    return
                if self.waiting.holds(i):
                    self._push(jobs, i, now_ms)
            promotions.pop()

    def _next_look_ms(self, jobs: JobArrays, now_ms: int) -> int:
        """When the order changes by the passing of time alone; -1: never, or nobody waits."""
        if not self.any_waiting:
            return -1
        if self.quantum_ms:
            return now_ms + self.quantum_ms
        return self._next_queue_change_ms(jobs, now_ms) if self.key == BY_QUEUE else -1

    def _next_queue_change_ms(self, jobs: JobArrays, now_ms: int) -> int:
        """When the next running job sinks or the next waiting one is promoted."""
        soonest_s, soonest_ms = -1.0, -1.0
        for k in range(self.active.n):
            i = self.active.values[k]
            if jobs.workers[i] > 0 and RESERVED <= jobs.phase[i] < LOST:
                gpus = jobs.workers[i] * jobs.worker_gpu_milli[i] / 1000.0
                service = service_now(jobs, i, now_ms)
                level = self._level(service)
                if gpus > 0.0 and level < len(self.thresholds):
                    left_s = (self.thresholds[level] - service) / gpus
                    if soonest_s < 0.0 or left_s < soonest_s:
                        soonest_s = left_s
        self._promote(jobs, now_ms)
        if self.promotions.n > 0:
            i = self.promotions.job[0]
            soonest_ms = self.promote * self._run_ms(jobs, i, now_ms) - (now_ms - jobs.waiting_since_ms[i])
        if soonest_s >= 0.0 and (soonest_ms < 0.0 or soonest_s * MS_PER_S < soonest_ms):
            soonest_ms = soonest_s * MS_PER_S
        if soonest_ms < 0.0:
            return -1
        return now_ms + max(1, _ceiling(soonest_ms))  # type: ignore

    # -- down the list -------------------------------------------------------------------------------

    def _place_in_order(
        self, jobs: JobArrays, cluster: ClusterArrays, free: FreeResources, placer: Placer, plan: PlanArrays
    ) -> None:
        """Waiting jobs in their order start where they fit."""
        waiting, start = self.waiting, self.start
        start.clear()
        self.stopped.clear()
        placer.begin()
        waiting.begin_walk()
        c = waiting.first()
        while c >= 0:
            i, n_placed = waiting.head(c), placer.placed.n
            behind = plan.blocker >= 0 and self._n_workers(jobs, i, cluster, placer, True) > 0
            if not behind:
                start.reserve(start.n + 1)
                start.append(i)
                placer.place_list(
                    jobs, start, start.n - 1, start.n, self.nothing, True, jobs.workers_ask, jobs.servers_ask, free
                )
            if placer.placed.n > n_placed:
                waiting.take(c)
            elif self.strict and self._hold_up(jobs, i, cluster, placer, plan, behind):
                break
            else:
                waiting.fail(c)
            c = waiting.first()
        waiting.end_walk(jobs)
        self._write(jobs, start, free, placer, plan)

    def _hold_up(
        self, jobs: JobArrays, i: int, cluster: ClusterArrays, placer: Placer, plan: PlanArrays, behind: bool
    ) -> bool:
        """Job i does not start: who could use the same nodes waits for it. Whether that is everybody. One that could
        not run even on its nodes alone holds up nobody."""
        anywhere, n_left = jobs.node_set[i] == 0, 0
        for gpu_type in range(jobs.n_types):
            anywhere = anywhere and jobs.may_use[i, gpu_type] > 0
        if plan.blocker < 0:
            if anywhere:
                plan.blocker = i
                return True
            self.contested = np.zeros(cluster.n_nodes, np.uint8)
        fits = self._n_workers(jobs, i, cluster, placer, False) >= jobs.workers_ask[i]
        if not fits or (plan.blocker >= 0 and not behind):
            plan.stated.reserve(plan.stated.n + 2)
            plan.stated.append(i)
            plan.stated.append(self.default if fits else NO_NODE)
        if not fits:
            return False
        if plan.blocker < 0:
            plan.blocker = i
        for node in range(cluster.n_nodes):
            if placer.most_workers(jobs, i, node) > 0:
                self.contested[node] = 1
            if cluster.up[node] and not self.contested[node]:
                n_left += 1
        return n_left == 0

    def _n_workers(self, jobs: JobArrays, i: int, cluster: ClusterArrays, placer: Placer, contested: bool) -> int:
        """How many workers the nodes that job i may use could take if they were empty; or the contested ones alone."""
        n_workers = 0
        placer.open_set(jobs.node_set[i])  # type: ignore
        for node in range(cluster.n_nodes):
            if not contested or self.contested[node]:
                n_workers += placer.most_workers(jobs, i, node)
        return n_workers

    def _run_in_order(self, jobs: JobArrays, free: FreeResources, placer: Placer, plan: PlanArrays) -> None:
        """Preemptive: down the list, what fits in the cluster shall run and the rest shall wait.

        Jobs chosen that run already stay where they are. A stop that turns out not to be needed (the gang did not fit
        in the end) is taken back, before those that come after it in the list can take its place: it would have to be
        given back to it the next time."""
        self._choose(jobs, free, placer)
        start, stopped, kept = self.start, self.stopped, self.kept
        if start.n == 0:
            return
        for k in range(stopped.n):
            i = stopped.values[k]
            give_gang(free, jobs.allocation, i * jobs.width, i, jobs)
        placer.begin()
        begin = 0
        kept.clear()
        kept.reserve(max(stopped.n, 16))
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
        self._close(jobs, free, placer, plan)

    def _close(self, jobs: JobArrays, free: FreeResources, placer: Placer, plan: PlanArrays) -> None:
        """Those that were counted to fit and were not placed wait on; write the rest."""
        if placer.failure >= 0:
            plan.stated.reserve(2 * self.start.n)
            at = 0
            for k in range(self.start.n):
                if at < placer.placed.n and placer.placed.values[at] == k:
                    at += 1
                    continue
                i = self.start.values[k]
                plan.stated.append(i)
                plan.stated.append(SHAPE)
                if jobs.phase[i] == PENDING:
                    self.waiting.push(jobs, i, self.waiting.rank_of[i], self.waiting.key_of[i])  # type: ignore
        self._write(jobs, self.start, free, placer, plan)

    def _choose(self, jobs: JobArrays, free: FreeResources, placer: Placer) -> None:
        """Down the list, every job that fits by count in what is left of its type shall run.

        A job that runs is measured by what it holds and keeps its type. Lists the jobs to start and to stop, and where
        they stand; nothing is stopped when nothing is started."""
        start, stop, available, ready, waiting = self.start, self.stopped, self.available, self.ready, self.waiting
        start.n = stop.n = self.start_at.n = self.stop_at.n = 0
        placer.count_up(free, self.other_count, available)
        for k in range(ready.n):
            i = ready.values[k]
            if jobs.workers[i] > 0 and jobs.held_type[i] >= 0:
                available[jobs.held_type[i]] += jobs.held_gpu_milli[i]
        waiting.begin_walk()
        c, k = waiting.first(), 0
        while c >= 0 or k < ready.n:
            if c >= 0 and (k == ready.n or self._waits_before(jobs, c, ready.values[k])):
                if self._count_in(jobs, waiting.head(c), k):
                    waiting.take(c)
                else:
                    waiting.fail(c)
                c = waiting.first()
                continue
            i = ready.values[k]
            k += 1
            if jobs.workers[i] == 0:
                self._count_in(jobs, i, k)
                continue
            held, need = jobs.held_type[i], jobs.held_gpu_milli[i]
            if held < 0 or need == 0:
                continue
            if need <= available[held]:
                available[held] -= need
            else:
                stop.reserve(stop.n + 1)
                self.stop_at.reserve(stop.n + 1)
                stop.append(i)
                self.stop_at.append(k)
        waiting.end_walk(jobs)
        if start.n == 0:
            stop.clear()

    def _waits_before(self, jobs: JobArrays, c: int, i: int) -> bool:
        """Whether the first waiting job of a class comes before the running job i."""
        rank = 1 if self.hopeless_last and self.late[i] > 0.0 else 0
        return self.waiting.comes_first(c, rank, self.keys[i], jobs.arrival[i])

    def _count_in(self, jobs: JobArrays, i: int, at: int) -> bool:
        """Start job i, which stands before the running job of place `at`, if it fits by count in what is left."""
        available, need, best = self.available, jobs.ask_gpu_milli[i], -1
        for gpu_type in range(jobs.n_types):
            if (
                jobs.may_use[i, gpu_type]
                and need <= available[gpu_type]
                and (best < 0 or jobs.speed[i, gpu_type] > jobs.speed[i, best])
            ):
                best = gpu_type
        if best < 0:
            return False
        available[best] -= need
        self.start.reserve(self.start.n + 1)
        self.start_at.reserve(self.start.n + 1)
        self.start.append(i)
        self.start_at.append(at)
        return True

    def _write(self, jobs: JobArrays, order: IntList, free: FreeResources, placer: Placer, plan: PlanArrays) -> None:
        """Write the changes (stops first, then in order of arrival) and undo them in the free resources."""
        stopped, placed, keys, packed = self.stopped, placer.placed, self.keys, self.gpu_types
        packed.clear()
        packed.reserve(placed.n)
        self.spare.reserve(max(max(stopped.n, placed.n), 16))
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
        for k in range(placed.n):
            packed.append(order.values[placed.values[k]])  # type: ignore
            keys[packed.values[k]] = float(jobs.arrival[packed.values[k]])
        sort_by(packed, keys, self.spare)
        for k in range(placed.n):
            keys[order.values[placed.values[k]]] = float(placer.first.values[k])
        for k in range(placed.n):
            plan.jobs.append(packed.values[k])
            plan.first.append(int(keys[packed.values[k]]))
        plan.flat, placer.flat = placer.flat, plan.flat


def _ceiling(value: float) -> int:
    whole = float(int(value))
    return int(whole) if whole == value else int(whole) + 1

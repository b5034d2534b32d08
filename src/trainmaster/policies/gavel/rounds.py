# cython: cdivision=True
"""The round mechanism (section 5): from time shares to who runs next, on what.

The priority of a unit (a job, or a pair of jobs that share devices) on a type is the share it should have over the
share it has had. Each round takes (unit, type) entries greedily by priority, whole gangs, never a job twice.
"""

from __future__ import annotations

import math

import numpy as np

from trainmaster.core.codes import COUNT, LOST, MS_PER_S, NEVER_MS, PAUSED, PENDING, RESERVED, RUNNING
from trainmaster.core.int_list import Floats, IntList, Ints, new_floats, new_ints
from trainmaster.core.sorting import sort_by
from trainmaster.core.state.cluster_arrays import ClusterArrays
from trainmaster.core.state.free_resources import FreeResources
from trainmaster.core.state.job_arrays import JobArrays, work_now
from trainmaster.policies.gavel.codes import BY_TYPE, ONLY_POSITIVE, SHUFFLED

NEVER_RUN = 1e9
"""Scales the priority of a job that has had nothing yet, so that such jobs still rank by their share."""
GPU_MILLI = 1000.0
CHANGED_SPEED = 0.05
"""A speed that is now believed to differ by this part makes the shares stale."""
LEHMER, MODULUS = 48271, 2147483647
NO_DEADLINE = float("nan")


class Rounds:
    """One decision at a time over the jobs `which`; arrays without a comment are by position in `which`.

    `share` (X), `received_s`, `deficit_s`, `known` (0: new, 0.5: seen, 1: the shares were computed for it) and `speeds`
    (those the shares were computed for) are what the mechanism remembers; `worker_s` is the time given on each type.
    Pairs are units after the jobs: their shares, times and speeds are in arrays of their own.
    """

    def __init__(self, original: bool, time_dependent: bool, queueing: int, patience_s: float, reset_ms: int) -> None:
        self.original, self.time_dependent, self.queueing = original, time_dependent, queueing
        self.patience_s, self.reset_ms = patience_s, reset_ms
        self.round_ms = self.round_end_ms = self.last_reset_ms = self.computed_jobs = self.nodes_then = 0
        self.n = self.types = self.pairs = 0
        self.type_order: Ints = new_ints(0)
        self.order, self.entries, self.spare = IntList(64), IntList(64), IntList(64)
        self.stop, self.start, self.gpu_types = IntList(64), IntList(64), IntList(64)
        self.gpu_type_of: Ints = new_ints(0)
        self.longest_s, self.idle = -1.0, True
        self.speeds_found = False
        self.worker_s: Floats = new_floats(0)
        self.remember(np.zeros((0, 0)), np.zeros((0, 0)), np.zeros((0, 0)), new_floats(0), np.zeros((0, 0)))
        self.no_pairs(0)
        self._reserve(0, 1)

    # -- what it remembers ---------------------------------------------------------------------------

    def remember(self, share: Floats, received_s: Floats, deficit_s: Floats, known: Floats, speeds: Floats) -> None:
        """Work on these arrays; `received_s` and `known` are written."""
        self.share, self.received_s, self.deficit_s = share, received_s, deficit_s
        self.known, self.speeds = known, speeds

    def no_pairs(self, types: int) -> None:
        none = np.zeros((0, types))
        self.set_pairs(np.zeros((0, 2), np.int64), np.zeros((0, types, 2)), none, none.copy())

    def set_pairs(self, members: Ints, speed: Floats, share: Floats, received_s: Floats) -> None:
        """Pairs by the positions of their two jobs; `received_s` is written."""
        self.pairs = len(members)
        self.members, self.pair_share, self.pair_received_s = members, share, received_s
        self.pair_speed = np.ascontiguousarray(speed.reshape(len(members), 2 * share.shape[1]))

    def _reserve(self, n: int, types: int) -> None:
        """Make room for the work on n jobs (and the pairs)."""
        units = n + self.pairs
        if units > len(self.gpu_type_of) or types != self.types:
            room = 2 * units + 16
            self.pair_of, self.gpu_type_of = new_ints(room), new_ints(room)
            self.movable, self.holds = np.zeros(room, np.uint8), np.zeros(room, np.uint8)
            self.speed_of = np.zeros((room, types))
            self.first_key, self.second_key = new_floats(room * types), new_floats(room * types)
            self.third_key, self.arrival_key = new_floats(room * types), new_floats(room)
            self.slice_s = new_floats(room)
            self.free_gpus, self.given_s, self.largest = new_floats(types), new_floats(types), new_floats(types)
            self.turns = new_ints(types)
        for items in (self.entries, self.spare):
            items.reserve(units * types + 16)
        for items in (self.order, self.stop, self.start, self.gpu_types):
            items.reserve(n + 16)
        self.n, self.types = n, types

    # -- at the beginning of a decision ---------------------------------------------------------------

    def survey(self, jobs: JobArrays, which: IntList, now_ms: int) -> None:
        """Look at everybody: `holding` (somebody holds devices), `halved` (somebody has less of them than asked for),
        `without_gpus` and `elastic` (there is such a job), `n_new` (never seen before), `n_computed` (the shares were
        computed for them) and `to_run` (a job that may be changed has a share)."""
        self._reserve(which.n, jobs.n_types)
        self.speeds_found = False
        self.holding = self.halved = self.without_gpus = self.elastic = self.to_run = False
        self.n_new = self.n_computed = 0
        for k in range(which.n):
            i = which.values[k]
            if jobs.ask_gpu_milli[i] <= 0:
                self.without_gpus = True
            elif jobs.workers[i] > 0 and jobs.phase[i] != LOST:
                self.holding = True
            if jobs.held_gpu_milli[i] < jobs.workers[i] * jobs.worker_gpu_milli[i]:
                self.halved = True
            if jobs.workers_max[i] > jobs.workers_min[i]:
                self.elastic = True
            if self.known[k] == 0.0:
                self.n_new += 1
            elif self.known[k] == 1.0:
                self.n_computed += 1
            if not self.to_run and _changeable(jobs, i, now_ms):
                for gpu_type in range(self.types):
                    if self.share[k, gpu_type] > 0.0:
                        self.to_run = True

    def is_inside(self, now_ms: int) -> bool:
        """Whether a round is under way."""
        return self.holding and now_ms < self.round_end_ms

    def shares_are_due(
        self, jobs: JobArrays, which: IntList, now_ms: int, cluster: ClusterArrays, placement: int
    ) -> bool:
        """Shares are computed anew when jobs or nodes came or went or (unless `original`) speeds changed, at least
        `reset_ms` apart; sooner when the present shares leave nothing to run, and (unless `original`) for policies
        whose shares change with time."""
        nodes_up = count_up(cluster)
        stale = self.n_computed < which.n or self.n_computed != self.computed_jobs or nodes_up != self.nodes_then
        if not stale and not self.original:
            stale = self._speeds_changed(jobs, which, cluster, placement)
        rested = now_ms - self.last_reset_ms >= self.reset_ms
        if self.time_dependent and not self.original:
            return stale or rested
        return stale and (rested or self.last_reset_ms == 0 or not (self.to_run or self.pairs > 0))

    def _speeds_changed(self, jobs: JobArrays, which: IntList, cluster: ClusterArrays, placement: int) -> bool:
        """Whether something was measured that the shares do not know."""
        self._find_speeds(jobs, which, cluster, placement)
        for k in range(self.n):
            for gpu_type in range(self.types):
                now, then = self.speed_of[k, gpu_type], self.speeds[k, gpu_type]
                if abs(now - then) > CHANGED_SPEED * max(now, then):
                    return True
        return False

    def begin(self, now_ms: int, inside: bool) -> float:
        """Count new jobs in, as if each had had half a round on every type; returns the seconds left of the round."""
        if not inside:
            self.round_end_ms = now_ms + self.round_ms
        if self.n_new:
            half_s = self.round_ms / MS_PER_S / 2.0
            for k in range(self.n):
                if self.known[k] == 0.0:
                    self.known[k] = 0.5
                    for gpu_type in range(self.types):
                        self.received_s[k, gpu_type] = half_s
            for gpu_type in range(self.types):
                self.worker_s[gpu_type] += self.n_new * half_s
        return (self.round_end_ms - now_ms) / MS_PER_S

    # -- new shares ----------------------------------------------------------------------------------

    def renew(self, jobs: JobArrays, which: IntList, now_ms: int, cluster: ClusterArrays, placement: int) -> None:
        """Begin new shares, which are zero until they are written. What a job had less than was due to it is
        remembered; what it receives counts from here, half a round on each type to begin with."""
        half_s, elapsed_s = self.round_ms / MS_PER_S / 2.0, (now_ms - self.last_reset_ms) / MS_PER_S
        self._find_speeds(jobs, which, cluster, placement)
        for k in range(self.n):
            self.known[k] = 1.0
            for gpu_type in range(self.types):
                self.deficit_s[k, gpu_type] += self.share[k, gpu_type] * elapsed_s - (
                    self.received_s[k, gpu_type] - half_s
                )
                self.received_s[k, gpu_type] = half_s
                self.speeds[k, gpu_type] = self.speed_of[k, gpu_type]
                self.share[k, gpu_type] = 0.0
        self.computed_jobs, self.nodes_then, self.last_reset_ms = self.n, count_up(cluster), now_ms

    def competitors(self, jobs: JobArrays, which: IntList) -> Ints:
        """Positions of the jobs that want GPUs (not paused, not lost with their node), in order of arrival."""
        rows, found = np.empty(self.n, np.int64), 0
        out: Ints = rows
        self._sort_by_arrival(jobs, which)
        for place in range(self.n):
            i = which.values[self.order.values[place]]
            if jobs.phase[i] != PAUSED and jobs.phase[i] != LOST and jobs.ask_gpu_milli[i] > 0:
                out[found] = self.order.values[place]
                found += 1
        return rows[:found]

    def figures(self, jobs: JobArrays, which: IntList, rows: Ints, now_ms: int) -> Floats:
        """GPUs, steps that remain, seconds since submission and seconds to the deadline (NaN: none, or it has passed)
        of the jobs at `rows`. Work that is unknown counts as that of the longest job."""
        n, longest, any_known = len(rows), 1.0, False
        figures = np.empty((4, n))
        out: Floats = figures
        for k in range(n):
            row: int = rows[k]
            i: int = which.values[row]
            remaining = jobs.work_total[i] - work_now(jobs, i, now_ms)
            if math.isfinite(remaining):
                longest = max(longest, remaining) if any_known else remaining
                any_known = True
            out[0, k], out[1, k] = jobs.ask_gpu_milli[i] / GPU_MILLI, remaining
            out[2, k] = (now_ms - jobs.submit_ms[i]) / MS_PER_S
            left_ms = jobs.deadline_ms[i] - now_ms
            out[3, k] = left_ms / MS_PER_S if jobs.deadline_ms[i] < NEVER_MS and left_ms > 0 else NO_DEADLINE
        for k in range(n):
            out[1, k] = max(out[1, k] if math.isfinite(out[1, k]) else longest, 1e-9)
        return figures

    def speeds_at(self, rows: Ints) -> Floats:
        """Of the jobs at `rows` by type, as `renew` has found them."""
        speeds = np.empty((len(rows), self.types))
        out: Floats = speeds
        for k in range(len(rows)):
            for gpu_type in range(self.types):
                out[k, gpu_type] = self.speed_of[rows[k], gpu_type]
        return speeds

    def gpus_up(self, cluster: ClusterArrays) -> Floats:
        """GPUs of each type on nodes that are up, free or not."""
        gpus = np.zeros(self.types)
        out: Floats = gpus
        for node in range(cluster.n_nodes):
            if cluster.up[node]:
                out[cluster.type_of[node]] += float(cluster.gpus[node])
        return gpus

    def write_shares(self, rows: Ints, share: Floats, n_pairs: int) -> None:
        """The new shares of the jobs at `rows`."""
        half_s = self.round_ms / MS_PER_S / 2.0
        for k in range(len(rows)):
            for gpu_type in range(self.types):
                self.share[rows[k], gpu_type] = share[k, gpu_type]
        for gpu_type in range(self.types):
            self.worker_s[gpu_type] = (self.n + n_pairs) * half_s

    # -- who runs on what ----------------------------------------------------------------------------

    def choose(
        self,
        jobs: JobArrays,
        which: IntList,
        now_ms: int,
        inside: bool,
        cluster: ClusterArrays,
        free: FreeResources,
        placement: int,
    ) -> None:
        """Choose for the rest of the round: `gpu_type_of` (a type, or -1), `pair_of` (a pair, or -1: alone), and the
        positions to `stop` and to `start` (on `gpu_types`), in order of arrival. In the original, jobs that the shares
        do not know yet take room and do not run."""
        self._find_speeds(jobs, which, cluster, placement)
        self._sort_by_arrival(jobs, which)
        self._mark(jobs, which, now_ms, inside, cluster, free)
        self._prioritise(jobs, which, now_ms)
        self._fill(jobs, which, now_ms)
        self._compare(jobs, which)

    def _find_speeds(self, jobs: JobArrays, which: IntList, cluster: ClusterArrays, placement: int) -> None:
        """What a job makes of each type: on one node, or spread where the gang is larger than any node of the type.
        Found once in a decision."""
        if self.speeds_found:
            return
        self.speeds_found = True
        for gpu_type in range(self.types):
            self.largest[gpu_type] = 0.0
        for node in range(cluster.n_nodes):
            gpu_type = cluster.type_of[node]
            self.largest[gpu_type] = max(self.largest[gpu_type], float(cluster.gpus[node]))
        for k in range(self.n):
            i = which.values[k]
            for gpu_type in range(self.types):
                if not jobs.may_use[i, gpu_type]:
                    self.speed_of[k, gpu_type] = 0.0
                elif placement != COUNT and jobs.ask_gpu_milli[i] / GPU_MILLI > self.largest[gpu_type]:
                    self.speed_of[k, gpu_type] = jobs.speed_spread[i, gpu_type]
                else:
                    self.speed_of[k, gpu_type] = jobs.speed[i, gpu_type]

    def _sort_by_arrival(self, jobs: JobArrays, which: IntList) -> None:
        in_order = True
        self.order.clear()
        for k in range(self.n):
            self.order.append(k)
            self.arrival_key[k] = float(jobs.arrival[which.values[k]])
            if k and self.arrival_key[k] < self.arrival_key[k - 1]:
                in_order = False
        if not in_order:
            sort_by(self.order, self.arrival_key, self.spare)

    def _mark(
        self, jobs: JobArrays, which: IntList, now_ms: int, inside: bool, cluster: ClusterArrays, free: FreeResources
    ) -> None:
        """Mark whose allocation may be changed and who holds something; count the GPUs that are free of the former."""
        for gpu_type in range(self.types):
            self.given_s[gpu_type] = 0.0
            self.free_gpus[gpu_type] = 0.0
        for k in range(self.n):
            i = which.values[k]
            self.holds[k] = jobs.workers[i] > 0 and jobs.phase[i] != LOST
            self.movable[k] = _changeable(jobs, i, now_ms) and not (inside and self.holds[k])
            if self.movable[k] and self.holds[k] and jobs.held_type[i] >= 0:
                self.given_s[jobs.held_type[i]] += jobs.held_gpu_milli[i] / GPU_MILLI
        for node in range(cluster.n_nodes):
            if cluster.up[node]:
                milli = 0
                for device in range(free.milli.shape[1]):
                    milli += free.milli[node, device]
                self.free_gpus[cluster.type_of[node]] += milli / GPU_MILLI
        for gpu_type in range(self.types):
            self.free_gpus[gpu_type] += self.given_s[gpu_type]

    def _prioritise(self, jobs: JobArrays, which: IntList, now_ms: int) -> None:
        """The share due over the share received; who has waited too long goes first, because shares alone starve large
        gangs when small jobs keep coming. Equals go by what they had too little of before, then by share."""
        types = self.types
        for k in range(self.n):
            i = which.values[k]
            waited_s = (now_ms - jobs.waiting_since_ms[i]) / MS_PER_S if jobs.phase[i] == PENDING else 0.0
            late = self.patience_s > 0.0 and waited_s >= self.patience_s
            for gpu_type in range(types):
                due, priority = self.share[k, gpu_type], 0.0
                if self.speed_of[k, gpu_type] > 0.0:
                    priority = _priority(due, self.received_s[k, gpu_type], self.worker_s[gpu_type])
                    if late:
                        priority = 1e15 * waited_s + (due if due > 0.0 else 1e-6)
                self.first_key[k * types + gpu_type] = priority
                self.second_key[k * types + gpu_type] = self.deficit_s[k, gpu_type]
                self.third_key[k * types + gpu_type] = due
        for p in range(self.pairs):
            for gpu_type in range(types):
                entry = (self.n + p) * types + gpu_type
                due = self.pair_share[p, gpu_type]
                self.first_key[entry] = _priority(due, self.pair_received_s[p, gpu_type], self.worker_s[gpu_type])
                self.second_key[entry] = 0.0
                self.third_key[entry] = due

    def find_turns(self, now_ms: int) -> Ints:
        """The order in which types are looked at: faster ones first, or as given, or shuffled by the time (Fisher and
        Yates with Lehmer's generator)."""
        types, turns = self.types, self.turns
        if self.queueing & BY_TYPE:
            for gpu_type in range(types):
                turns[gpu_type] = self.type_order[gpu_type]
            if self.queueing & SHUFFLED:
                state = now_ms % (MODULUS - 1) + 1
                for _ in range(4):
                    state = state * LEHMER % MODULUS
                for last in range(types - 1, 0, -1):
                    state = state * LEHMER % MODULUS
                    other = state * (last + 1) // MODULUS
                    kept = turns[last]
                    turns[last] = turns[other]
                    turns[other] = kept
            return turns
        for gpu_type in range(types):
            total = 0.0
            for k in range(self.n):
                total += self.speed_of[k, gpu_type]
            self.given_s[gpu_type] = total
            at = gpu_type
            while at > 0 and self.given_s[turns[at - 1]] < total:
                turns[at] = turns[at - 1]
                at -= 1
            turns[at] = gpu_type
        return turns

    def _list_entries(self, with_priority: bool, without: bool) -> None:
        """The (unit, type) entries that could be taken, best first; with a priority, without one, or both."""
        entries, types = self.entries, self.types
        entries.clear()
        low = 0
        for t in range(types):
            gpu_type = self.turns[t]
            for place in range(self.n):
                k = self.order.values[place]
                wanted = with_priority if self.first_key[k * types + gpu_type] > 0.0 else without
                if wanted and self.movable[k] and self.speed_of[k, gpu_type] > 0.0:
                    entries.append(k * types + gpu_type)
            if with_priority:
                for u in range(self.n, self.n + self.pairs):
                    if self.first_key[u * types + gpu_type] > 0.0:
                        entries.append(u * types + gpu_type)
            if self.queueing & BY_TYPE:
                self._sort(low)
                low = entries.n
        if not self.queueing & BY_TYPE:
            self._sort(0)

    def _sort(self, low: int) -> None:
        """Stable merge sort of the entries from `low` on."""
        source, target, end, width = self.entries.values, self.spare.values, self.entries.n, 1
        while width < end - low:
            begin = low
            while begin < end:
                middle, high = min(begin + width, end), min(begin + 2 * width, end)
                left, right = begin, middle
                for k in range(begin, high):
                    if left < middle and (right >= high or not self._before(source[right], source[left])):
                        target[k] = source[left]
                        left += 1
                    else:
                        target[k] = source[right]
                        right += 1
                begin = high
            for k in range(low, end):
                source[k] = target[k]
            width *= 2

    def _before(self, a: int, b: int) -> bool:
        """Whether entry a comes strictly before b: larger first key, then second, then third."""
        if self.first_key[a] != self.first_key[b]:
            return self.first_key[a] > self.first_key[b]
        if self.second_key[a] != self.second_key[b]:
            return self.second_key[a] > self.second_key[b]
        return self.third_key[a] > self.third_key[b]

    def _fill(self, jobs: JobArrays, which: IntList, now_ms: int) -> None:
        """Go greedily down the entries; those without a priority only get what the others leave. Unless `original`,
        pairs for which there is room left over are taken apart: both run faster alone, at nobody's expense."""
        n, free, chosen = self.n, self.free_gpus, self.gpu_type_of
        for k in range(n):
            chosen[k] = self.pair_of[k] = -1
        self.find_turns(now_ms)
        without = not self.queueing & ONLY_POSITIVE
        if self.queueing & BY_TYPE:
            self._list_entries(True, without)
            self._take(jobs, which)
        else:
            self._list_entries(True, False)
            self._take(jobs, which)
            if without and self._any_free():
                self._list_entries(False, True)
                self._take(jobs, which)
        if self.original:
            for k in range(n):
                if self.known[k] < 1.0:
                    chosen[k] = -1
            return
        for p in range(self.pairs):
            a, b = self.members[p, 0], self.members[p, 1]
            need = jobs.ask_gpu_milli[which.values[a]] / GPU_MILLI
            if self.pair_of[a] == p and need <= free[chosen[a]]:
                free[chosen[a]] -= need
                self.pair_of[a] = self.pair_of[b] = -1

    def _any_free(self) -> bool:
        for gpu_type in range(self.types):  # noqa: SIM110 - compiled
            if self.free_gpus[gpu_type] > 0.0:
                return True
        return False

    def _take(self, jobs: JobArrays, which: IntList) -> None:
        """Give devices to those of the listed entries for which there is room."""
        for at in range(self.entries.n):
            u, gpu_type = self.entries.values[at] // self.types, self.entries.values[at] % self.types
            a = u if u < self.n else self.members[u - self.n, 0]
            need = jobs.ask_gpu_milli[which.values[a]] / GPU_MILLI
            if self.gpu_type_of[a] >= 0 or need > self.free_gpus[gpu_type]:
                continue
            if u >= self.n:
                b = self.members[u - self.n, 1]
                if self.gpu_type_of[b] >= 0 or not self.movable[a] or not self.movable[b]:
                    continue
                self.gpu_type_of[b] = gpu_type
                self.pair_of[a] = self.pair_of[b] = u - self.n
            self.gpu_type_of[a] = gpu_type
            self.free_gpus[gpu_type] -= need

    def _compare(self, jobs: JobArrays, which: IntList) -> None:
        """List who stops and who starts."""
        self.stop.clear()
        self.start.clear()
        self.gpu_types.clear()
        for place in range(self.n):
            k: int = self.order.values[place]
            stays = self.holds[k] and self.gpu_type_of[k] == jobs.held_type[which.values[k]]
            if not self.movable[k] or stays:
                continue
            if self.holds[k]:
                self.stop.append(k)
            if self.gpu_type_of[k] >= 0:
                self.start.append(k)
                self.gpu_types.append(self.gpu_type_of[k])

    # -- the time that they will have had --------------------------------------------------------------

    def give_time(self, jobs: JobArrays, which: IntList, now_ms: int, left_s: float) -> None:
        """Count what the chosen jobs will have had when the round is over: whole steps that fit in it, or until their
        end. A pair has its time once, as long as either runs. Sets `longest_s` (-1: nobody runs) and `idle`."""
        types, given_s = self.types, self.given_s
        self.longest_s = -1.0
        for gpu_type in range(types):
            given_s[gpu_type] = 0.0
        for place in range(self.n):
            k: int = self.order.values[place]
            gpu_type = self.gpu_type_of[k]
            if gpu_type < 0:
                continue
            slice_s = self._slice_s(jobs, which.values[k], now_ms, self._speed(k, gpu_type), left_s)
            self.slice_s[k] = slice_s
            self.longest_s = max(self.longest_s, slice_s)
            if self.pair_of[k] < 0:
                self.received_s[k, gpu_type] += slice_s
                given_s[gpu_type] += slice_s
        for gpu_type in range(types):
            self.worker_s[gpu_type] += given_s[gpu_type]
        shared = False
        for p in range(self.pairs):
            a, b = self.members[p, 0], self.members[p, 1]
            if self.pair_of[a] == p:
                shared = True
                gpu_type, slice_s = self.gpu_type_of[a], max(self.slice_s[a], self.slice_s[b])
                self.pair_received_s[p, gpu_type] += slice_s
                self.worker_s[gpu_type] += slice_s
        self.idle = not shared and not self._could_change(jobs, which)

    def _speed(self, k: int, gpu_type: int) -> float:
        """Of a job where it was chosen to run."""
        p = self.pair_of[k]
        if p < 0:
            return self.speed_of[k, gpu_type]
        return self.pair_speed[p, 2 * gpu_type + (1 if self.members[p, 1] == k else 0)]

    def _slice_s(self, jobs: JobArrays, i: int, now_ms: int, speed: float, left_s: float) -> float:
        steps = math.floor(speed * left_s)
        if steps < 1.0:
            steps = speed * left_s
        remaining = jobs.work_total[i] - work_now(jobs, i, now_ms)
        if remaining < steps:
            steps = remaining
        return steps / (speed if speed > 0.0 else 1.0)

    def _could_change(self, jobs: JobArrays, which: IntList) -> bool:
        """Whether a later round could change anything: a job waits, or one that runs has a claim to a faster type."""
        for k in range(self.n):
            i = which.values[k]
            if self.movable[k]:
                gpu_type = self.gpu_type_of[k]
                if gpu_type < 0:
                    return True
            else:
                if jobs.phase[i] == PENDING:
                    return True
                gpu_type = jobs.held_type[i] if self.holds[k] else -1
            if gpu_type >= 0:
                for other in range(self.types):
                    if self.speed_of[k, other] > self.speed_of[k, gpu_type] * 1.001 and self.share[k, other] > 1e-6:
                        return True
        return False

    def end(self, now_ms: int) -> int:
        """When the policy wants to be asked again (-1: it does not mind). In the original, the round is over when its
        longest slice is; jobs that end with it are gone."""
        if self.original:
            if self.longest_s >= 0.0:
                self.round_end_ms = now_ms + int(math.ceil(self.longest_s * MS_PER_S)) + 1  # noqa: RUF046 - compiled
            return self.round_end_ms
        return -1 if self.idle else self.round_end_ms


def _changeable(jobs: JobArrays, i: int, now_ms: int) -> bool:
    """Whether the allocation of a job may be changed now."""
    phase = jobs.phase[i]
    if jobs.ask_gpu_milli[i] <= 0:
        return False
    if phase == PENDING:
        return jobs.not_before_ms[i] <= now_ms
    return phase == RESERVED or (phase == RUNNING and jobs.preemptible[i] > 0)


def _priority(due: float, received_s: float, worker_s: float) -> float:
    if due <= 0.0:
        return 0.0
    fraction = received_s / max(worker_s, 1e-12) if worker_s > 0.0 else 0.0
    return due / fraction if fraction > 0.0 else due * NEVER_RUN


def count_up(cluster: ClusterArrays) -> int:
    up = 0
    for node in range(cluster.n_nodes):
        if cluster.up[node]:
            up += 1
    return up

"""Jobs that wait, in the order of a key, by what they ask for.

Jobs that ask for the same are of one class. While a decision only takes resources, a class whose first job does not fit
has no job that fits, so a walk looks at the first job of each class instead of all jobs.
"""

from __future__ import annotations

import numpy as np

from trainmaster.core.codes import MAX_CLASSES, MOST_TOLD_APART
from trainmaster.core.int_list import IntList, new_floats, new_ints
from trainmaster.core.state.job_arrays import JobArrays

N_ASPECTS = 9


class JobHeap:
    """Jobs with the smallest rank, key and tie first. An entry whose mark is not the job's present one is void."""

    def __init__(self) -> None:
        self.n = 0
        self.key, self.tie, self.rank, self.job, self.mark = (
            new_floats(16),
            new_ints(16),
            new_ints(16),
            new_ints(16),
            new_ints(16),
        )

    def push(self, rank: int, key: float, tie: int, job: int, mark: int) -> None:
        if self.n == len(self.job):
            self._grow()
        at = self.n
        self.n += 1
        while at > 0:
            parent = (at - 1) >> 1
            if not self._after(parent, rank, key, tie):
                break
            self._copy(parent, at)
            at = parent
        self.rank[at], self.key[at], self.tie[at], self.job[at], self.mark[at] = rank, key, tie, job, mark

    def pop(self) -> None:
        """Drop the first entry."""
        self.n -= 1
        n, at = self.n, 0
        rank, key, tie = self.rank[n], self.key[n], self.tie[n]
        while True:
            child = 2 * at + 1
            if child >= n:
                break
            if child + 1 < n and self._after(child, self.rank[child + 1], self.key[child + 1], self.tie[child + 1]):
                child += 1
            if self._after(child, rank, key, tie):
                break
            self._copy(child, at)
            at = child
        self._copy(n, at)

    def _after(self, at: int, rank: int, key: float, tie: int) -> bool:
        """Whether the entry comes after one with these."""
        if self.rank[at] != rank:
            return self.rank[at] > rank
        return self.key[at] > key or (self.key[at] == key and self.tie[at] > tie)

    def _copy(self, source: int, to: int) -> None:
        self.rank[to], self.key[to], self.tie[to] = self.rank[source], self.key[source], self.tie[source]
        self.job[to], self.mark[to] = self.job[source], self.mark[source]

    def _grow(self) -> None:
        n = self.n
        self.rank, self.tie = np.resize(self.rank, 2 * n), np.resize(self.tie, 2 * n)
        self.job, self.mark = np.resize(self.job, 2 * n), np.resize(self.mark, 2 * n)
        self.key = np.resize(self.key, 2 * n)


class WaitingQueue:
    """`n` jobs wait; `asked[t]` thousandths of devices are asked for in all by those that are fastest on type t, and
    `n_homeless` jobs may use no type. `key_of` and `rank_of` are by job index."""

    def __init__(self) -> None:
        self.n = self.n_homeless = 0
        self.asked = new_ints(1)
        self.heaps, self.n_classes = [JobHeap()], 1
        """The first class is of jobs that have nothing in common."""
        self.aspects, self.done = np.zeros((MAX_CLASSES, N_ASPECTS), np.int64), np.zeros(MAX_CLASSES, np.uint8)
        self.wanted = new_ints(N_ASPECTS)
        self.mark, self.is_in, self.need, self.kind = new_ints(0), np.zeros(0, np.uint8), new_ints(0), new_ints(0)
        self.rank_of, self.key_of = new_ints(0), new_floats(0)
        self.skipped = IntList(64)

    def fit(self, jobs: JobArrays) -> None:
        """Make room for as many jobs as there may be."""
        capacity, n = jobs.capacity, len(self.mark)
        if len(self.asked) < jobs.n_types:
            self.asked = np.zeros(jobs.n_types, np.int64)
        if n >= capacity:
            return
        more = np.zeros(capacity - n, np.int64)
        self.mark, self.need = np.concatenate([self.mark, more]), np.concatenate([self.need, more])
        self.kind, self.rank_of = np.concatenate([self.kind, more]), np.concatenate([self.rank_of, more])
        self.is_in = np.concatenate([self.is_in, more.astype(np.uint8)])
        self.key_of = np.concatenate([self.key_of, more.astype(np.float64)])

    def clear(self) -> None:
        for c in range(self.n_classes):
            heap = self.heaps[c]
            for k in range(heap.n):
                self.is_in[heap.job[k]] = 0
            heap.n = 0
        self.asked[:] = 0
        self.n = self.n_homeless = 0

    def push(self, jobs: JobArrays, i: int, rank: int, key: float) -> None:
        self.remove(i)
        fastest = -1
        for kind in range(jobs.n_types):
            if jobs.may_use[i, kind] and (fastest < 0 or jobs.speed[i, kind] > jobs.speed[i, fastest]):
                fastest = kind
        self.is_in[i], self.need[i], self.kind[i] = 1, jobs.ask_gpu_milli[i], fastest
        self.rank_of[i], self.key_of[i] = rank, key
        self.n += 1
        if fastest >= 0:
            self.asked[fastest] += self.need[i]
        else:
            self.n_homeless += 1
        heap = self.heaps[self._class_of(jobs, i)]
        heap.push(rank, key, jobs.arrival[i], i, self.mark[i])

    def remove(self, i: int) -> None:
        """Job i does not wait any more."""
        if not self.is_in[i]:
            return
        self.is_in[i] = 0
        self.mark[i] += 1
        self.n -= 1
        if self.kind[i] >= 0:
            self.asked[self.kind[i]] -= self.need[i]
        else:
            self.n_homeless -= 1

    def holds(self, i: int) -> bool:
        return self.is_in[i] > 0

    def _class_of(self, jobs: JobArrays, i: int) -> int:
        """The class of what a job asks for; 0 where there are too many."""
        if jobs.n_types > MOST_TOLD_APART:
            return 0
        wanted, aspects = self.wanted, self.aspects
        wanted[0], wanted[1], wanted[2] = jobs.workers_ask[i], jobs.servers_ask[i], jobs.worker_gpu_milli[i]
        wanted[3], wanted[4] = jobs.worker_cpu_milli[i], jobs.worker_mem_mib[i]
        wanted[5], wanted[6], wanted[7] = jobs.server_cpu_milli[i], jobs.server_mem_mib[i], jobs.node_set[i]
        types = 0
        for kind in range(jobs.n_types):
            types = 2 * types + jobs.may_use[i, kind]
        wanted[8] = types
        for c in range(1, self.n_classes):
            same = 0
            while same < N_ASPECTS and aspects[c, same] == wanted[same]:
                same += 1
            if same == N_ASPECTS:
                return c
        c = self.n_classes
        if c >= MAX_CLASSES:
            return 0
        self.heaps.append(JobHeap())
        self.n_classes += 1
        for k in range(N_ASPECTS):
            aspects[c, k] = wanted[k]
        return c

    # -- a walk --------------------------------------------------------------------------------------

    def begin_walk(self) -> None:
        for c in range(self.n_classes):
            self.done[c] = 0
        self.skipped.clear()

    def first(self) -> int:
        """The class of the first job of those that may fit; -1: none."""
        best = -1
        for c in range(self.n_classes):
            if self.done[c]:
                continue
            heap = self.heaps[c]
            while heap.n > 0 and (not self.is_in[heap.job[0]] or heap.mark[0] != self.mark[heap.job[0]]):
                heap.pop()
            if heap.n > 0 and (best < 0 or self.comes_first(c, self._rank(best), self._key(best), self._tie(best))):
                best = c
        return best

    def _rank(self, c: int) -> int:
        heap = self.heaps[c]
        return heap.rank[0]

    def _key(self, c: int) -> float:
        heap = self.heaps[c]
        return heap.key[0]

    def _tie(self, c: int) -> int:
        heap = self.heaps[c]
        return heap.tie[0]

    def comes_first(self, c: int, rank: int, key: float, tie: int) -> bool:
        """Whether the first job of a class comes before one with these."""
        heap = self.heaps[c]
        if heap.rank[0] != rank:
            return heap.rank[0] < rank
        return heap.key[0] < key or (heap.key[0] == key and heap.tie[0] < tie)

    def head(self, c: int) -> int:
        heap = self.heaps[c]
        return heap.job[0]

    def take(self, c: int) -> None:
        """The first job of a class leaves."""
        heap = self.heaps[c]
        self.remove(heap.job[0])
        heap.pop()

    def fail(self, c: int) -> None:
        """The first job of a class does not fit."""
        if c > 0:
            self.done[c] = 1
            return
        heap = self.heaps[c]
        self.skipped.reserve(self.skipped.n + 1)
        self.skipped.append(heap.job[0])
        heap.pop()

    def end_walk(self, jobs: JobArrays) -> None:
        """Those that were passed over wait on."""
        for k in range(self.skipped.n):
            i = self.skipped.values[k]
            self.push(jobs, i, self.rank_of[i], self.key_of[i])  # type: ignore

    def take_all(self, out: IntList) -> None:
        """All jobs leave, in no order."""
        out.clear()
        out.reserve(self.n)
        for c in range(self.n_classes):
            heap = self.heaps[c]
            for k in range(heap.n):
                if self.is_in[heap.job[k]] and heap.mark[k] == self.mark[heap.job[k]]:
                    out.append(heap.job[k])
            heap.n = 0
        for k in range(out.n):
            self.remove(out.values[k])

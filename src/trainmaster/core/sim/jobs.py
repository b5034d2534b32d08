"""What a simulated world knows of each job, running or not: its true speeds, its checkpoint, the fence of its commands,
and what agents remember of its last end. Arrays by job number, which no other job ever gets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainmaster.core.arrays import lengthen
from trainmaster.core.int_list import IntList, Ints, new_floats, new_ints

NO_CODE = -(2**31)
"""Exit code of what did not exit."""
_INTS = (
    "index", "share_asked", "workers_ref", "servers_ref", "curve", "key", "generation", "seen_generation", "seen_seq",
    "attempt", "recorded", "record_generation", "record_code", "record_node", "record_failed",
)  # fmt: skip
_FLOATS = ("work_total", "sensitivity", "saved", "record_work")


class NodeLists:
    """A list of nodes for each job number."""

    def __init__(self) -> None:
        self.at, self.n, self.room = new_ints(0), new_ints(0), new_ints(0)
        self.values = IntList()

    def grow(self, capacity: int) -> None:
        extra = capacity - self.at.shape[0]
        self.at = np.concatenate([np.asarray(self.at), np.zeros(extra, np.int64)])
        self.n = np.concatenate([np.asarray(self.n), np.zeros(extra, np.int64)])
        self.room = np.concatenate([np.asarray(self.room), np.zeros(extra, np.int64)])

    def begin(self, job: int, count: int) -> int:
        """Make room for a new list of so many; returns where it is to be written."""
        if count > self.room[job]:
            self.at[job] = self.values.n
            self.room[job] = count
            self.values.reserve(self.values.n + count)
            self.values.n += count
        self.n[job] = count
        return self.at[job]

    def nodes(self, job: int) -> Ints:
        return np.asarray(self.values.values)[self.at[job] : self.at[job] + self.n[job]]


class SimJobs:
    def __init__(self, n_types: int, capacity: int = 64) -> None:
        self.n, self.capacity, self.n_types = 0, 0, n_types
        self.index = new_ints(0)
        """The engine's index of the job; -1: the engine no longer has it."""
        self.share_asked, self.workers_ref, self.servers_ref = new_ints(0), new_ints(0), new_ints(0)
        self.curve, self.key = new_ints(0), new_ints(0)
        self.generation = new_ints(0)
        """The last that was launched, or fenced off by a stop that overtook its launch."""
        self.seen_generation, self.seen_seq, self.attempt = new_ints(0), new_ints(0), new_ints(0)
        self.recorded, self.record_generation, self.record_code = new_ints(0), new_ints(0), new_ints(0)
        """`recorded`: when (a serial number) agents wrote down how its last attempt ended; 0: they did not."""
        self.record_node, self.record_failed = new_ints(0), new_ints(0)
        self.work_total, self.sensitivity, self.saved = new_floats(0), new_floats(0), new_floats(0)
        self.record_work = new_floats(0)
        self.speed = np.zeros((0, 2 * n_types))
        """Steps per second at the reference size, by type on one node, then by type on several."""
        self.launched, self.record_nodes = NodeLists(), NodeLists()
        self.reserve(capacity)

    def add(self) -> int:
        """The number of a new job: no engine index but its number, 1 step per second, no end."""
        job = self.n
        self.reserve(job + 1)
        self.n += 1
        self.index[job] = job
        return job

    def describe(
        self,
        job: int,
        work_total: float,
        share_asked: int,
        workers_ref: int,
        servers_ref: int,
        curve: int,
        speed: Sequence[float],
    ) -> None:
        """What the job is (`speed` as the attribute's row)."""
        self.work_total[job], self.share_asked[job], self.curve[job] = work_total, share_asked, curve
        self.workers_ref[job], self.servers_ref[job] = workers_ref, servers_ref
        for k in range(2 * self.n_types):
            self.speed[job, k] = speed[k]

    def reserve(self, capacity: int) -> None:
        if capacity <= self.capacity:
            return
        extra = max(capacity, 2 * self.capacity) - self.capacity
        lengthen(self, _INTS, _FLOATS, extra)
        self.speed = np.concatenate([np.asarray(self.speed), np.ones((extra, 2 * self.n_types))])
        fresh = slice(self.capacity, self.capacity + extra)
        np.asarray(self.attempt)[fresh] = -1
        np.asarray(self.index)[fresh] = -1
        np.asarray(self.work_total)[fresh] = np.nan
        np.asarray(self.sensitivity)[fresh] = 1.0
        self.capacity += extra
        self.launched.grow(self.capacity)
        self.record_nodes.grow(self.capacity)

"""Attempts that run in a simulated world: one row of arrays each, their packed gangs, and who is on which node.

An attempt is one run of a job's gang. Rows are used again after an attempt's end; `serial` and `epoch` are never set
back, so that what was scheduled for an earlier attempt of the row is void.
"""

from __future__ import annotations

import numpy as np

from trainmaster.core.arrays import lengthen
from trainmaster.core.codes import HEAD, PART
from trainmaster.core.int_list import IntList, Ints, new_floats, new_ints
from trainmaster.core.state.packed_allocation import gang_length

NOBODY = -1
_INTS = (
    "job", "generation", "seq", "as_of_ms", "productive_ms", "finish_ms", "n_alive", "started", "stopping",
    "told_to_stop", "serial", "epoch", "order",
)  # fmt: skip
_FLOATS = ("work", "work_at_start", "rate", "luck")


class Attempts:
    """`n` rows have been used at some time; `free` of them are unused now."""

    def __init__(self, n_nodes: int, capacity: int = 64, width: int = 16) -> None:
        self.n, self.capacity, self.width = 0, capacity, width
        self.orders = self.serials = 0
        self.free = IntList(capacity)
        self.job, self.generation, self.seq = new_ints(capacity), new_ints(capacity), new_ints(capacity)
        self.as_of_ms, self.productive_ms = new_ints(capacity), new_ints(capacity)
        self.finish_ms, self.n_alive = new_ints(capacity), new_ints(capacity)
        self.started, self.stopping, self.told_to_stop = new_ints(capacity), new_ints(capacity), new_ints(capacity)
        self.serial, self.epoch, self.order = new_ints(capacity), new_ints(capacity), new_ints(capacity)
        self.work, self.work_at_start = new_floats(capacity), new_floats(capacity)
        self.rate, self.luck = new_floats(capacity), new_floats(capacity)
        self.packed = IntList(capacity * width)
        """The gang of row `a` begins at `a * width`."""
        self.alive = np.zeros((capacity, width), np.uint8)
        """By part of the gang: whether its members exist."""
        self.on_node = np.zeros((n_nodes, 8), np.int64)
        """Running attempts with a part on the node, in the order in which they began."""
        self.n_on_node = new_ints(n_nodes)

    def new_row(self) -> int:
        if self.free.n > 0:
            self.free.n -= 1
            a = self.free.values[self.free.n]
        else:
            a = self.n
            if a == self.capacity:
                self._grow()
            self.n += 1
        self.serials += 1
        self.serial[a] = self.serials
        self.started[a] = self.stopping[a] = self.told_to_stop[a] = 0
        return a

    def release(self, a: int) -> None:
        """The row may be used again; what it says stays until then."""
        self.serial[a] = 0
        self.free.append(a)

    def set_gang(self, a: int, packed: IntList, at: int) -> None:
        """Give it this gang, all members alive."""
        length = gang_length(packed, at)
        if length > self.width:
            self._widen(2 * length)
        begin, n_parts = a * self.width, packed.values[at]
        for k in range(length):
            self.packed.values[begin + k] = packed.values[at + k]
        for k in range(n_parts):
            self.alive[a, k] = 1
        self.n_alive[a] = n_parts

    def n_parts(self, a: int) -> int:
        return self.packed.values[a * self.width]

    def node(self, a: int, part: int) -> int:
        return self.packed.values[a * self.width + HEAD + PART * part]

    def is_whole(self, a: int) -> bool:
        return self.n_alive[a] == self.packed.values[a * self.width]

    def lives_on(self, a: int, node: int) -> bool:
        """Whether members of it exist there."""
        for part in range(self.n_parts(a)):
            if self.alive[a, part] and self.node(a, part) == node:
                return True
        return False

    def first_node(self, a: int) -> int:
        """The lowest node with living members; `NOBODY`: there is none."""
        first = NOBODY
        for part in range(self.n_parts(a)):
            if self.alive[a, part] and (first < 0 or self.node(a, part) < first):
                first = self.node(a, part)
        return first

    def enter_nodes(self, a: int) -> None:
        """List a running attempt on the nodes of its gang."""
        for part in range(self.n_parts(a)):
            node = self.node(a, part)
            n = self.n_on_node[node]
            if n == self.on_node.shape[1]:
                self.on_node = np.concatenate([np.asarray(self.on_node), np.zeros_like(self.on_node)], axis=1)
            k = n
            while k > 0 and self.order[self.on_node[node, k - 1]] > self.order[a]:
                self.on_node[node, k] = self.on_node[node, k - 1]
                k -= 1
            self.on_node[node, k] = a
            self.n_on_node[node] = n + 1

    def leave_nodes(self, a: int) -> None:
        for part in range(self.n_parts(a)):
            node = self.node(a, part)
            n = self.n_on_node[node]
            k = 0
            while self.on_node[node, k] != a:
                k += 1
            for later in range(k, n - 1):
                self.on_node[node, later] = self.on_node[node, later + 1]
            self.n_on_node[node] = n - 1

    def neighbours(self, a: int, out: IntList) -> None:
        """Others with a part on one of its nodes, in the order in which they began."""
        out.clear()
        for part in range(self.n_parts(a)):
            node = self.node(a, part)
            for k in range(self.n_on_node[node]):
                self.insert(self.on_node[node, k], out)
        if self.n_parts(a) > 0:
            self._drop(a, out)

    def insert(self, a: int, out: IntList) -> None:
        """Put an attempt into a list in the order of begin, unless it is there."""
        out.reserve(out.n + 1)
        k = out.n
        while k > 0 and self.order[out.values[k - 1]] > self.order[a]:
            k -= 1
        if k > 0 and out.values[k - 1] == a:
            return
        for later in range(out.n, k, -1):
            out.values[later] = out.values[later - 1]
        out.values[k] = a
        out.n += 1

    def _drop(self, a: int, out: IntList) -> None:
        kept = 0
        for k in range(out.n):
            if out.values[k] != a:
                out.values[kept] = out.values[k]
                kept += 1
        out.n = kept

    def shares_device(self, a: int, other: int) -> bool:
        """Whether a living member of `other` has a device of `a`'s gang."""
        packed, n, m = self.packed.values, self.n_parts(a), self.n_parts(other)
        own = a * self.width + HEAD + PART * n
        for part in range(n):
            n_own = packed[a * self.width + HEAD + PART * part + 3]
            theirs = other * self.width + HEAD + PART * m
            for k in range(m):
                n_theirs = packed[other * self.width + HEAD + PART * k + 3]
                same_node = self.alive[other, k] and self.node(other, k) == self.node(a, part)
                if same_node and _have_common(packed, own, n_own, theirs, n_theirs):
                    return True
                theirs += n_theirs
            own += n_own
        return False

    def _grow(self) -> None:
        more = self.capacity
        lengthen(self, _INTS, _FLOATS, more)
        self.capacity += more
        self.free.reserve(self.capacity)
        self.packed.n = more * self.width
        self.packed.reserve(self.capacity * self.width)
        self.alive = np.concatenate([np.asarray(self.alive), np.zeros((more, self.width), np.uint8)])

    def _widen(self, width: int) -> None:
        extra = np.zeros((self.capacity, width - self.width), np.int64)
        old = np.asarray(self.packed.values)[: self.capacity * self.width].reshape(self.capacity, self.width)
        self.packed.values = np.concatenate([old, extra], axis=1).reshape(-1)
        self.alive = np.concatenate([np.asarray(self.alive), extra.astype(np.uint8)], axis=1)
        self.width = width


def _have_common(row: Ints, a: int, n_a: int, b: int, n_b: int) -> bool:
    for i in range(a, a + n_a):
        for j in range(b, b + n_b):
            if row[i] == row[j]:
                return True
    return False

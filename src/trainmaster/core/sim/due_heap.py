"""What is due when: a binary heap of rows of numbers, those of one moment in the order in which they were added."""

from __future__ import annotations

import numpy as np

from trainmaster.core.codes import NEVER_MS
from trainmaster.core.int_list import Ints

AT_MS, ORDER, GPU_TYPE, ITEM, EPOCH = range(5)


class DueHeap:
    """Rows `[at_ms, order, kind, item, epoch]`; what `kind`, `item` and `epoch` mean is the owner's affair. The fields
    of the row that was taken last are attributes."""

    def __init__(self, capacity: int = 64) -> None:
        self.rows = np.zeros((capacity, 5), np.int64)
        self.n = 0
        self.added = 0
        self.at_ms = self.order = self.kind = self.item = self.epoch = 0

    def next_ms(self) -> int:
        return self.rows[0, AT_MS] if self.n > 0 else NEVER_MS

    def add(self, at_ms: int, kind: int, item: int, epoch: int) -> int:
        """Returns the row's number, which no other has."""
        if self.n == self.rows.shape[0]:
            self.rows = np.concatenate([np.asarray(self.rows), np.zeros((self.n, 5), np.int64)])
        self.added += 1
        k = self.n
        self.n += 1
        while k > 0:
            parent = (k - 1) // 2
            if self.rows[parent, AT_MS] <= at_ms:  # of one moment, the parent was added before
                break
            self._copy(parent, k)
            k = parent
        self.rows[k, AT_MS], self.rows[k, ORDER], self.rows[k, GPU_TYPE], self.rows[k, ITEM], self.rows[k, EPOCH] = (
            at_ms,
            self.added,
            kind,
            item,
            epoch,
        )
        return self.added

    def pop(self) -> None:
        """Take the first row."""
        self.at_ms, self.order, self.kind = self.rows[0, AT_MS], self.rows[0, ORDER], self.rows[0, GPU_TYPE]
        self.item, self.epoch = self.rows[0, ITEM], self.rows[0, EPOCH]
        self.n -= 1
        self._sink(0)

    def drop_stale(self, kind: int, epoch_of: Ints) -> None:
        """Remove the rows of a kind whose epoch is no longer that of their item."""
        kept = 0
        for k in range(self.n):
            if self.rows[k, GPU_TYPE] != kind or self.rows[k, EPOCH] == epoch_of[self.rows[k, ITEM]]:
                self._copy(k, kept)
                kept += 1
        if kept < self.n:
            self.n = kept
            for k in range(kept // 2 - 1, -1, -1):
                self._copy(k, kept)
                self._sink(k)

    def _sink(self, k: int) -> None:
        """Put the row behind the last one where it belongs, at k or below."""
        while True:
            child = 2 * k + 1
            if child >= self.n:
                break
            if child + 1 < self.n and self._before(child + 1, child):
                child += 1
            if not self._before(child, self.n):
                break
            self._copy(child, k)
            k = child
        self._copy(self.n, k)

    def _copy(self, source: int, target: int) -> None:
        for column in range(5):
            self.rows[target, column] = self.rows[source, column]

    def _before(self, a: int, b: int) -> bool:
        if self.rows[a, AT_MS] != self.rows[b, AT_MS]:
            return self.rows[a, AT_MS] < self.rows[b, AT_MS]
        return self.rows[a, ORDER] < self.rows[b, ORDER]

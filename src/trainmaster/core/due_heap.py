"""What is due when: a binary heap of rows of numbers, those of one moment in the order in which they were added."""

from __future__ import annotations

import numpy as np

from trainmaster.core.codes import NEVER_MS

AT_MS, ORDER, KIND, ITEM, EPOCH = range(5)


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
        rows, k = self.rows, self.n
        self.n += 1
        while k > 0:
            parent = (k - 1) // 2
            if rows[parent, AT_MS] <= at_ms:  # of one moment, the parent was added before
                break
            for column in range(5):
                rows[k, column] = rows[parent, column]
            k = parent
        rows[k, AT_MS], rows[k, ORDER], rows[k, KIND], rows[k, ITEM], rows[k, EPOCH] = (
            at_ms, self.added, kind, item, epoch,
        )  # fmt: skip
        return self.added

    def pop(self) -> None:
        """Take the first row."""
        rows = self.rows
        self.at_ms, self.order, self.kind = rows[0, AT_MS], rows[0, ORDER], rows[0, KIND]
        self.item, self.epoch = rows[0, ITEM], rows[0, EPOCH]
        self.n -= 1
        n, k = self.n, 0
        while True:
            child = 2 * k + 1
            if child >= n:
                break
            if child + 1 < n and self._before(child + 1, child):
                child += 1
            if not self._before(child, n):
                break
            for column in range(5):
                rows[k, column] = rows[child, column]
            k = child
        for column in range(5):
            rows[k, column] = rows[n, column]

    def _before(self, a: int, b: int) -> bool:
        rows = self.rows
        if rows[a, AT_MS] != rows[b, AT_MS]:
            return rows[a, AT_MS] < rows[b, AT_MS]
        return rows[a, ORDER] < rows[b, ORDER]

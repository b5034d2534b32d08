"""Minimum-cost assignment by shortest augmenting paths with potentials."""

from __future__ import annotations

import numpy as np

from trainmaster.core.int_list import Floats, Ints

INF = float("inf")


def assign(cost: Floats) -> Ints:
    """Column of each row in a minimum-cost assignment (rows <= columns).

    Rows are inserted one at a time; prices of rows and columns keep every reduced cost non-negative, and the shortest
    alternating path from the new row to a free column is flipped.
    """
    matching = Matching(np.ascontiguousarray(cost))
    for root in range(cost.shape[0]):
        matching.insert(root)
    owner = np.asarray(matching.owner)
    column_of = np.full(cost.shape[0], -1, np.int64)
    column_of[owner[owner >= 0]] = np.flatnonzero(owner >= 0)
    return column_of


class Matching:
    """`owner[c]` is the row that has column c, -1 for none."""

    def __init__(self, cost: Floats) -> None:
        rows, columns = cost.shape
        self.owner = np.full(columns, -1, np.int64)
        self._cost, self._columns = cost, columns
        self._row_price, self._column_price = np.zeros(rows), np.zeros(columns)
        self._distance, self._came_from = np.zeros(columns), np.zeros(columns, np.int64)
        self._done = np.zeros(columns, np.uint8)

    def insert(self, root: int) -> None:
        distance, owner = self._distance, self.owner
        last = self._shortest_path(root)
        reach = distance[last]
        self._row_price[root] += reach
        for c in range(self._columns):
            if self._done[c] and c != last:
                self._row_price[owner[c]] += reach - distance[c]
                self._column_price[c] -= reach - distance[c]
        while self._came_from[last] >= 0:
            owner[last] = owner[self._came_from[last]]
            last = self._came_from[last]
        owner[last] = root

    def _shortest_path(self, root: int) -> int:
        """From a new row to the nearest free column; returns the column."""
        distance, cost, done = self._distance, self._cost, self._done
        for c in range(self._columns):
            distance[c] = INF
            self._came_from[c] = -1
            done[c] = False
        row, last, reach = root, -1, 0.0
        while True:
            best = INF
            nearest = -1
            for c in range(self._columns):
                if done[c]:
                    continue
                through = reach + cost[row, c] - self._row_price[row] - self._column_price[c]
                if through < distance[c]:
                    distance[c] = through
                    self._came_from[c] = last
                if distance[c] < best:
                    best = distance[c]
                    nearest = c
            done[nearest] = True
            if self.owner[nearest] < 0:
                return nearest
            last, reach, row = nearest, best, self.owner[nearest]

# cython: cdivision=True
"""A matrix game of few rows, solved again and again while columns are added.

One player mixes rows (accelerator types) with weights q, the other chooses a column (an allocation that
meets every target); the entry is the load of that type. The value  max_q min_k  column_k . q  is found
through the packing program

    max sum_k z_k   s.t.  sum_k z_k column_kj <= 1 for every row j,  z >= 0,      value = 1 / sum z,

whose slack basis is feasible, whose basis is as small as the number of types and stays feasible when
columns come in. Columns must be non-negative and none may be zero. Primal simplex, largest reduced cost,
lowest index after a stall.
"""

from __future__ import annotations

import numpy as np

from trainmaster.core.int_list import Floats, new_floats, new_ints

PIVOTS_MAX = 400
STALL_PIVOTS = 60  # after so many pivots in one call: Bland's rule, which cannot cycle
REDUCED_COST = 1e-14
PIVOT = 1e-11
NEGLIGIBLE = 1e-13
TIED = 1e-14


class Game:
    """`basis[i]` is a column, or -1 - j for the slack of row j. `row_weight` is q; `mix` holds the weights of the basis
    columns, 0 for slacks."""

    def __init__(self, rows: int, columns_max: int) -> None:
        self.rows = rows
        self.columns = np.empty((columns_max, rows))
        self.count = 0
        self.basis = new_ints(rows)
        self.row_weight = new_floats(rows)
        self.mix = new_floats(rows)
        self._primal = new_floats(rows)
        self._dual = new_floats(rows)
        self._matrix = np.zeros((rows, rows))
        self._inverse = np.zeros((rows, rows))
        self.reset_basis()

    def reset_basis(self) -> None:
        for i in range(self.rows):
            self.basis[i] = -1 - i

    def add(self, column: Floats) -> int:
        """Append a column; returns its index. The caller keeps `count` below the capacity."""
        for j in range(self.rows):
            self.columns[self.count, j] = column[j]
        self.count += 1
        return self.count - 1

    def solve(self) -> float:
        """Find the optimal mixes, starting from `basis`; returns the value."""
        for pivot in range(PIVOTS_MAX):
            if not self._factor():
                self.reset_basis()
                continue
            bland = pivot >= STALL_PIVOTS
            entering = self._entering(bland)
            if entering == self.count:
                break
            leaving = self._leaving(entering, bland)
            if leaving < 0:
                break
            self.basis[leaving] = entering
        self._normalise()
        return self._guaranteed()

    def _factor(self) -> bool:
        """Invert the basis and compute both of its solutions; False when it is singular."""
        rows = self.rows
        for i in range(rows):
            b = self.basis[i]
            for j in range(rows):
                self._matrix[j, i] = self.columns[b, j] if b >= 0 else 0.0
            if b < 0:
                self._matrix[-1 - b, i] = 1.0
        if not self._invert():
            return False
        for i in range(rows):
            self._dual[i] = 0.0
        for i in range(rows):
            self._primal[i] = 0.0
            for j in range(rows):
                self._primal[i] += self._inverse[i, j]
                if self.basis[i] >= 0:
                    self._dual[j] += self._inverse[i, j]
        for i in range(rows):
            if self.basis[i] < 0:
                self._dual[-1 - self.basis[i]] = 0.0  # exactly: its row has room to spare
        return True

    def _invert(self) -> bool:
        """Gauss-Jordan with row pivoting, destroys `_matrix`."""
        size, work, inverse = self.rows, self._matrix, self._inverse
        for i in range(size):
            for k in range(size):
                inverse[i, k] = 0.0
            inverse[i, i] = 1.0
        for i in range(size):
            top = i
            for k in range(i + 1, size):
                if abs(work[k, i]) > abs(work[top, i]):
                    top = k
            if abs(work[top, i]) < 1e-300:
                return False
            if top != i:
                for c in range(size):
                    kept = work[i, c]
                    work[i, c] = work[top, c]
                    work[top, c] = kept
                    kept = inverse[i, c]
                    inverse[i, c] = inverse[top, c]
                    inverse[top, c] = kept
            scale = 1.0 / work[i, i]
            for c in range(size):
                work[i, c] *= scale
                inverse[i, c] *= scale
            for k in range(size):
                factor = work[k, i]
                if k != i and factor != 0.0:
                    for c in range(size):
                        work[k, c] -= factor * work[i, c]
                        inverse[k, c] -= factor * inverse[i, c]
        return True

    def _entering(self, bland: bool) -> int:
        """The column (or slack, as -1 - row) to bring in; `count` when there is none."""
        best = REDUCED_COST
        choice = self.count
        dual, columns = self._dual, self.columns
        for j in range(self.rows):
            if -dual[j] > best:
                best = -dual[j]
                choice = -1 - j
                if bland:
                    return choice
        for k in range(self.count):
            worth = 1.0
            for j in range(self.rows):
                worth -= dual[j] * columns[k, j]
            if worth > best:
                best = worth
                choice = k
                if bland:
                    return choice
        return choice

    def _leaving(self, entering: int, bland: bool) -> int:
        """The row of the basis that is used up first; among equals the one with the largest pivot."""
        leaving = -1
        least = 0.0
        pivot = 0.0
        for i in range(self.rows):
            slope = 0.0
            if entering >= 0:
                for j in range(self.rows):
                    slope += self._inverse[i, j] * self.columns[entering, j]
            else:
                slope = self._inverse[i, -1 - entering]
            if slope <= PIVOT:
                continue
            ratio = max(self._primal[i], 0.0) / slope
            tied = abs(ratio - least) <= TIED
            if leaving < 0:
                better = True
            elif tied:
                better = self.basis[i] < self.basis[leaving] if bland else slope > pivot
            else:
                better = ratio < least
            if better:
                leaving = i
                least = ratio
                pivot = slope
        return leaving

    def _normalise(self) -> None:
        weight_sum = 0.0
        column_sum = 0.0
        for i in range(self.rows):
            self.row_weight[i] = self._dual[i] if self._dual[i] > NEGLIGIBLE else 0.0
            weight_sum += self.row_weight[i]
            self.mix[i] = max(self._primal[i], 0.0) if self.basis[i] >= 0 else 0.0
            column_sum += self.mix[i]
        for i in range(self.rows):
            self.row_weight[i] /= weight_sum
            self.mix[i] /= column_sum

    def _guaranteed(self) -> float:
        """The value that the column mix guarantees, from scratch."""
        value = 0.0
        for j in range(self.rows):
            entry = 0.0
            for i in range(self.rows):
                if self.basis[i] >= 0:
                    entry += self.mix[i] * self.columns[self.basis[i], j]
            value = max(value, entry)
        return value

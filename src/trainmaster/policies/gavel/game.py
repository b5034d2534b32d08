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
from numba import njit

PIVOTS_MAX = 400
STALL_PIVOTS = 60  # after so many pivots in one call: Bland's rule, which cannot cycle
REDUCED_COST = 1e-14
PIVOT = 1e-11
NEGLIGIBLE = 1e-13
TIED = 1e-14


@njit(cache=True)
def invert(matrix, inverse):
    """Gauss-Jordan with row pivoting; False when the matrix is singular."""
    size = matrix.shape[0]
    work = matrix.copy()
    inverse[:, :] = 0.0
    for i in range(size):
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
                work[i, c], work[top, c] = work[top, c], work[i, c]
                inverse[i, c], inverse[top, c] = inverse[top, c], inverse[i, c]
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


@njit(cache=True)
def _entering(columns, count, dual, bland):
    """The column (or slack, as -1 - row) to bring in; `count` when there is none."""
    best = REDUCED_COST
    choice = count
    for j in range(len(dual)):
        if -dual[j] > best:
            best = -dual[j]
            choice = -1 - j
            if bland:
                return choice
    for k in range(count):
        worth = 1.0
        for j in range(len(dual)):
            worth -= dual[j] * columns[k, j]
        if worth > best:
            best = worth
            choice = k
            if bland:
                return choice
    return choice


@njit(cache=True)
def _leaving(columns, basis, inverse, primal, choice, bland):
    """The row of the basis that is used up first; among equals the one with the largest pivot."""
    rows = len(basis)
    leaving = -1
    least = 0.0
    pivot = 0.0
    for i in range(rows):
        slope = 0.0
        if choice >= 0:
            for j in range(rows):
                slope += inverse[i, j] * columns[choice, j]
        else:
            slope = inverse[i, -1 - choice]
        if slope <= PIVOT:
            continue
        ratio = max(primal[i], 0.0) / slope
        tied = abs(ratio - least) <= TIED
        better = basis[i] < basis[leaving] if bland else slope > pivot
        if leaving < 0 or (ratio < least and not tied) or (tied and better):
            leaving = i
            least = ratio
            pivot = slope
    return leaving


@njit(cache=True)
def solve_game(columns, count, basis, row_weight, column_weight):
    """Optimal mixes over the first `count` columns, starting from `basis` (changed in place).

    `basis[i]` is a column, or -1 - j for the slack of row j. Fills `row_weight` (q) and `column_weight` (of
    the basis columns, 0 for slacks); returns the value.
    """
    rows = columns.shape[1]
    matrix = np.zeros((rows, rows))
    inverse = np.zeros((rows, rows))
    primal = np.zeros(rows)
    dual = np.zeros(rows)
    for pivot in range(PIVOTS_MAX):
        for i in range(rows):
            for j in range(rows):
                matrix[j, i] = columns[basis[i], j] if basis[i] >= 0 else 0.0
            if basis[i] < 0:
                matrix[-1 - basis[i], i] = 1.0
        if not invert(matrix, inverse):
            for i in range(rows):
                basis[i] = -1 - i
            continue
        dual[:] = 0.0
        for i in range(rows):
            primal[i] = 0.0
            for j in range(rows):
                primal[i] += inverse[i, j]
                if basis[i] >= 0:
                    dual[j] += inverse[i, j]
        for i in range(rows):
            if basis[i] < 0:
                dual[-1 - basis[i]] = 0.0  # exactly: its row has room to spare
        choice = _entering(columns, count, dual, pivot >= STALL_PIVOTS)
        if choice == count:
            break
        leaving = _leaving(columns, basis, inverse, primal, choice, pivot >= STALL_PIVOTS)
        if leaving < 0:
            break
        basis[leaving] = choice
    weight_sum = 0.0
    column_sum = 0.0
    for i in range(rows):
        row_weight[i] = dual[i] if dual[i] > NEGLIGIBLE else 0.0
        weight_sum += row_weight[i]
        column_weight[i] = max(primal[i], 0.0) if basis[i] >= 0 else 0.0
        column_sum += column_weight[i]
    for i in range(rows):
        row_weight[i] /= weight_sum
        column_weight[i] /= column_sum
    # the value that the column mix guarantees, from scratch
    value = 0.0
    for j in range(rows):
        entry = 0.0
        for i in range(rows):
            if basis[i] >= 0:
                entry += column_weight[i] * columns[basis[i], j]
        value = max(value, entry)
    return value

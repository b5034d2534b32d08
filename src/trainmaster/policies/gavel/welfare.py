"""The largest total gain under capacities and fixed needs, by the same game as the levels (ascent.py).

The dual function  D(p) = sum_j p_j N_j + sum_m max_x {sum_j (c_mj - g_m p_j) x_j : time, need}  is convex
in the prices and each evaluation is one pass over the jobs. With p_j = G q_j / N_j and an idle row q_0 = 1
- sum q_j it is minimised over the unit simplex, where every allocation k gives the linear lower bound

    D(q) / G >= V_k / G + sum_j q_j (1 - load_kj),       V_k its gain, load_k its loads.

G must exceed sum_j p_j N_j at the optimum: the sum of all jobs' best gains does, unless needs force losses;
it grows until the idle row has weight. Subtracted from a constant, the bounds are the non-negative columns
of game.py.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from trainmaster.policies.gavel.ascent import COLUMNS_MAX
from trainmaster.policies.gavel.game import solve_game
from trainmaster.policies.gavel.problem import FloatArray
from trainmaster.policies.gavel.reply import reply

OFFSET = 2.5  # gain / G lies in [0, 1], so that columns are at least one half
GAP = 1e-10  # of D, relative
GROWTH_MAX = 12


@njit(cache=True)
def maximise_gain(T, gpus, counts, gain, need, price_sum, first, passes_max):
    """Minimise D over prices with sum_j p_j N_j <= price_sum.

    Returns (row weights q with the idle row first, prices and weights of the allocation's replies, passes,
    converged).
    """
    n, types = T.shape
    rows = types + 1
    slope = np.empty(n)
    price, load = np.empty(types), np.empty(types)
    columns, weights_of = np.empty((COLUMNS_MAX, rows)), np.empty((COLUMNS_MAX, rows))
    basis = np.empty(rows, dtype=np.int64)
    for i in range(rows):
        basis[i] = -1 - i
    outer, mix = np.empty(rows), np.empty(rows)
    query = first.copy()
    inner = query.copy()
    best = -np.inf
    count = 0
    passes = 0
    converged = False
    while passes < passes_max and count < COLUMNS_MAX:
        for j in range(types):
            price[j] = price_sum * query[1 + j] / counts[j]
        _, gained = reply(T, gpus, gain, True, need, price, load, slope)
        passes += 1
        columns[count, 0] = OFFSET - gained / price_sum
        entry = columns[count, 0] * query[0]
        for j in range(types):
            columns[count, 1 + j] = OFFSET - 1.0 - gained / price_sum + load[j] / counts[j]
            entry += columns[count, 1 + j] * query[1 + j]
        weights_of[count] = query
        count += 1
        if entry > best:
            best = entry
            inner[:] = query
        value = solve_game(columns, count, basis, outer, mix)
        if value - best <= GAP * max(abs(OFFSET - best), 1e-3):
            converged = True
            break
        for j in range(rows):
            query[j] = 0.5 * (inner[j] + outer[j]) if passes % 5 != 0 else outer[j]
    basis_price, basis_weight = np.zeros((rows, types)), np.zeros(rows)
    for i in range(rows):
        if basis[i] >= 0:
            basis_weight[i] = mix[i]
            for j in range(types):
                basis_price[i, j] = price_sum * weights_of[basis[i], 1 + j] / counts[j]
    return inner, outer, basis_price, basis_weight, passes, converged


def best_gain(
    T: FloatArray,
    gpus: FloatArray,
    counts: FloatArray,
    gain: FloatArray,
    need: FloatArray,
    first: FloatArray | None = None,
) -> tuple[FloatArray, FloatArray, FloatArray, int, bool]:
    """(optimal prices, prices and weights of the replies that make up the allocation, passes, converged)."""
    types = len(counts)
    price_sum = float(gain.max(axis=1, initial=0.0).sum())
    query = np.full(types + 1, 1.0 / (types + 1))
    if first is not None and 0.0 < (first * counts).sum() < price_sum:
        query[1:] = first * counts / price_sum
        query[0] = 1.0 - query[1:].sum()
    spent = 0
    for attempt in range(GROWTH_MAX):
        found = maximise_gain(T, gpus, counts, gain, need, price_sum, query, COLUMNS_MAX)
        inner, outer, basis_price, basis_weight, passes, converged = found
        spent += passes
        if (outer[0] > 0.0 and inner[0] > 0.0) or attempt == GROWTH_MAX - 1:
            return price_sum * inner[1:] / counts, basis_price, basis_weight, spent, converged
        query = np.concatenate([[0.9], 0.1 * inner[1:] / max(float(inner[1:].sum()), 1e-300)])
        price_sum *= 10.0
    raise AssertionError("unreachable")

"""The highest level whose targets fit on the GPUs, with the prices that prove it and the shares that reach
it.

Targets r_m(level) rise with the level. They fit iff no prices make their cheapest realisation (reply.py)
dearer than all GPUs together: with q_j = p_j N_j on the unit simplex and load_j the used part of type j,

    max_q  C(level, q) <= 1,      C(level, q) = sum_m cost_m(r_m(level), q) = min over allocations of load .
    q,

a concave maximisation in as many dimensions as there are types: each evaluation is one pass over the jobs
and yields a column (loads) of the matrix game of game.py. Its value bounds C from above (Kelley 1960; the
mix of columns is the allocation), evaluations bound it from below. Prices with C > 1 prove the level too
high and the largest level with C(level, q) = 1 is the next one; when the game's value is 1, the level is
reached. Both ends are vertices, so the result is exact up to rounding. Between them the next query lies
halfway between the best and the latest prices, which keeps Kelley's method from jumping about (in-out
separation, Ben-Ameur and Neto 2007).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from trainmaster.policies.gavel.game import solve_game
from trainmaster.policies.gavel.problem import FloatArray, IntArray
from trainmaster.policies.gavel.reply import reply
from trainmaster.policies.gavel.tree import Division, divide

COLUMNS_MAX = 512
FITS = 1e-12  # loads above one by no more than this are met (and scaled back in the end)
STALLED_PASSES = 40  # without progress: what is left is rounding, if it is as small as NEARLY_FITS
NEARLY_FITS = 1e-9
ROOT = 2e-14
ROOT_STEPS_MAX = 100
PASSES_MAX = 20_000


class Rise(NamedTuple):
    """r_m(level) = base_m + unit_m * (received_m(level) from the tree), or + numer_m level / (denom_m -
    delay_m level)."""

    by_tree: bool
    base: FloatArray
    unit: FloatArray
    numer: FloatArray
    denom: FloatArray
    delay: FloatArray
    division: Division


class Ascent(NamedTuple):
    """`basis_price` and `basis_weight`: the allocation is the weighted sum of the replies to these prices."""

    level: float
    value: float  # of the game: the largest load of the allocation
    tangent: FloatArray  # weights q that prove the level highest (zeros: the starting level was reached)
    basis_price: FloatArray
    basis_weight: FloatArray
    passes: int
    converged: bool


NO_DIVISION = Division(
    np.zeros(2, dtype=np.int64),
    np.zeros(1, dtype=bool),
    np.zeros(0, dtype=np.int64),
    np.zeros(0),
    np.zeros(0),
    np.zeros(0),
    np.zeros(0),
)


def rational_rise(numer: FloatArray, denom: FloatArray | None = None, delay: FloatArray | None = None) -> Rise:
    """r_m(level) = numer_m level / (denom_m - delay_m level); without the last two, proportional to the
    level."""
    zero = np.zeros(len(numer))
    ones = np.ones(len(numer))
    return Rise(
        False,
        zero,
        ones,
        numer,
        ones if denom is None else denom,
        zero if delay is None else delay,
        NO_DIVISION,
    )


def tree_rise(base: FloatArray, unit: FloatArray, division: Division) -> Rise:
    return Rise(True, base, unit, base, base, base, division)


@njit(cache=True)
def targets_at(rise, level, target, rate):
    """Targets at `level` and their derivative."""
    if rise.by_tree:
        divide(rise.division, level, target, rate)
        for m in range(len(target)):
            target[m] = rise.base[m] + rise.unit[m] * target[m]
            rate[m] *= rise.unit[m]
    else:
        for m in range(len(target)):
            left = rise.denom[m] - rise.delay[m] * level
            target[m] = rise.base[m] + rise.numer[m] * level / left
            rate[m] = rise.numer[m] * rise.denom[m] / (left * left)


@njit(cache=True)
def _evaluate(T, gpus, counts, weights, target, price, load, slope):
    """C at row weights q: sets `load` as a part of each type's GPUs."""
    for j in range(len(counts)):
        price[j] = weights[j] / counts[j]
    cost, _ = reply(T, gpus, T, False, target, price, load, slope)
    for j in range(len(counts)):
        load[j] /= counts[j]
    return cost


@njit(cache=True)
def _level_for(T, gpus, counts, rise, weights, low, high, target, rate, price, load, slope):
    """The largest level in [low, high] with C(level, q) = 1, by Newton's method inside a shrinking bracket.

    C rises with the level but need be neither convex nor strictly increasing. Returns (level, passes).
    """
    level = high
    for step in range(ROOT_STEPS_MAX):
        targets_at(rise, level, target, rate)
        cost = _evaluate(T, gpus, counts, weights, target, price, load, slope)
        growth = 0.0
        for m in range(len(target)):
            growth += slope[m] * rate[m]
        if cost > 1.0 + ROOT:
            high = level
        else:
            low = level
            if cost >= 1.0 - ROOT and growth > 0.0:
                return level, step + 1
        if high - low <= 1e-15 * high:
            break
        trial = level - (cost - 1.0) / growth if growth > 0.0 else low
        level = trial if low < trial < high else 0.5 * (low + high)
    targets_at(rise, low, target, rate)
    _evaluate(T, gpus, counts, weights, target, price, load, slope)
    return low, ROOT_STEPS_MAX + 1


@njit(cache=True)
def climb(T, gpus, counts, rise, low, high, first, stabilise, passes_max):
    """Find the highest level in [low, high] whose targets fit; `low` must fit. See `Ascent` for what returns.

    `first` (k x J) are the first prices to ask. With `stabilise` queries lie between prices already seen,
    which is faster; without it they are vertices, whose zeros are exact, and so are the zeros of the
    tangent.
    """
    n, types = T.shape
    target, rate, slope = np.empty(n), np.empty(n), np.empty(n)
    price, load = np.empty(types), np.empty(types)
    columns, weights_of = np.empty((COLUMNS_MAX, types)), np.empty((COLUMNS_MAX, types))
    level_of = np.empty(COLUMNS_MAX)
    basis = np.empty(types, dtype=np.int64)
    outer, mix = np.empty(types), np.empty(types)
    tangent = np.zeros(types)
    query = first[0].copy()
    inner = query.copy()
    level = high
    count = 0
    asked = 0
    best = -1.0
    value = np.inf
    least = np.inf
    progress = 0
    fits = False
    reset = True
    targets_at(rise, level, target, rate)
    passes = 0
    while passes < passes_max:
        cost = _evaluate(T, gpus, counts, query, target, price, load, slope)
        passes += 1
        if count == COLUMNS_MAX:
            count = _keep_basis(columns, weights_of, level_of, basis)
        if cost > 1.0 + FITS and (cost - 1.0 >= 0.5 * (value - 1.0) or value == np.inf):
            # too high: go down to where these prices allow, and evaluate the basis there
            level, spent = _level_for(T, gpus, counts, rise, query, low, level, target, rate, price, load, slope)
            passes += spent
            tangent[:] = query
            inner[:] = query
            best = 1.0
            least = np.inf
            reset = True
        elif cost > best:
            best = cost
            inner[:] = query
        columns[count] = load
        weights_of[count] = query
        level_of[count] = level
        count += 1
        asked += 1
        if reset and value < np.inf:
            for i in range(types):
                if basis[i] >= 0:
                    passes += _refresh(
                        T,
                        gpus,
                        counts,
                        basis[i],
                        columns,
                        weights_of,
                        level_of,
                        level,
                        target,
                        price,
                        load,
                        slope,
                    )
        if asked < len(first):
            query[:] = first[asked]
            continue
        fits = False
        while True:
            if reset:
                for i in range(types):
                    basis[i] = -1 - i
                reset = False
            value = solve_game(columns, count, basis, outer, mix)
            if value < least * (1.0 - 1e-14):
                least = value
                progress = passes
            stalled = passes - progress > STALLED_PASSES and value <= 1.0 + NEARLY_FITS
            settled = value <= 1.0 + 2.0 * FITS and value - best <= 0.5 * FITS
            if value > 1.0 + FITS and not settled and not stalled:
                break
            # it fits: but the allocation must be one for this level, not for one that has been given up
            for i in range(types):
                if basis[i] >= 0 and mix[i] > 0.0 and level_of[basis[i]] != level:
                    passes += _refresh(
                        T,
                        gpus,
                        counts,
                        basis[i],
                        columns,
                        weights_of,
                        level_of,
                        level,
                        target,
                        price,
                        load,
                        slope,
                    )
                    reset = True
            if not reset:
                fits = True
                break
        if fits:
            break
        halfway = stabilise and asked % 5 != 0
        if best > 1.0 + FITS and best - 1.0 >= 0.5 * (value - 1.0):
            query[:] = inner  # the best prices already prove the level too high
        else:
            for j in range(types):
                query[j] = 0.5 * (inner[j] + outer[j]) if halfway else outer[j]
    basis_price, basis_weight = np.zeros((types, types)), np.zeros(types)
    if value < np.inf:
        for i in range(types):
            if basis[i] >= 0:
                basis_price[i] = weights_of[basis[i]]
                basis_weight[i] = mix[i]
    return level, value, tangent, basis_price, basis_weight, passes, fits


@njit(cache=True)
def _refresh(T, gpus, counts, k, columns, weights_of, level_of, level, target, price, load, slope):
    """Evaluate column k again at the current targets; returns the passes spent."""
    if level_of[k] == level:
        return 0
    _evaluate(T, gpus, counts, weights_of[k], target, price, load, slope)
    columns[k] = load
    level_of[k] = level
    return 1


@njit(cache=True)
def _keep_basis(columns, weights_of, level_of, basis):
    """Forget all columns outside the basis; returns how many are left."""
    order = np.sort(basis)
    kept = 0
    for k in order:
        if k >= 0:
            columns[kept] = columns[k]
            weights_of[kept] = weights_of[k]
            level_of[kept] = level_of[k]
            for i in range(len(basis)):
                if basis[i] == k:
                    basis[i] = kept
            kept += 1
    return kept


def ascend(
    T: FloatArray,
    gpus: FloatArray,
    counts: FloatArray,
    rise: Rise,
    low: float,
    high: float,
    first: FloatArray,
    stabilise: bool,
    passes_max: int = PASSES_MAX,
) -> Ascent:
    return Ascent(*climb(T, gpus, counts, rise, low, high, first, stabilise, passes_max))


def uniform_prices(types: int) -> FloatArray:
    return np.full((1, types), 1.0 / types)


__all__ = ["Ascent", "IntArray", "Rise", "ascend", "rational_rise", "tree_rise", "uniform_prices"]

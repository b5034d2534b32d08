"""The analytic centre of the optimal allocations.

An optimal X is rarely unique, and which one is taken decides who runs next. Interior-point solvers end near
the analytic centre of the optimal face, which is where the published implementation's results come from; so
the mechanism `original` takes exactly that point: it maximises the sum of the logarithms of all slacks,

    sum log x + sum_m log(1 - sum_j x_mj) + sum_j log(N_j - sum_m s_m x_mj) + sum_m log(T_m x_m - need_m),

with the objective held at its optimum up to a small relative slack. Newton's method; each job's J x J block
is inverted apart, and the rows that couple jobs (capacities, a total) form a small dense system.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

SLACKS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
"""Relative slacks of the objective, walked down so that each Newton run starts close to its end."""
NEWTON_STEPS_MAX = 60
NEWTON_DECREMENT = 1e-9


def centre_of_levels(
    throughput: Floats, usable: Bools, gpus: Floats, counts: Floats, need: Floats, optimum: Floats
) -> Floats:
    """Centre of {X: T_m x_m >= need_m}; `need` must be reached by `optimum` (a feasible X)."""
    return _walk(throughput, usable, gpus, counts, need, None, 0.0, optimum)


def centre_of_total(coefficient: Floats, usable: Bools, gpus: Floats, counts: Floats, optimum: Floats) -> Floats:
    """Centre of {X: sum c_mj x_mj is optimal}."""
    value = float((coefficient * optimum).sum())
    return _walk(coefficient, usable, gpus, counts, np.zeros(len(gpus)), coefficient, value, optimum)


def _walk(
    throughput: Floats, usable: Bools, gpus: Floats, counts: Floats, need: Floats, total: Floats | None,
    value: float, optimum: Floats,
) -> Floats:  # fmt: skip
    x = optimum
    mask = usable & (counts > 0)[None, :]
    spread = np.where(mask, 1.0, 0.0)
    spread *= 0.5 / np.maximum(spread.sum(axis=1, keepdims=True), 1.0)
    load = gpus @ spread
    spread *= float(np.min(np.where(load > 0, 0.5 * counts / np.maximum(load, 1e-300), 1.0), initial=1.0))
    before = 0.0
    for slack in SLACKS:
        # A point that keeps the objective within the slack: mostly the optimum, a little of the last centre.
        part = slack / 4 if before == 0.0 else slack / before / 2
        start = (1.0 - part) * optimum + part * (spread if before == 0.0 else x)
        found = _newton(
            throughput,
            mask,
            gpus,
            counts,
            need * (1.0 - slack),
            total,
            value * (1.0 - slack),
            np.where(mask, start, 0.0),
        )
        if found is None:
            break
        x, before = found, slack
    return x


def _newton(
    throughput: Floats, mask: Bools, gpus: Floats, counts: Floats, need: Floats, total: Floats | None,
    value: float, x: Floats,
) -> Floats | None:  # fmt: skip
    speeds = np.where(mask, throughput, 0.0)
    worth = np.zeros_like(speeds) if total is None else np.where(mask, total, 0.0)
    found, centre = _newton_kernel(
        speeds, mask, np.asarray(gpus, float), np.asarray(counts, float), counts > 0, np.asarray(need, float), worth,
        total is not None, float(value), np.ascontiguousarray(x),
    )  # fmt: skip
    return centre if found else None


@njit(cache=True)
def _newton_kernel(speeds, mask, gpus, limits, capped, need, total, with_total, value, x):
    """Newton's method on the sum of log slacks. Per job a Cholesky factor of its J x J block; the capacity
    rows and the total form a small dense system. Returns (found, x)."""
    n, types = x.shape
    k_rows = types + 1
    x = x.copy()
    gradient = np.empty((n, types))
    solved = np.empty((k_rows + 1, n, types))
    scaled = np.empty((k_rows, n, types))
    block = np.empty((types, types))
    step = np.empty((n, types))
    used = np.empty(k_rows)
    for j in range(types):
        used[j] = 1.0 if capped[j] else 0.0
    used[types] = 1.0 if with_total else 0.0
    for _ in range(NEWTON_STEPS_MAX):
        slack = np.empty(k_rows)
        for j in range(types):
            slack[j] = limits[j]
        slack[types] = -value
        for m in range(n):
            for j in range(types):
                if mask[m, j]:
                    if x[m, j] <= 0.0:
                        return False, x
                    slack[j] -= gpus[m] * x[m, j]
                    slack[types] += total[m, j] * x[m, j]
        for k in range(k_rows):
            if used[k] > 0.0 and not slack[k] > 0.0:
                return False, x
        for m in range(n):
            s_time, s_need = 1.0, -need[m]
            for j in range(types):
                s_time -= x[m, j]
                s_need += speeds[m, j] * x[m, j]
            if not s_time > 0.0 or (need[m] > 0.0 and not s_need > 0.0):
                return False, x
            pull = 1.0 / s_need if need[m] > 0.0 else 0.0
            push = 1.0 / s_time
            for i in range(types):
                for j in range(i + 1):
                    both = push * push if mask[m, i] and mask[m, j] else 0.0
                    block[i, j] = both + speeds[m, i] * speeds[m, j] * pull * pull
                if mask[m, i]:
                    block[i, i] += 1.0 / (x[m, i] * x[m, i])
                    gradient[m, i] = 1.0 / x[m, i] - push + speeds[m, i] * pull
                else:
                    block[i, i] += 1.0
                    gradient[m, i] = 0.0
                for k in range(k_rows):
                    scaled[k, m, i] = 0.0
                if mask[m, i]:
                    if used[i] > 0.0:
                        scaled[i, m, i] = gpus[m] / slack[i]
                    if with_total:
                        scaled[types, m, i] = -total[m, i] / slack[types]
                    for k in range(k_rows):
                        gradient[m, i] -= scaled[k, m, i]
            for i in range(types):
                for j in range(i + 1):
                    value_ij = block[i, j]
                    for p in range(j):
                        value_ij -= block[i, p] * block[j, p]
                    if i == j:
                        if not value_ij > 0.0:
                            return False, x
                        block[i, i] = np.sqrt(value_ij)
                    else:
                        block[i, j] = value_ij / block[j, j]
            for k in range(k_rows + 1):
                for i in range(types):
                    right = scaled[k, m, i] if k < k_rows else gradient[m, i]
                    for p in range(i):
                        right -= block[i, p] * solved[k, m, p]
                    solved[k, m, i] = right / block[i, i]
                for i in range(types - 1, -1, -1):
                    right = solved[k, m, i]
                    for p in range(i + 1, types):
                        right -= block[p, i] * solved[k, m, p]
                    solved[k, m, i] = right / block[i, i]
        small = np.zeros((k_rows, k_rows + 1))
        for k in range(k_rows):
            small[k, k] = 1.0
            for m in range(n):
                for i in range(types):
                    s = scaled[k, m, i]
                    if s != 0.0:
                        for other in range(k_rows):
                            small[k, other] += s * solved[other, m, i]
                        small[k, k_rows] += s * solved[k_rows, m, i]
        for k in range(k_rows):  # symmetric positive definite: elimination needs no pivots
            for row in range(k + 1, k_rows):
                factor = small[row, k] / small[k, k]
                for column in range(k, k_rows + 1):
                    small[row, column] -= factor * small[k, column]
        weights = np.zeros(k_rows)
        for k in range(k_rows - 1, -1, -1):
            right = small[k, k_rows]
            for column in range(k + 1, k_rows):
                right -= small[k, column] * weights[column]
            weights[k] = right / small[k, k]
        decrement = 0.0
        for m in range(n):
            for i in range(types):
                moved = solved[k_rows, m, i]
                for k in range(k_rows):
                    moved -= weights[k] * solved[k, m, i]
                step[m, i] = moved
                decrement += moved * gradient[m, i]
        if not np.isfinite(decrement):
            return False, x
        if decrement < NEWTON_DECREMENT:
            return True, x
        length = 1.0 / (1.0 + np.sqrt(decrement)) if decrement > 0.25 else 1.0
        for m in range(n):
            for i in range(types):
                x[m, i] += length * step[m, i]
    return True, x

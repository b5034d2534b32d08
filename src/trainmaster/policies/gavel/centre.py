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


def centre_of_total(
    coefficient: Floats, usable: Bools, gpus: Floats, counts: Floats, optimum: Floats
) -> Floats:
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
            throughput, mask, gpus, counts, need * (1.0 - slack), total, value * (1.0 - slack), np.where(mask, start, 0.0)
        )
        if found is None:
            break
        x, before = found, slack
    return x


def _newton(
    throughput: Floats, mask: Bools, gpus: Floats, counts: Floats, need: Floats, total: Floats | None,
    value: float, x: Floats,
) -> Floats | None:  # fmt: skip
    n, types = x.shape
    active = need > 0
    speeds = np.where(mask, throughput, 0.0)
    couple = [np.where(mask & (np.arange(types) == j)[None, :], gpus[:, None], 0.0) for j in range(types) if counts[j] > 0]
    if total is not None:
        couple.append(-np.where(mask, total, 0.0))
    rows = np.array(couple).reshape(len(couple), n, types)
    limits = np.array([c for c in counts if c > 0] + ([] if total is None else [-value]))
    identity = np.eye(types)
    for _ in range(NEWTON_STEPS_MAX):
        s_time = 1.0 - x.sum(axis=1)
        s_need = np.where(active, (speeds * x).sum(axis=1) - need, 1.0)
        s_rows = limits - (rows * x).sum(axis=(1, 2))
        if min(s_time.min(), s_need.min(), s_rows.min()) <= 0 or (x[mask] <= 0).any():
            return None
        inverse = np.where(mask, 1.0 / np.where(mask, x, 1.0), 0.0)
        pull = np.where(active, 1.0 / s_need, 0.0)
        gradient = inverse - np.where(mask, 1.0 / s_time[:, None], 0.0) + speeds * pull[:, None]
        gradient -= (rows / s_rows[:, None, None]).sum(axis=0)
        blocks = identity * np.where(mask, inverse**2, 1.0)[:, :, None]
        both = mask[:, :, None] & mask[:, None, :]
        blocks = blocks + np.where(both, 1.0 / s_time[:, None, None] ** 2, 0.0)
        blocks += speeds[:, :, None] * speeds[:, None, :] * (pull**2)[:, None, None]
        factor = np.linalg.inv(blocks)
        scaled = rows / s_rows[:, None, None]
        solved = np.einsum("mij,kmj->kmi", factor, scaled)
        small = np.eye(len(rows)) + np.einsum("kmi,lmi->kl", scaled, solved)
        plain = np.einsum("mij,mj->mi", factor, gradient)
        weights = np.linalg.solve(small, np.einsum("kmi,mi->k", scaled, plain))
        step = plain - np.einsum("k,kmi->mi", weights, solved)
        decrement = float((step * gradient).sum())
        if not np.isfinite(decrement):
            return None
        if decrement < NEWTON_DECREMENT:
            return x
        x = x + step / (1.0 + np.sqrt(decrement)) if decrement > 0.25 else x + step
    return x

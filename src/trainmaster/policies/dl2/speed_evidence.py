# cython: cdivision=True
"""What measured speeds tell of a model's curve: evidence that adds up, and the curve that explains it best.

A job of a model takes x step(w, p) seconds per unit of work, with the model's curve step(w, p) = theta . terms(w, p)
(the seven of `Scaling`, none negative) and a factor x of its own (batch, data, machine), near 1. A measured speed s
then says s x theta . terms = 1. Squared relative errors, weighted, depend on the points only through

    G = sum weight s^2 terms terms^T        h = sum weight s terms        (8 x 7 numbers: G above h)

per job, so points need not be kept. Jobs of a model are put together as sum x^2 G and sum x h; theta given the factors
is a least-squares problem with theta >= 0, a factor given theta has a closed form, and the two take turns.
"""

from __future__ import annotations

import math

import numpy as np

from trainmaster.core.int_list import Bools, Floats, Ints, new_floats
from trainmaster.policies.dl2.evidence_terms import FACTOR_TRUST, N_TERM, TURNS
from trainmaster.policies.shared.speed_curves import SpeedCurves


def terms(w: float, p: float, out: Floats) -> None:
    out[0], out[1], out[3] = 1.0 / w, 1.0, w
    if p > 0:
        out[2], out[4], out[5], out[6] = w / p, p, 1.0 / p, p / w
    else:
        out[2], out[4], out[5], out[6] = 0.0, 0.0, 0.0, 0.0


def add_point(evidence: Floats, w: float, p: float, speed: float, weight: float) -> None:
    """A speed measured with w workers and p servers."""
    t = new_floats(N_TERM)
    terms(w, p, t)
    for i in range(N_TERM):
        scaled = weight * speed * t[i]
        evidence[N_TERM, i] += scaled
        for k in range(N_TERM):
            evidence[i, k] += scaled * speed * t[k]


def move(pool: Floats, evidence: Floats, before: float, after: float) -> None:
    """A job's evidence counts in the pool with another factor than before (0: not at all)."""
    for i in range(N_TERM):
        pool[N_TERM, i] += (after - before) * evidence[N_TERM, i]
        for k in range(N_TERM):
            pool[i, k] += (after * after - before * before) * evidence[i, k]


def factor(evidence: Floats, curve: Floats) -> float:
    """The factor of a job that agrees best with its evidence and with being 1."""
    above = FACTOR_TRUST
    below = FACTOR_TRUST
    for i in range(N_TERM):
        above += evidence[N_TERM, i] * curve[i]
        for k in range(N_TERM):
            below += curve[i] * evidence[i, k] * curve[k]
    return min(max(above / below, 0.1), 10.0)


def fit(pool: Floats, out: Floats) -> None:
    """The curve with the least squared errors and no negative coefficient (Lawson and Hanson, 1974, chapter 23, on the
    normal equations)."""
    scale, x, trial = new_floats(N_TERM), new_floats(N_TERM), new_floats(N_TERM)
    passive = np.zeros(N_TERM, np.bool_)
    for i in range(N_TERM):
        scale[i] = math.sqrt(pool[i, i]) if pool[i, i] > 0.0 else 1.0
    top = 0.0
    for i in range(N_TERM):
        top = max(top, abs(pool[N_TERM, i]) / scale[i])
    for _ in range(10 * N_TERM):
        best, entering = 1e-9 * top, -1
        for i in range(N_TERM):
            if not passive[i] and pool[i, i] > 0.0:
                slope = pool[N_TERM, i] / scale[i]
                for k in range(N_TERM):
                    slope -= pool[i, k] / (scale[i] * scale[k]) * x[k]
                if slope > best:
                    best, entering = slope, i
        if entering < 0:
            break
        passive[entering] = True
        while True:
            _solved(pool, scale, passive, trial)
            step = 1.0
            for i in range(N_TERM):
                if passive[i] and trial[i] <= 0.0:
                    step = min(step, x[i] / (x[i] - trial[i]) if x[i] > trial[i] else 0.0)
            for i in range(N_TERM):
                x[i] += step * (trial[i] - x[i])
            if step >= 1.0:
                break
            left, some = False, False
            for i in range(N_TERM):
                if passive[i] and x[i] <= 1e-12:
                    x[i] = 0.0
                    passive[i] = False
                    left = True
                some = some or passive[i]
            if not left or not some:
                break
    for i in range(N_TERM):
        out[i] = x[i] / scale[i]


def _solved(pool: Floats, scale: Floats, passive: Bools, out: Floats) -> None:
    """Least squares in the passive columns, by Cholesky; columns that add nothing to the others stay at zero."""
    lower = np.zeros((N_TERM, N_TERM))
    middle = new_floats(N_TERM)
    for i in range(N_TERM):
        if not passive[i]:
            continue
        for k in range(i + 1):
            if not passive[k]:
                continue
            value = pool[i, k] / (scale[i] * scale[k])
            for m in range(k):
                value -= lower[i, m] * lower[k, m]
            if i == k:
                lower[i, i] = math.sqrt(value) if value > 1e-10 else 0.0
            elif lower[k, k] > 0.0:
                lower[i, k] = value / lower[k, k]
    for i in range(N_TERM):
        if passive[i] and lower[i, i] > 0.0:
            value = pool[N_TERM, i] / scale[i]
            for m in range(i):
                value -= lower[i, m] * middle[m]
            middle[i] = value / lower[i, i]
    for i in range(N_TERM - 1, -1, -1):
        out[i] = 0.0
        if passive[i] and lower[i, i] > 0.0:
            value = middle[i]
            for m in range(i + 1, N_TERM):
                value -= lower[m, i] * out[m]
            out[i] = value / lower[i, i]


def settle(pool: Floats, evidence: Floats, factors: Floats, rows: Ints, n: int, curve: Floats) -> None:
    """Curve of a model and factors of its jobs (the first n of `rows`), a few turns; the pool follows the factors."""
    for _ in range(TURNS):
        fit(pool, curve)
        for i in range(n):
            j: int = rows[i]
            now = factor(evidence[j], curve)
            move(pool, evidence[j], factors[j], now)
            factors[j] = now
    fit(pool, curve)


def best_size(curve: Floats, w_least: int, w_max: int, p_least: int, p_max: int) -> tuple[int, int]:
    """Where the curve is fastest within the limits."""
    # Convex in the logarithms of w and p: moves of ever smaller steps end at the best size or near it.
    at_w, at_p = max(w_least, 1), p_least
    curves = SpeedCurves(np.asarray(curve)[None])
    best = curves.step_time(0, at_w, at_p)
    stride = 1
    while 2 * stride <= max(w_max - at_w, p_max - at_p):
        stride *= 2
    while stride > 0:
        moved = False
        for dw in range(-1, 2):
            for dp in range(-1, 2):
                w, p = at_w + dw * stride, at_p + dp * stride
                if max(w_least, 1) <= w <= w_max and p_least <= p <= p_max:
                    time = curves.step_time(0, w, p)
                    if time < best:
                        best, at_w, at_p, moved = time, w, p, True
        if not moved:
            stride //= 2
    return at_w, at_p


def size_near(best: float, least: int, most: int, draw: float) -> int:
    """A size near the best by a factor of two at most; `draw`: from -1 to 1."""
    return min(max(round(best * 2.0**draw), least), most)


def drawn_part(count: int) -> int:
    """How many of a profile's sizes are drawn; the rest lie near the best size by what is known then."""
    return (count + 1) // 2


def likely_best(pool: Floats, own: Floats, w_least: int, w_max: int, p_least: int, p_max: int) -> tuple[int, int]:
    """The best size by a model's pool and a new job's own first points together."""
    both, curve = np.asarray(pool) + np.asarray(own), new_floats(N_TERM)
    fit(both, curve)
    return best_size(curve, w_least, w_max, p_least, p_max)

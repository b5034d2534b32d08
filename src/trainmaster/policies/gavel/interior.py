"""The allocation at which a primal-dual interior-point solver stops.

An optimal X is rarely unique, and which one is taken decides who runs next. The published implementation gives its
programs to a conic solver, so its results hang on where that solver stops: near the analytic centre of the optimal
face where there is an objective, and, for the makespan policy, whose last program only asks for feasibility, at
whatever point the path from the solver's starting point first becomes feasible. No property of the program alone
names that point. So the mechanism `original` follows the same published method, for linear cones: the homogeneous
self-dual embedding with Mehrotra's correction and a least-squares start (Domahidi, Chu, Boyd: ECOS, ECC 2013; the
embedding and the scalings as in Vandenberghe: the CVXOPT linear and quadratic cone program solvers, 2010).

    min c'x   s.t.  G x + s = h,  s >= 0

with rows  -x_mj <= 0,   sum_m g_m x_mj <= N_j,   sum_j x_mj <= 1   and, if asked for,  e u - T_m x_m <= -need_m  with
a common level u. The normal equations G' (z/s) G fall apart into one small block per job; what couples jobs, the
capacities and the level, is a dense system of J + 1 rows. One iteration is a few passes over the jobs. Divisions follow
IEEE rules here: where rounding ends the path, numbers cease to be finite, which is looked for.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Floats = npt.NDArray[np.float64]

ITERATIONS_MAX = 60
TOLERANCE = 1e-8
"""Of residuals and gap, as the solver's default."""
STEP = 0.99
STEP_MAX = 0.999
CENTRING_MIN = 1e-4
EQUILIBRATIONS = 3
REFINEMENTS = 4
REFINED = 1e-13
PIVOT_MIN = 1e-14
"""Of a block's diagonal entry: keeps factors positive where weights differ by too many orders."""
CLOSE_ENOUGH = 1e-5
"""Residuals and gap at which X is taken all the same when rounding ends the path early."""


def stop_of_level(speeds: Floats, rate: Floats, gpus: Floats, counts: Floats) -> Floats | None:
    """Where max u, T_m x_m >= rate_m u, is left. None: it did not converge."""
    need = np.zeros(len(gpus))
    goal = np.zeros_like(speeds)
    found, x = _follow(speeds / rate[:, None], True, need, goal, -1.0, gpus, counts)
    return x if found else None


def stop_of_feasibility(speeds: Floats, need: Floats, gpus: Floats, counts: Floats) -> Floats | None:
    """Where the search for any X with T_m x_m >= need_m is left."""
    found, x = _follow(speeds, False, need, np.zeros_like(speeds), 0.0, gpus, counts)
    return x if found else None


def stop_of_total(worth: Floats, gpus: Floats, counts: Floats) -> Floats | None:
    """Where max sum c_mj x_mj is left."""
    none = np.full(len(gpus), -np.inf)
    found, x = _follow(np.zeros_like(worth), False, none, -worth, 0.0, gpus, counts)
    return x if found else None


@njit(cache=True, error_model="numpy")
def _times(own, room, time, gain, level, x, u, out):
    """out = G x for rows (own n J, room J, time n, gain n); coefficients of the scaled rows."""
    n, types = own.shape
    first_room, first_time = n * types, n * types + types
    first_gain = first_time + n
    for j in range(types):
        out[first_room + j] = 0.0
    for m in range(n):
        total = gained = 0.0
        for j in range(types):
            v = x[m, j]
            out[m * types + j] = -own[m, j] * v
            out[first_room + j] += room[m, j] * v
            total += time[m, j] * v
            gained += gain[m, j] * v
        out[first_time + m] = total
        out[first_gain + m] = level[m] * u - gained


@njit(cache=True, error_model="numpy")
def _transposed(own, room, time, gain, level, y, out):
    """out = G' y; returns the entry of the level."""
    n, types = own.shape
    first_room, first_time = n * types, n * types + types
    first_gain = first_time + n
    at_level = 0.0
    for m in range(n):
        yt, yg = y[first_time + m], y[first_gain + m]
        at_level += level[m] * yg
        for j in range(types):
            out[m, j] = (
                -own[m, j] * y[m * types + j] + room[m, j] * y[first_room + j] + time[m, j] * yt - gain[m, j] * yg
            )
    return at_level


@njit(cache=True, error_model="numpy")
def _cholesky(block):
    types = block.shape[0]
    for i in range(types):
        for j in range(i + 1):
            value = block[i, j]
            least = PIVOT_MIN * value
            for k in range(j):
                value -= block[i, k] * block[j, k]
            block[i, j] = np.sqrt(max(value, least)) if i == j else value / block[j, j]


@njit(cache=True, error_model="numpy")
def _back(factor, vector):
    """Solve with a Cholesky factor, in place."""
    types = factor.shape[0]
    for i in range(types):
        for k in range(i):
            vector[i] -= factor[i, k] * vector[k]
        vector[i] /= factor[i, i]
    for i in range(types - 1, -1, -1):
        for k in range(i + 1, types):
            vector[i] -= factor[k, i] * vector[k]
        vector[i] /= factor[i, i]


@njit(cache=True, error_model="numpy")
def _factor(own, room, time, gain, level, with_level, w, blocks, pull, small):
    """Prepare G' W G for solving: a Cholesky factor of each job's block, what its gain row does to the level, and the
    dense system of capacities and level."""
    n, types = own.shape
    first_room, first_time = n * types, n * types + types
    first_gain = first_time + n
    size = types + 1
    small[:, :] = 0.0
    for j in range(types):
        small[j, j] = 1.0 / w[first_room + j]
    column = np.empty(types)
    for m in range(n):
        block, wt, wg = blocks[m], w[first_time + m], w[first_gain + m]
        if with_level:
            # w (block)^-1 d = w / (1 + w d' B^-1 d) B^-1 d, B the block without this row: nothing cancels.
            for i in range(types):
                for j in range(i + 1):
                    block[i, j] = wt * time[m, i] * time[m, j]
                block[i, i] += own[m, i] * own[m, i] * w[m * types + i]
                pull[m, i] = gain[m, i]
            _cholesky(block)
            _back(block, pull[m])
            grown = 0.0
            for j in range(types):
                grown += gain[m, j] * pull[m, j]
            left = wg / (1.0 + wg * grown)
            small[types, types] -= level[m] * level[m] * left
            for j in range(types):
                pull[m, j] *= left
                small[j, types] -= level[m] * room[m, j] * pull[m, j]
        for i in range(types):
            for j in range(i + 1):
                block[i, j] = wt * time[m, i] * time[m, j] + wg * gain[m, i] * gain[m, j]
            block[i, i] += own[m, i] * own[m, i] * w[m * types + i]
        _cholesky(block)
        for j in range(types):
            column[:] = 0.0
            column[j] = room[m, j]
            _back(block, column)
            for k in range(types):
                small[k, j] += room[m, k] * column[k]
    for j in range(types):
        small[types, j] = small[j, types]
    if not with_level:
        small[types, types] = -1.0
    for k in range(size):  # quasi-definite: elimination needs no pivots
        for row in range(k + 1, size):
            factor = small[row, k] / small[k, k]
            small[row, k] = factor
            for column in range(k + 1, size):
                small[row, column] -= factor * small[k, column]


@njit(cache=True, error_model="numpy")
def _solve_blocks(own, room, level, with_level, blocks, pull, small, total, at_level, x):
    """G' W G x = total, the level's entry apart; returns the level."""
    n, types = own.shape
    size = types + 1
    vector = np.zeros(size)
    vector[types] = -at_level if with_level else 0.0
    for m in range(n):
        for j in range(types):
            x[m, j] = total[m, j]
            vector[types] -= level[m] * pull[m, j] * total[m, j]
        _back(blocks[m], x[m])
        for j in range(types):
            vector[j] += room[m, j] * x[m, j]
    for k in range(size):
        for row in range(k + 1, size):
            vector[row] -= small[row, k] * vector[k]
    for k in range(size - 1, -1, -1):
        for column in range(k + 1, size):
            vector[k] -= small[k, column] * vector[column]
        vector[k] /= small[k, k]
    u = vector[types] if with_level else 0.0
    for m in range(n):
        for j in range(types):
            x[m, j] = total[m, j] - room[m, j] * vector[j]
        _back(blocks[m], x[m])
        for j in range(types):
            x[m, j] += level[m] * pull[m, j] * u
    return u


@njit(cache=True, error_model="numpy")
def _solve(own, room, time, gain, level, with_level, w, blocks, pull, small, right, right_level, rows, x, z):
    """[0 G'; G -1/W] (x, z) = (right, rows). Returns the level; writes x and z. The normal equations lose digits when
    weights differ by many orders, so what is left of the first row is solved for again."""
    n, types = own.shape
    count = rows.size
    part, more = np.empty(count), np.empty((n, types))
    for i in range(count):
        z[i] = -w[i] * rows[i]
    x[:, :] = 0.0
    u = 0.0
    total = np.empty((n, types))
    first = 0.0
    for attempt in range(1 + REFINEMENTS):
        at_level = right_level - _transposed(own, room, time, gain, level, z, total) if with_level else 0.0
        if not with_level:
            _transposed(own, room, time, gain, level, z, total)
        error = at_level * at_level
        for m in range(n):
            for j in range(types):
                total[m, j] = right[m, j] - total[m, j]
                error += total[m, j] * total[m, j]
        if attempt == 0:
            first = error
        elif error <= REFINED * REFINED * first:
            break
        step = _solve_blocks(own, room, level, with_level, blocks, pull, small, total, at_level, more)
        _times(own, room, time, gain, level, more, step, part)
        u += step
        for m in range(n):
            for j in range(types):
                x[m, j] += more[m, j]
        for i in range(count):
            z[i] += w[i] * part[i]
    return u


@njit(cache=True, error_model="numpy")
def _equilibrate(own, room, time, gain, level, column, row):
    """Scale rows and columns of G towards largest entries of 1 (Ruiz); `column` and `row` collect the scales. Returns
    the scale of the level."""
    n, types = own.shape
    first_room, first_time = n * types, n * types + types
    first_gain = first_time + n
    of_level = 1.0
    for _ in range(EQUILIBRATIONS):
        tall, wide = np.zeros((n, types)), np.zeros(row.size)
        tall_level = 0.0
        for m in range(n):
            for j in range(types):
                a, c, b, d = own[m, j], room[m, j], time[m, j], gain[m, j]
                tall[m, j] = max(max(a, c), max(b, d))
                wide[m * types + j] = a
                wide[first_room + j] = max(wide[first_room + j], c)
                wide[first_time + m] = max(wide[first_time + m], b)
                wide[first_gain + m] = max(wide[first_gain + m], d)
            wide[first_gain + m] = max(wide[first_gain + m], level[m])
            tall_level = max(tall_level, level[m])
        for i in range(row.size):
            wide[i] = np.sqrt(wide[i]) if wide[i] >= 1e-6 else 1.0
            row[i] *= wide[i]
        tall_level = np.sqrt(tall_level) if tall_level >= 1e-6 else 1.0
        of_level *= tall_level
        for m in range(n):
            for j in range(types):
                t = np.sqrt(tall[m, j]) if tall[m, j] >= 1e-6 else 1.0
                column[m, j] *= t
                own[m, j] /= t * wide[m * types + j]
                room[m, j] /= t * wide[first_room + j]
                time[m, j] /= t * wide[first_time + m]
                gain[m, j] /= t * wide[first_gain + m]
            level[m] /= tall_level * wide[first_gain + m]
    return of_level


@njit(cache=True, error_model="numpy")
def _into_cone(r, count, out):
    """Shift a vector until it is positive."""
    shift = -STEP
    for i in range(count):
        if r[i] <= 0.0 and -r[i] > shift:
            shift = -r[i]
    for i in range(count):
        out[i] = r[i] + shift + 1.0


@njit(cache=True, error_model="numpy")
def _step_length(root, ds, dz, count, tau, dtau, kappa, dkappa):
    lowest = 0.0
    for i in range(count):
        lowest = min(lowest, min(ds[i], dz[i]) / root[i])
    length = -1.0 / lowest if lowest < 0.0 else 1e13
    if dtau < 0.0:
        length = min(length, -tau / dtau)
    if dkappa < 0.0:
        length = min(length, -kappa / dkappa)
    return min(max(length, 1e-6), STEP_MAX)


@njit(cache=True, error_model="numpy")
def _norm(values, count):
    total = 0.0
    for i in range(count):
        total += values[i] * values[i]
    return np.sqrt(total)


@njit(cache=True, error_model="numpy")
def _follow(speeds, with_level, need, goal, goal_level, gpus, counts):
    """Follow the path to its end. `need` of -inf: no rows for gains. Returns (converged, X)."""
    n, types = speeds.shape
    first_room, first_time = n * types, n * types + types
    first_gain = first_time + n
    with_gain = need[0] > -np.inf
    full = first_gain + n
    count = full if with_gain else first_gain
    own, time = np.ones((n, types)), np.ones((n, types))
    room = np.empty((n, types))
    gain = speeds.copy()
    level = np.full(n, 1.0 if with_level else 0.0)
    h = np.zeros(full)
    for m in range(n):
        h[first_time + m] = 1.0
        h[first_gain + m] = -need[m] if with_gain else 0.0
        for j in range(types):
            room[m, j] = gpus[m]
    for j in range(types):
        h[first_room + j] = counts[j]
    column, row = np.ones((n, types)), np.ones(full)
    of_level = _equilibrate(own, room, time, gain, level, column, row)
    h /= row
    c = goal / column
    c_level = goal_level / of_level

    blocks, pull = np.empty((n, types, types)), np.zeros((n, types))
    small = np.empty((types + 1, types + 1))
    w = np.ones(full)
    for i in range(count, full):
        w[i] = 0.0
    nothing, no_rows = np.zeros((n, types)), np.zeros(full)
    x, x1, x2 = np.empty((n, types)), np.empty((n, types)), np.empty((n, types))
    z1, z2, s, z = np.zeros(full), np.zeros(full), np.zeros(full), np.zeros(full)
    _factor(own, room, time, gain, level, with_level, w, blocks, pull, small)
    u = _solve(own, room, time, gain, level, with_level, w, blocks, pull, small, nothing, 0.0, h, x, z1)
    _into_cone(-z1, count, s)
    _solve(own, room, time, gain, level, with_level, w, blocks, pull, small, -c, -c_level, no_rows, x2, z2)
    _into_cone(z2, count, z)
    tau = kappa = 1.0
    c_size, h_size = max(1.0, np.sqrt((c * c).sum() + c_level * c_level)), max(1.0, _norm(h, count))
    rz, rows, gx = np.zeros(full), np.zeros(full), np.zeros(full)
    rx = np.empty((n, types))
    root, scale = np.ones(full), np.ones(full)
    ds, dz = np.zeros(full), np.zeros(full)
    close, kept = False, np.zeros((n, types))
    for _ in range(ITERATIONS_MAX):
        rx_level = -_transposed(own, room, time, gain, level, z, rx) - c_level * tau
        rx_size = rx_level * rx_level if with_level else 0.0
        cx = c_level * u
        x_size = u * u
        for m in range(n):
            for j in range(types):
                rx[m, j] = -rx[m, j] - c[m, j] * tau
                rx_size += rx[m, j] * rx[m, j]
                cx += c[m, j] * x[m, j]
                x_size += x[m, j] * x[m, j]
        _times(own, room, time, gain, level, x, u, gx)
        gap = hz = 0.0
        for i in range(count):
            rz[i] = s[i] + gx[i] - tau * h[i]
            gap += s[i] * z[i]
            hz += h[i] * z[i]
        rt = kappa + cx + hz
        primal = _norm(rz, count) / max(h_size + np.sqrt(x_size) + _norm(s, count), 1.0) / tau
        dual = np.sqrt(rx_size) / max(c_size + _norm(z, count), 1.0) / tau
        worth = max(-cx, -hz) / tau
        if primal < TOLERANCE and dual < TOLERANCE and (gap < TOLERANCE or gap < TOLERANCE * worth):
            return True, x / tau / column
        if max(primal, dual) < CLOSE_ENOUGH and gap < CLOSE_ENOUGH * max(worth, 1.0):
            close = True
            kept[:, :] = x / tau / column
        elif close:  # rounding has taken over
            break
        mu = (gap + kappa * tau) / (count + 1)
        for i in range(count):
            root[i] = np.sqrt(s[i] * z[i])
            scale[i] = np.sqrt(s[i] / z[i])
            w[i] = z[i] / s[i]
        _factor(own, room, time, gain, level, with_level, w, blocks, pull, small)
        u1 = _solve(own, room, time, gain, level, with_level, w, blocks, pull, small, -c, -c_level, h, x1, z1)
        below = kappa / tau - c_level * u1 - (c * x1).sum()
        for i in range(count):
            below -= h[i] * z1[i]
            rows[i] = s[i] - rz[i]
        sigma = dtau_aff = dkappa_aff = u2 = 0.0
        for corrected in (False, True):
            part = 1.0 - sigma if corrected else 1.0
            u2 = _solve(
                own, room, time, gain, level, with_level, w, blocks, pull, small, part * rx, part * rx_level, rows,
                x2, z2,
            )  # fmt: skip
            both = kappa * tau + dkappa_aff * dtau_aff - sigma * mu if corrected else kappa * tau
            dtau = part * rt - both / tau + c_level * u2 + (c * x2).sum()
            for i in range(count):
                dtau += h[i] * z2[i]
            dtau /= below
            dkappa = -(both + kappa * dtau) / tau
            for i in range(count):
                due = ds[i] if corrected else root[i]
                dz[i] = scale[i] * (z2[i] + dtau * z1[i])
                ds[i] = -due - dz[i]
            length = _step_length(root, ds, dz, count, tau, dtau, kappa, dkappa)
            if corrected:
                break
            sigma = min(max((1.0 - length) ** 3, CENTRING_MIN), 1.0)
            dtau_aff, dkappa_aff = dtau, dkappa
            for i in range(count):
                ds[i] = (root[i] * root[i] + ds[i] * dz[i] - sigma * mu) / root[i]
                rows[i] = scale[i] * ds[i] - (1.0 - sigma) * rz[i]
        length *= STEP
        for m in range(n):
            for j in range(types):
                x[m, j] += length * (x2[m, j] + dtau * x1[m, j])
        u += length * (u2 + dtau * u1)
        for i in range(count):
            s[i] += length * scale[i] * ds[i]
            z[i] += length * dz[i] / scale[i]
        tau += length * dtau
        kappa += length * dkappa
        if not (tau > 0.0 and np.isfinite(tau) and np.isfinite(u) and np.isfinite(x).all()):
            break
    return close, kept

# cython: cdivision=True
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

import math

import numpy as np

from trainmaster.core.int_list import Floats, new_floats

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
    normal = NormalEquations(speeds / rate[:, None], gpus, True, True)
    return _followed(CentralPath(normal, np.zeros(len(gpus)), counts, np.zeros_like(speeds), -1.0))


def stop_of_feasibility(speeds: Floats, need: Floats, gpus: Floats, counts: Floats) -> Floats | None:
    """Where the search for any X with T_m x_m >= need_m is left."""
    normal = NormalEquations(speeds, gpus, False, True)
    return _followed(CentralPath(normal, need, counts, np.zeros_like(speeds), 0.0))


def stop_of_total(worth: Floats, gpus: Floats, counts: Floats) -> Floats | None:
    """Where max sum c_mj x_mj is left."""
    normal = NormalEquations(np.zeros_like(worth), gpus, False, False)
    return _followed(CentralPath(normal, np.zeros(len(gpus)), counts, -worth, 0.0))


def _followed(path: CentralPath) -> Floats | None:
    with np.errstate(all="ignore"):
        return np.array(path.found) if path.follow() else None


class NormalEquations:
    """G, equilibrated, and solves with [0 G'; G -1/W]. Rows are (x >= 0: n J; room: J; time: n; gain: n); `count` is
    without the last n where there are no rows for gains. `w` is the diagonal of W; `x`, `z` and the level that `solve`
    returns are the last solution."""

    def __init__(self, speeds: Floats, gpus: Floats, with_level: bool, with_gain: bool) -> None:
        n, types = speeds.shape
        self.n, self.types, self.with_level = n, types, with_level
        self.first_room, self.first_time = n * types, n * types + types
        self.first_gain = self.first_time + n
        self.full = self.first_gain + n
        self.count = self.full if with_gain else self.first_gain
        self.own, self.time, self.gain = (
            np.ones((n, types)),
            np.ones((n, types)),
            np.array(speeds, np.float64, order="C"),
        )
        self.room = np.ascontiguousarray(np.repeat(gpus[:, None], types, axis=1))
        self.level = np.full(n, 1.0 if with_level else 0.0)
        self.column, self.row, self.of_level = np.ones((n, types)), np.ones(self.full), 1.0
        for _ in range(EQUILIBRATIONS):
            self._equilibrate(np.zeros((n, types)), np.zeros(self.full))
        self.w = np.concatenate([np.ones(self.count), np.zeros(self.full - self.count)])
        self._blocks, self._pull = np.empty((n * types, types)), np.zeros((n, types))
        self._small, self._vector = np.empty((types + 1, types + 1)), new_floats(types + 1)
        self._total, self._more = np.empty((n, types)), np.empty((n, types))
        self._part, self._work = new_floats(self.full), new_floats(types)

    def _equilibrate(self, tall: Floats, wide: Floats) -> None:
        """Scale rows and columns of G towards largest entries of 1 (Ruiz); `column`, `row` and `of_level` collect the
        scales."""
        own, room, time, gain, level = self.own, self.room, self.time, self.gain, self.level
        types, first_room, first_time, first_gain = self.types, self.first_room, self.first_time, self.first_gain
        tall_level = 0.0
        for m in range(self.n):
            for j in range(types):
                a, c, b, d = own[m, j], room[m, j], time[m, j], gain[m, j]
                tall[m, j] = max(max(a, c), max(b, d))
                wide[m * types + j] = a
                wide[first_room + j] = max(wide[first_room + j], c)
                wide[first_time + m] = max(wide[first_time + m], b)
                wide[first_gain + m] = max(wide[first_gain + m], d)
            wide[first_gain + m] = max(wide[first_gain + m], level[m])
            tall_level = max(tall_level, level[m])
        for i in range(self.full):
            wide[i] = math.sqrt(wide[i]) if wide[i] >= 1e-6 else 1.0
            self.row[i] *= wide[i]
        tall_level = math.sqrt(tall_level) if tall_level >= 1e-6 else 1.0
        self.of_level *= tall_level
        for m in range(self.n):
            for j in range(types):
                t = math.sqrt(tall[m, j]) if tall[m, j] >= 1e-6 else 1.0
                self.column[m, j] *= t
                own[m, j] /= t * wide[m * types + j]
                room[m, j] /= t * wide[first_room + j]
                time[m, j] /= t * wide[first_time + m]
                gain[m, j] /= t * wide[first_gain + m]
            level[m] /= tall_level * wide[first_gain + m]

    def times(self, x: Floats, u: float, out: Floats) -> None:
        """out = G x."""
        own, room, time, gain, types = self.own, self.room, self.time, self.gain, self.types
        first_room = self.first_room
        for j in range(types):
            out[first_room + j] = 0.0
        for m in range(self.n):
            total = 0.0
            gained = 0.0
            for j in range(types):
                v = x[m, j]
                out[m * types + j] = -own[m, j] * v
                out[first_room + j] += room[m, j] * v
                total += time[m, j] * v
                gained += gain[m, j] * v
            out[self.first_time + m] = total
            out[self.first_gain + m] = self.level[m] * u - gained

    def transposed(self, y: Floats, out: Floats) -> float:
        """out = G' y; returns the entry of the level."""
        own, room, time, gain, types = self.own, self.room, self.time, self.gain, self.types
        first_room = self.first_room
        at_level = 0.0
        for m in range(self.n):
            yt, yg = y[self.first_time + m], y[self.first_gain + m]
            at_level += self.level[m] * yg
            for j in range(types):
                out[m, j] = (
                    -own[m, j] * y[m * types + j] + room[m, j] * y[first_room + j] + time[m, j] * yt - gain[m, j] * yg
                )
        return at_level

    def factor(self) -> None:
        """Prepare G' W G for solving: a Cholesky factor of each job's block, what its gain row does to the level, and
        the dense system of capacities and level."""
        types, small, work, pull = self.types, self._small, self._work, self._pull
        room, gain, level = self.room, self.gain, self.level
        for k in range(types + 1):
            for j in range(types + 1):
                small[k, j] = 0.0
        for j in range(types):
            small[j, j] = 1.0 / self.w[self.first_room + j]
        for m in range(self.n):
            wg = float(self.w[self.first_gain + m])
            if self.with_level:
                # w (block)^-1 d = w / (1 + w d' B^-1 d) B^-1 d, B the block without this row: nothing cancels.
                self._cholesky(m, 0.0)
                for j in range(types):
                    work[j] = gain[m, j]
                self._back(m)
                grown = 0.0
                for j in range(types):
                    pull[m, j] = work[j]
                    grown += gain[m, j] * pull[m, j]
                left = wg / (1.0 + wg * grown)
                small[types, types] -= level[m] * level[m] * left
                for j in range(types):
                    pull[m, j] *= left
                    small[j, types] -= level[m] * room[m, j] * pull[m, j]
            self._cholesky(m, wg)
            for j in range(types):
                for k in range(types):
                    work[k] = 0.0
                work[j] = room[m, j]
                self._back(m)
                for k in range(types):
                    small[k, j] += room[m, k] * work[k]
        for j in range(types):
            small[types, j] = small[j, types]
        if not self.with_level:
            small[types, types] = -1.0
        for k in range(types + 1):  # quasi-definite: elimination needs no pivots
            for row in range(k + 1, types + 1):
                factor = small[row, k] / small[k, k]
                small[row, k] = factor
                for j in range(k + 1, types + 1):
                    small[row, j] -= factor * small[k, j]

    def _cholesky(self, m: int, wg: float) -> None:
        """Factor job m's block of G' W G, where its gain row has the weight `wg`."""
        types, blocks, time, gain, own, at = self.types, self._blocks, self.time, self.gain, self.own, m * self.types
        wt = self.w[self.first_time + m]
        for i in range(types):
            for j in range(i + 1):
                blocks[at + i, j] = wt * time[m, i] * time[m, j] + wg * gain[m, i] * gain[m, j]
            blocks[at + i, i] += own[m, i] * own[m, i] * self.w[at + i]
        for i in range(types):
            for j in range(i + 1):
                value = blocks[at + i, j]
                least = PIVOT_MIN * value
                for k in range(j):
                    value -= blocks[at + i, k] * blocks[at + j, k]
                blocks[at + i, j] = math.sqrt(max(value, least)) if i == j else value / blocks[at + j, j]

    def _back(self, m: int) -> None:
        """Solve with the Cholesky factor of job m's block, `_work` in place."""
        types, factor, vector, at = self.types, self._blocks, self._work, m * self.types
        for i in range(types):
            for k in range(i):
                vector[i] -= factor[at + i, k] * vector[k]
            vector[i] /= factor[at + i, i]
        for i in range(types - 1, -1, -1):
            for k in range(i + 1, types):
                vector[i] -= factor[at + k, i] * vector[k]
            vector[i] /= factor[at + i, i]

    def _solve_blocks(self, at_level: float, x: Floats) -> float:
        """G' W G x = _total, the level's entry apart; returns the level."""
        n, types, vector, small, work = self.n, self.types, self._vector, self._small, self._work
        room, total = self.room, self._total
        for k in range(types):
            vector[k] = 0.0
        vector[types] = -at_level if self.with_level else 0.0
        for m in range(n):
            for j in range(types):
                work[j] = total[m, j]
                vector[types] -= self.level[m] * self._pull[m, j] * total[m, j]
            self._back(m)
            for j in range(types):
                vector[j] += room[m, j] * work[j]
        for k in range(types + 1):
            for row in range(k + 1, types + 1):
                vector[row] -= small[row, k] * vector[k]
        for k in range(types, -1, -1):
            for j in range(k + 1, types + 1):
                vector[k] -= small[k, j] * vector[j]
            vector[k] /= small[k, k]
        u = float(vector[types]) if self.with_level else 0.0
        for m in range(n):
            for j in range(types):
                work[j] = total[m, j] - room[m, j] * vector[j]
            self._back(m)
            for j in range(types):
                x[m, j] = work[j] + self.level[m] * self._pull[m, j] * u
        return u

    def solve(self, scale: float, right: Floats, right_level: float, rows: Floats, x: Floats, z: Floats) -> float:
        """[0 G'; G -1/W] (x, z) = (scale right, rows). Returns the level; writes x and z. The normal equations lose
        digits when weights differ by many orders, so what is left of the first row is solved for again."""
        n, types, total, more = self.n, self.types, self._total, self._more
        for i in range(self.full):
            z[i] = -self.w[i] * rows[i]
        for m in range(n):
            for j in range(types):
                x[m, j] = 0.0
        u = 0.0
        first = 0.0
        for attempt in range(1 + REFINEMENTS):
            at_level = self.transposed(z, total)
            at_level = scale * right_level - at_level if self.with_level else 0.0
            error = at_level * at_level
            for m in range(n):
                for j in range(types):
                    total[m, j] = scale * right[m, j] - total[m, j]
                    error += total[m, j] * total[m, j]
            if attempt == 0:
                first = error
            elif error <= REFINED * REFINED * first:
                break
            step = self._solve_blocks(at_level, more)
            self.times(more, step, self._part)
            u += step
            for m in range(n):
                for j in range(types):
                    x[m, j] += more[m, j]
            for i in range(self.full):
                z[i] += self.w[i] * self._part[i]
        return u


class CentralPath:
    """Follows the path to its end: c'x with `goal` and `goal_level`, right sides from `need` and `counts`."""

    def __init__(self, normal: NormalEquations, need: Floats, counts: Floats, goal: Floats, goal_level: float) -> None:
        n, types, full = normal.n, normal.types, normal.full
        self._normal, self._count = normal, normal.count
        with_gain = normal.count == normal.full
        h = np.concatenate([np.zeros(n * types), counts, np.ones(n), -need if with_gain else np.zeros(n)])
        self._h = h / np.asarray(normal.row)
        self._c, self._c_level = goal / np.asarray(normal.column), goal_level / normal.of_level
        self._minus_c = -np.asarray(self._c)
        self._x, self._x1, self._x2 = np.empty((n, types)), np.empty((n, types)), np.empty((n, types))
        self._rx, self.found = np.empty((n, types)), np.zeros((n, types))
        self._s, self._z, self._z1, self._z2 = new_floats(full), new_floats(full), new_floats(full), new_floats(full)
        self._ds, self._dz, self._rz, self._rows = (
            new_floats(full),
            new_floats(full),
            new_floats(full),
            new_floats(full),
        )
        self._gx, self._root, self._scale = new_floats(full), np.ones(full), np.ones(full)
        self._tau = self._kappa = 1.0

    def follow(self) -> bool:
        """Whether the path converged, or came close before rounding ended it; `found` is X."""
        self._start()
        c_size = max(1.0, math.sqrt(self._dot(self._c, self._c) + self._c_level * self._c_level))
        h_size = max(1.0, self._norm(self._h))
        close = False
        for _ in range(ITERATIONS_MAX):
            self._residuals()
            tau, worth = self._tau, max(-self._cx, -self._hz) / self._tau
            primal = self._norm(self._rz) / max(h_size + math.sqrt(self._x_size) + self._norm(self._s), 1.0) / tau
            dual = math.sqrt(self._rx_size) / max(c_size + self._norm(self._z), 1.0) / tau
            gap = self._gap
            if primal < TOLERANCE and dual < TOLERANCE and (gap < TOLERANCE or gap < TOLERANCE * worth):
                self._keep()
                return True
            if max(primal, dual) < CLOSE_ENOUGH and gap < CLOSE_ENOUGH * max(worth, 1.0):
                close = True
                self._keep()
            elif close:  # rounding has taken over
                break
            self._step()
            if not self._is_finite():
                break
        return close

    def _start(self) -> None:
        """Least squares, shifted into the cone."""
        normal = self._normal
        normal.factor()
        self._zero(self._x1)
        self._u = normal.solve(1.0, self._x1, 0.0, self._h, self._x, self._z1)
        for i in range(self._count):
            self._ds[i] = -self._z1[i]
        self._into_cone(self._ds, self._s)
        normal.solve(1.0, self._minus_c, -self._c_level, self._gx, self._x2, self._z2)
        self._into_cone(self._z2, self._z)

    def _zero(self, x: Floats) -> None:
        for m in range(self._normal.n):
            for j in range(self._normal.types):
                x[m, j] = 0.0

    def _into_cone(self, r: Floats, out: Floats) -> None:
        """Shift a vector until it is positive."""
        shift = -STEP
        for i in range(self._count):
            if r[i] <= 0.0 and -r[i] > shift:
                shift = -r[i]
        for i in range(self._count):
            out[i] = r[i] + shift + 1.0

    def _residuals(self) -> None:
        normal, tau = self._normal, self._tau
        self._rx_level = -normal.transposed(self._z, self._rx) - self._c_level * tau
        rx_size = self._rx_level * self._rx_level if normal.with_level else 0.0
        cx = self._c_level * self._u
        x_size = self._u * self._u
        for m in range(normal.n):
            for j in range(normal.types):
                self._rx[m, j] = -self._rx[m, j] - self._c[m, j] * tau
                rx_size += self._rx[m, j] * self._rx[m, j]
                cx += self._c[m, j] * self._x[m, j]
                x_size += self._x[m, j] * self._x[m, j]
        normal.times(self._x, self._u, self._gx)
        gap = 0.0
        hz = 0.0
        for i in range(self._count):
            self._rz[i] = self._s[i] + self._gx[i] - tau * self._h[i]
            gap += self._s[i] * self._z[i]
            hz += self._h[i] * self._z[i]
        self._rt = self._kappa + cx + hz
        self._rx_size, self._cx, self._x_size, self._gap, self._hz = rx_size, cx, x_size, gap, hz

    def _step(self) -> None:
        """Mehrotra: a predictor without centring, a corrector, and as far as the cone allows."""
        normal, tau, kappa, count = self._normal, self._tau, self._kappa, self._count
        s, z, root, scale, h, z1, z2 = self._s, self._z, self._root, self._scale, self._h, self._z1, self._z2
        ds, dz = self._ds, self._dz
        mu = (self._gap + kappa * tau) / (count + 1)
        for i in range(count):
            root[i] = math.sqrt(s[i] * z[i])
            scale[i] = math.sqrt(s[i] / z[i])
            normal.w[i] = z[i] / s[i]
        normal.factor()
        u1 = normal.solve(1.0, self._minus_c, -self._c_level, h, self._x1, z1)
        below = kappa / tau - self._c_level * u1 - self._dot(self._c, self._x1)
        for i in range(count):
            below -= h[i] * z1[i]
            self._rows[i] = s[i] - self._rz[i]
        sigma = u2 = dtau = dkappa = length = 0.0
        both = kappa * tau
        for corrector in range(2):
            part = 1.0 - sigma
            u2 = normal.solve(part, self._rx, self._rx_level, self._rows, self._x2, z2)
            dtau = part * self._rt - both / tau + self._c_level * u2 + self._dot(self._c, self._x2)
            for i in range(count):
                dtau += h[i] * z2[i]
            dtau /= below
            dkappa = -(both + kappa * dtau) / tau
            for i in range(count):
                due = ds[i] if corrector else root[i]
                dz[i] = scale[i] * (z2[i] + dtau * z1[i])
                ds[i] = -due - dz[i]
            length = self._step_length(dtau, dkappa)
            if corrector:
                break
            left = 1.0 - length
            sigma = min(max(left * left * left, CENTRING_MIN), 1.0)
            both = kappa * tau + dkappa * dtau - sigma * mu
            for i in range(count):
                ds[i] = (root[i] * root[i] + ds[i] * dz[i] - sigma * mu) / root[i]
                self._rows[i] = scale[i] * ds[i] - (1.0 - sigma) * self._rz[i]
        length *= STEP
        for m in range(normal.n):
            for j in range(normal.types):
                self._x[m, j] += length * (self._x2[m, j] + dtau * self._x1[m, j])
        self._u += length * (u2 + dtau * u1)
        for i in range(count):
            s[i] += length * scale[i] * ds[i]
            z[i] += length * dz[i] / scale[i]
        self._tau += length * dtau
        self._kappa += length * dkappa

    def _step_length(self, dtau: float, dkappa: float) -> float:
        lowest = 0.0
        for i in range(self._count):
            lowest = min(lowest, min(self._ds[i], self._dz[i]) / self._root[i])
        length = -1.0 / lowest if lowest < 0.0 else 1e13
        if dtau < 0.0:
            length = min(length, -self._tau / dtau)
        if dkappa < 0.0:
            length = min(length, -self._kappa / dkappa)
        return min(max(length, 1e-6), STEP_MAX)

    def _keep(self) -> None:
        normal = self._normal
        for m in range(normal.n):
            for j in range(normal.types):
                self.found[m, j] = self._x[m, j] / self._tau / normal.column[m, j]

    def _is_finite(self) -> bool:
        if not (self._tau > 0.0 and math.isfinite(self._tau) and math.isfinite(self._u)):
            return False
        for m in range(self._normal.n):
            for j in range(self._normal.types):
                if not math.isfinite(self._x[m, j]):
                    return False
        return True

    def _dot(self, a: Floats, b: Floats) -> float:
        total = 0.0
        for m in range(self._normal.n):
            for j in range(self._normal.types):
                total += a[m, j] * b[m, j]
        return total

    def _norm(self, values: Floats) -> float:
        total = 0.0
        for i in range(self._count):
            total += values[i] * values[i]
        return math.sqrt(total)

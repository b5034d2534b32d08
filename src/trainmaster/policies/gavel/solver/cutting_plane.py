# cython: cdivision=True
"""Programs without pairs by prices: the highest level whose targets fit on the GPUs, and the largest total gain.

Job m with target r_m pays g_m p_j - c_mj for all of its time on type j and nothing while idle:

    min_x  sum_j (g_m p_j - c_mj) x_j   s.t.  sum_j T_mj x_j >= r_m,  sum_j x_j <= 1,  x >= 0.

Its points (T_mj, price) and (0, 0) span a polygon; the optimum lies on its lower right edge, so at most two types are
mixed (`Replies`). One pass over the jobs answers any prices, and yields a column (the loads) of a matrix game with one
row per type (`game`): Kelley's cutting planes (1960). The mix of columns is the allocation. Between two
solves of the game the next query lies halfway between the best and the latest prices (in-out separation, Ben-Ameur and
Neto 2007).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainmaster.core.int_list import Floats, new_floats
from trainmaster.policies.gavel.solver.game import Game
from trainmaster.policies.gavel.solver.targets import RisingTargets

COLUMNS_MAX = 512
PASSES_MAX = 20_000
INF = float("inf")
# levels
FITS = 1e-12  # loads above one by no more than this are met (and scaled back in the end)
STALLED_PASSES = 40  # without progress: what is left is rounding, if it is as small as NEARLY_FITS
NEARLY_FITS = 1e-9
ROOT = 2e-14
ROOT_STEPS_MAX = 100
# gains
OFFSET = 2.5  # gain / G lies in [0, 1], so that columns are at least one half
GAP = 1e-10  # of D, relative
GROWTH_MAX = 12


class Replies:
    """The cheapest way for every job to reach its target at given prices. `load` (GPUs used per type), `slope` (price
    of one more step/s) and `gained` are of the last answer."""

    def __init__(self, speeds: Floats, gpus: Floats, gain: Floats | None = None) -> None:
        self.n, self.types = speeds.shape
        self.speeds, self.gpus = np.ascontiguousarray(speeds), np.ascontiguousarray(gpus)
        self._has_gain = gain is not None
        self._gain = self.speeds if gain is None else np.ascontiguousarray(gain)
        self.load, self.slope = new_floats(self.types), new_floats(self.n)
        self._own = new_floats(self.types)
        self.gained = 0.0

    def answer(self, target: Floats, price: Floats) -> float:
        """One pass over the jobs; returns what the GPUs used cost."""
        gpus, load, slope = self.gpus, self.load, self.slope
        paid = 0.0
        self.gained = 0.0
        for j in range(self.types):
            load[j] = 0.0
            self._own[j] = price[j]
        for m in range(self.n):
            if not self._has_gain and target[m] <= 0.0:
                slope[m] = 0.0
                continue
            self._mix(m, target[m], price)
            slope[m] = self._edge * gpus[m]
            if self._slow >= 0:
                load[self._slow] += gpus[m] * self._slow_part
                paid += gpus[m] * self._slow_part * price[self._slow]
                if self._has_gain:
                    self.gained += self._gain[m, self._slow] * self._slow_part
            if self._fast >= 0:
                load[self._fast] += gpus[m] * self._fast_part
                paid += gpus[m] * self._fast_part * price[self._fast]
                if self._has_gain:
                    self.gained += self._gain[m, self._fast] * self._fast_part
        return paid

    def shares(self, target: Floats, prices: Floats, weights: Floats) -> Floats:
        """X: the weighted sum of the cheapest replies to `prices` (k x J)."""
        share = np.zeros((self.n, self.types))
        for price, weight in zip(np.ascontiguousarray(prices), weights, strict=True):
            if weight > 0.0:
                self._add_shares(np.ascontiguousarray(target), price, weight, share)
        return share

    def _add_shares(self, target: Floats, price: Floats, weight: float, share: Floats) -> None:
        for j in range(self.types):
            self._own[j] = price[j]
        for m in range(self.n):
            if not self._has_gain and target[m] <= 0.0:
                continue
            self._mix(m, target[m], price)
            if self._slow >= 0:
                share[m, self._slow] += weight * self._slow_part
            if self._fast >= 0:
                share[m, self._fast] += weight * self._fast_part

    def _mix(self, m: int, target: float, price: Floats) -> None:
        """Find the slow type, the fast type, their parts and the slope at the target; -1 stands for idling, or for no
        type. The walk starts at the cheapest point and goes along the edge until the target is reached."""
        if self._has_gain:
            for j in range(self.types):
                self._own[j] = price[j] - self._gain[m, j] / self.gpus[m]
        self._slow, self._slow_part, self._fast, self._fast_part = self._cheapest(m), 1.0, -1, 0.0
        self._edge = 0.0
        speed = self.speeds[m, self._slow] if self._slow >= 0 else 0.0
        if speed >= target:
            return
        while True:
            fast = self._next_corner(m, speed, self._own[self._slow] if self._slow >= 0 else 0.0)
            if fast < 0:
                return  # beyond full speed: callers keep targets below
            if self.speeds[m, fast] >= target:
                part = (target - speed) / (self.speeds[m, fast] - speed)
                self._slow_part, self._fast, self._fast_part = 1.0 - part, fast, part
                return
            self._slow = fast
            speed = self.speeds[m, fast]

    def _cheapest(self, m: int) -> int:
        """The type of least price, -1 for idling; the faster one of equals."""
        best = -1
        for j in range(self.types):
            if self.speeds[m, j] > 0.0:
                here = self._own[best] if best >= 0 else 0.0
                if self._own[j] < here or (
                    self._own[j] == here and (best < 0 or self.speeds[m, j] > self.speeds[m, best])
                ):
                    best = j
        return best

    def _next_corner(self, m: int, x_from: float, y_from: float) -> int:
        """The faster type at the end of the flattest edge from (x_from, y_from), -1: none; sets the slope."""
        best = -1
        best_slope = 0.0
        for j in range(self.types):
            gain = self.speeds[m, j] - x_from
            if gain > 0.0:
                slope = (self._own[j] - y_from) / gain
                if best < 0 or slope < best_slope or (slope == best_slope and self.speeds[m, j] > self.speeds[m, best]):
                    best = j
                    best_slope = slope
        self._edge = best_slope
        return best


class Ascent(NamedTuple):
    """The allocation is the sum of the replies to `basis_price`, weighted by `basis_weight`."""

    level: float
    value: float  # of the game: the largest load of the allocation
    tangent: Floats  # weights q that prove the level highest (zeros: the starting level was reached)
    basis_price: Floats
    basis_weight: Floats
    passes: int
    converged: bool


class LevelSearch:
    """The highest level whose targets fit. They fit iff no prices make their cheapest realisation dearer than all GPUs
    together: with q_j = p_j N_j on the unit simplex and load_j the used part of type j,

        max_q  C(level, q) <= 1,      C(level, q) = sum_m cost_m(r_m(level), q) = min over allocations of load . q.

    The game's value bounds C from above, evaluations bound it from below. Prices with C > 1 prove the level too high
    and the largest level with C(level, q) = 1 is the next one; when the game's value is 1, the level is reached. Both
    ends are vertices, so the result is exact up to rounding.
    """

    def __init__(self, replies: Replies, counts: Floats, targets: RisingTargets) -> None:
        self._replies, self._targets = replies, targets
        self._counts = np.ascontiguousarray(counts)
        types = replies.types
        self._types = types
        self._game = Game(types, COLUMNS_MAX)
        self._weights_of, self._level_of = np.empty((COLUMNS_MAX, types)), new_floats(COLUMNS_MAX)
        self._target, self._rate = new_floats(replies.n), new_floats(replies.n)
        self._price, self._query, self._inner = new_floats(types), new_floats(types), new_floats(types)
        self._tangent = new_floats(types)

    def climb(self, low: float, high: float, stabilise: bool) -> Ascent:
        """Search in [low, high]; `low` must fit. With `stabilise` queries lie between prices already seen, which is
        faster; without it they are vertices, whose zeros are exact, and so are the zeros of the tangent."""
        converged = self._search(low, high, stabilise)
        basis, mix = np.asarray(self._game.basis), np.asarray(self._game.mix)
        used = (basis >= 0) & (self._value < np.inf)
        price = np.where(used[:, None], np.asarray(self._weights_of)[np.where(used, basis, 0)], 0.0)
        return Ascent(
            self._level,
            self._value,
            np.asarray(self._tangent),
            price,
            np.where(used, mix, 0.0),
            self._passes,
            bool(converged),
        )

    def targets_at(self, level: float) -> Floats:
        self._targets.at(level, self._target, self._rate)
        return np.array(self._target)

    def _search(self, low: float, high: float, stabilise: bool) -> bool:
        self._level, self._value = high, INF
        self._best, self._least = -1.0, INF
        self._passes = self._progress = 0
        self._reset = True
        for j in range(self._types):
            self._query[j] = 1.0 / self._types
            self._inner[j] = self._query[j]
            self._tangent[j] = 0.0
        self._targets.at(high, self._target, self._rate)
        asked = 0
        while self._passes < PASSES_MAX:
            cost = self._evaluate(self._query)
            self._passes += 1
            if self._game.count == COLUMNS_MAX:
                self._keep_basis()
            if cost > 1.0 + FITS and (cost - 1.0 >= 0.5 * (self._value - 1.0) or self._value == INF):
                self._descend(low)
            elif cost > self._best:
                self._best = cost
                self._copy(self._query, self._inner)
            self._add_column()
            asked += 1
            if self._fits():
                return True
            self._next_query(stabilise and asked % 5 != 0)
        return False

    def _descend(self, low: float) -> None:
        """Too high: go down to where these prices allow."""
        self._level = self._root(low, self._level)
        self._copy(self._query, self._tangent)
        self._copy(self._query, self._inner)
        self._best = 1.0
        self._least = INF
        self._reset = True

    def _root(self, low: float, high: float) -> float:
        """The largest level in [low, high] with C(level, q) = 1, by Newton's method inside a shrinking bracket. C rises
        with the level but need be neither convex nor strictly increasing."""
        level = high
        for _ in range(ROOT_STEPS_MAX):
            self._targets.at(level, self._target, self._rate)
            cost = self._evaluate(self._query)
            self._passes += 1
            growth = 0.0
            for m in range(self._replies.n):
                growth += self._replies.slope[m] * self._rate[m]
            if cost > 1.0 + ROOT:
                high = level
            else:
                low = level
                if cost >= 1.0 - ROOT and growth > 0.0:
                    return level
            if high - low <= 1e-15 * high:
                break
            trial = level - (cost - 1.0) / growth if growth > 0.0 else low
            level = trial if low < trial < high else 0.5 * (low + high)
        self._targets.at(low, self._target, self._rate)
        self._evaluate(self._query)
        self._passes += 1
        return low

    def _evaluate(self, weights: Floats) -> float:
        """C at row weights q; leaves the loads as a part of each type's GPUs."""
        for j in range(self._types):
            self._price[j] = weights[j] / self._counts[j]
        cost = self._replies.answer(self._target, self._price)
        for j in range(self._types):
            self._replies.load[j] /= self._counts[j]
        return cost

    def _add_column(self) -> None:
        k = self._game.add(self._replies.load)
        self._copy(self._query, self._weights_of[k])
        self._level_of[k] = self._level
        if self._reset and self._value < INF:  # the basis is for a level that has been given up
            for i in range(self._types):
                if self._game.basis[i] >= 0:
                    self._refresh(self._game.basis[i])

    def _refresh(self, k: int) -> None:
        """Evaluate column k again at the current targets."""
        if self._level_of[k] == self._level:
            return
        self._evaluate(self._weights_of[k])
        self._copy(self._replies.load, self._game.columns[k])
        self._level_of[k] = self._level
        self._passes += 1

    def _fits(self) -> bool:
        """Solve the game; whether its mix meets the targets of this level."""
        game = self._game
        while True:
            if self._reset:
                game.reset_basis()
                self._reset = False
            self._value = game.solve()
            if self._value < self._least * (1.0 - 1e-14):
                self._least = self._value
                self._progress = self._passes
            stalled = self._passes - self._progress > STALLED_PASSES and self._value <= 1.0 + NEARLY_FITS
            settled = self._value <= 1.0 + 2.0 * FITS and self._value - self._best <= 0.5 * FITS
            if self._value > 1.0 + FITS and not settled and not stalled:
                return False
            # it fits: but the allocation must be one for this level, not for one that has been given up
            for i in range(self._types):
                k = game.basis[i]
                if k >= 0 and game.mix[i] > 0.0 and self._level_of[k] != self._level:
                    self._refresh(k)
                    self._reset = True
            if not self._reset:
                return True

    def _next_query(self, halfway: bool) -> None:
        proven_too_high = self._best > 1.0 + FITS and self._best - 1.0 >= 0.5 * (self._value - 1.0)
        for j in range(self._types):
            if proven_too_high:
                self._query[j] = self._inner[j]
            elif halfway:
                self._query[j] = 0.5 * (self._inner[j] + self._game.row_weight[j])
            else:
                self._query[j] = self._game.row_weight[j]

    def _keep_basis(self) -> None:
        """Forget all columns outside the basis."""
        game, kept = self._game, 0
        for k in range(game.count):
            for i in range(self._types):
                if game.basis[i] == k:
                    self._copy(game.columns[k], game.columns[kept])
                    self._copy(self._weights_of[k], self._weights_of[kept])
                    self._level_of[kept] = self._level_of[k]
                    game.basis[i] = kept
                    kept += 1
        game.count = kept

    def _copy(self, source: Floats, target: Floats) -> None:
        for j in range(self._types):
            target[j] = source[j]


class Gain(NamedTuple):
    """Optimal prices, and the replies that make up the allocation."""

    price: Floats
    basis_price: Floats
    basis_weight: Floats
    passes: int


def best_gain(replies: Replies, counts: Floats, gain: Floats, need: Floats) -> Gain:
    """The largest total gain under capacities and fixed needs.

    The dual function  D(p) = sum_j p_j N_j + sum_m max_x {sum_j (c_mj - g_m p_j) x_j : time, need}  is convex in the
    prices. With p_j = G q_j / N_j and an idle row q_0 = 1 - sum q_j it is minimised over the unit simplex, where every
    allocation k gives the linear lower bound

        D(q) / G >= V_k / G + sum_j q_j (1 - load_kj),       V_k its gain, load_k its loads.

    G must exceed sum_j p_j N_j at the optimum: the sum of all jobs' best gains does, unless needs force losses; it
    grows until the idle row has weight. Subtracted from a constant, the bounds are the game's columns.
    """
    types = replies.types
    price_sum = float(gain.max(axis=1, initial=0.0).sum())
    query = np.full(types + 1, 1.0 / (types + 1))
    passes = 0
    for attempt in range(GROWTH_MAX):
        search = GainSearch(replies, counts, need, price_sum)
        passes += search.run(query)
        inner = np.asarray(search.inner)
        if (search.game.row_weight[0] > 0.0 and inner[0] > 0.0) or attempt == GROWTH_MAX - 1:
            basis, mix = np.asarray(search.game.basis), np.asarray(search.game.mix)
            asked = np.asarray(search.weights_of)[np.where(basis >= 0, basis, 0), 1:]
            prices = np.where((basis >= 0)[:, None], price_sum * asked / counts, 0.0)
            return Gain(price_sum * inner[1:] / counts, prices, np.where(basis >= 0, mix, 0.0), passes)
        query = np.concatenate([[0.9], 0.1 * inner[1:] / max(float(inner[1:].sum()), 1e-300)])
        price_sum *= 10.0
    raise AssertionError("unreachable")


class GainSearch:
    """Minimises D over prices with sum_j p_j N_j <= price_sum. `inner` holds the best row weights, the idle row
    first."""

    def __init__(self, replies: Replies, counts: Floats, need: Floats, price_sum: float) -> None:
        self._replies, self._counts, self._need = replies, np.ascontiguousarray(counts), np.ascontiguousarray(need)
        self._price_sum = price_sum
        self._rows = replies.types + 1
        self.game = Game(self._rows, COLUMNS_MAX)
        self.weights_of = np.empty((COLUMNS_MAX, self._rows))
        self.inner, self._column = new_floats(self._rows), new_floats(self._rows)
        self._price = new_floats(replies.types)

    def run(self, first: Floats) -> int:
        """Returns the passes."""
        query, best, passes = first.copy(), -INF, 0
        while passes < COLUMNS_MAX:
            entry = self._ask(query)
            passes += 1
            if entry > best:
                best = entry
                self._set_inner(query)
            value = self.game.solve()
            if value - best <= GAP * max(abs(OFFSET - best), 1e-3):
                break
            self._next_query(query, passes % 5 != 0)
        return passes

    def _ask(self, query: Floats) -> float:
        """Add the column of a query; returns its entry there."""
        replies, scale = self._replies, self._price_sum
        for j in range(replies.types):
            self._price[j] = scale * query[1 + j] / self._counts[j]
        replies.answer(self._need, self._price)
        self._column[0] = OFFSET - replies.gained / scale
        entry = self._column[0] * query[0]
        for j in range(replies.types):
            self._column[1 + j] = OFFSET - 1.0 - replies.gained / scale + replies.load[j] / self._counts[j]
            entry += self._column[1 + j] * query[1 + j]
        k = self.game.add(self._column)
        for j in range(self._rows):
            self.weights_of[k, j] = query[j]
        return entry

    def _set_inner(self, query: Floats) -> None:
        for j in range(self._rows):
            self.inner[j] = query[j]

    def _next_query(self, query: Floats, halfway: bool) -> None:
        for j in range(self._rows):
            outer = self.game.row_weight[j]
            query[j] = 0.5 * (self.inner[j] + outer) if halfway else outer

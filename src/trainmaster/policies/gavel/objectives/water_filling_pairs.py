"""Water filling with pairs (space sharing), and without them by HiGHS: one linear program per trial level.

Targets r_m(level) follow from the tree of entities. Whether they can be met is the well-posed
program

    max t  s.t.  throughput_m >= r_m(level) t,        feasible iff t >= 1,

and its dual (y, p) bounds every other level too: sum_m y_m r_m(level) <= sum_j p_j N_j + sum_m pi_m =: V.
The level at which that holds with equality, found without a solve, is the next trial; from above this is
Newton's method on a piecewise linear function and ends after finitely many programs. At the final level the
multipliers name jobs that cannot rise further; they are frozen, at least one in each stage, and the others
go on. Without pairs filling.py does the same far faster.
"""

from __future__ import annotations

import numpy as np

from trainmaster.policies.gavel.objectives.entity_tree import EntityTree
from trainmaster.policies.gavel.objectives.max_min import level_program
from trainmaster.policies.gavel.problem import (
    AllocationProblem,
    AllocationResult,
    BoolArray,
    FloatArray,
    Pairs,
    effective_throughput,
    judged,
)
from trainmaster.policies.gavel.solver import solve_program
from trainmaster.policies.gavel.solver.program import Solution, pair_reduced_cost
from trainmaster.policies.gavel.solver.targets import TreeTargets

TRIALS_MAX = 100
FEASIBLE = 2e-10  # targets that can be met up to this part are met
ROUNDING = 1e-12  # a target of this part of a job's full speed is a rounding error
PROVEN = 1e-7
BINDING = 1e-4  # a job whose multiplier carries this part of an average job's worth holds the level down


def full_speed(problem: AllocationProblem, throughput: FloatArray, pairs: Pairs | None) -> FloatArray:
    """The most a job can get when it has a GPU type of its choice, alone or in a pair, all the time."""
    best = np.where(problem.usable, np.minimum(1.0, problem.counts / problem.gpus[:, None]) * throughput, 0.0)
    fastest = _best_mix(problem, throughput, best)
    if pairs is not None:
        for side in (0, 1):
            np.maximum.at(fastest, pairs.jobs[:, side], pairs.throughput[:, :, side].max(axis=1))
    return fastest


def _best_mix(problem: AllocationProblem, throughput: FloatArray, best: FloatArray) -> FloatArray:
    """Fill the job's time with its fastest types first; a gang larger than a type gets only part of its
    time there."""
    usable = np.where(problem.usable, throughput, 0.0)
    order = np.argsort(-usable, axis=1, kind="stable")
    limit = np.take_along_axis(
        np.where(problem.usable, np.minimum(1.0, problem.counts[None, :] / problem.gpus[:, None]), 0.0), order, axis=1
    )
    speed = np.take_along_axis(usable, order, axis=1)
    used_before = np.minimum(1.0, np.cumsum(limit, axis=1) - limit)
    part = np.minimum(limit, 1.0 - used_before)
    return np.maximum((part * speed).sum(axis=1), best.max(axis=1, initial=0.0))


def fill_with_programs(
    problem: AllocationProblem,
    throughput: FloatArray,
    pairs: Pairs | None,
    solver: str,
    tree: EntityTree,
    prop: FloatArray,
    unit: FloatArray,
) -> AllocationResult:
    """Lexicographic max-min of normalised throughput with pairs."""
    speed = full_speed(problem, throughput, pairs)
    filling = _Filling(problem, throughput, pairs, solver, tree, unit, speed)
    filling.run()
    final = filling.final()
    got = effective_throughput(throughput, pairs, final.share, final.pair_share)
    normalized = got / prop
    short = float(np.max(1.0 - got / np.maximum(filling.targets, 1e-300), initial=0.0, where=filling.targets > 0.0))
    unproven = "the levels found are not proven to 1e-7; the best shares found are returned"
    return judged(
        problem,
        final.share,
        short <= PROVEN and filling.proven,
        unproven,
        final.pair_share,
        normalized=normalized,
        objective=float(normalized.min()) if problem.job_count else 0.0,
        iterations=filling.iterations,
        solves=filling.solves,
        gap=max(filling.gap, short),
        solver=final.solver,
    )


class _Filling:
    """The state of the filling: targets reached (steps/s) and which jobs are frozen there."""

    def __init__(
        self,
        problem: AllocationProblem,
        throughput: FloatArray,
        pairs: Pairs | None,
        solver: str,
        tree: EntityTree,
        unit: FloatArray,
        speed: FloatArray,
    ) -> None:
        self.problem, self.throughput, self.pairs, self.solver = problem, throughput, pairs, solver
        self.tree, self.unit, self.speed = tree, unit, speed
        self.frozen: BoolArray = speed <= 0.0
        self.targets = np.zeros(len(unit))
        self.iterations = self.solves = self.stages = 0
        self.gap = 0.0
        self.proven = True
        self.last: Solution | None = None

    def run(self) -> None:
        while not self.frozen.all():
            self.stages += 1
            newly = self._stage() & ~self.frozen
            if not newly.any():
                self.proven = False
                return
            self.frozen = self.frozen | newly

    def final(self) -> Solution:
        if self.last is None:
            return self._solve(self.targets)
        return self.last

    def _solve(self, targets: FloatArray) -> Solution:
        program = level_program(self.problem, self.throughput, targets, self.pairs)
        solution = solve_program(program, self.solver)
        self.solves += 1
        self.iterations += solution.iterations
        self.gap = max(self.gap, solution.gap)
        self.proven = self.proven and solution.is_certified
        self.last = solution
        return solution

    def _stage(self) -> BoolArray:
        """Raise the level as far as it goes; returns the jobs that are stuck there."""
        base, n = self.targets, len(self.unit)
        tree = self.tree.targets(np.where(self.frozen, 0.0, (self.speed - base) / self.unit))
        level = tree.saturation_level()
        received, rate = np.empty(n), np.empty(n)
        tangent: Solution | None = None
        for _ in range(TRIALS_MAX):
            tree.at(level, received, rate)
            targets = base + received * self.unit
            self.targets = np.where(targets > ROUNDING * self.speed, targets, 0.0)
            solution = self._solve(self.targets)
            if solution.value >= 1.0 - FEASIBLE:
                break
            tangent = solution
            worth = solution.multiplier * self.unit
            spare = solution.bound - float(solution.multiplier @ base)
            lower = _level_worth(tree, worth, spare, level)
            if lower >= level * (1.0 - 1e-13):
                break
            level = lower
        else:
            self.proven = False
        if tangent is None:
            self._prove(
                float(np.max(1.0 - self.targets / np.maximum(self.speed, 1e-300), where=~self.frozen, initial=0.0))
            )
            return np.ones(n, dtype=bool)  # every job has its full speed
        assert self.last is not None
        stuck = np.zeros(n, dtype=bool)
        for dual in (tangent, self.last):
            stuck |= dual.multiplier * self.speed > BINDING / n
            # a job that may rise uses no priced type, so one whose types are all priced may not
            priced = dual.price * self.problem.counts > BINDING
            stuck |= ~(self.problem.usable & ~priced[None, :]).any(axis=1)
        if not (stuck & ~self.frozen).any():
            score = np.where(self.frozen, -1.0, tangent.multiplier * self.speed)
            stuck[int(np.argmax(score))] = True
        saturated = self.targets >= self.speed * (1.0 - 1e-12)
        room = np.where(self.frozen, 0.0, self.speed - base) / self.unit
        uneven = self.tree.unevenness((self.targets - base) / self.unit, room, self.targets / self.unit)
        held = stuck & ~saturated & ~self.frozen
        rise = np.where(held, np.minimum(self._rise(tangent), self._rise(self.last)), 0.0)
        self._prove(float(np.max(rise, initial=uneven)))
        return stuck | saturated

    def _prove(self, gap: float) -> None:
        self.gap, self.proven = max(self.gap, gap), self.proven and gap <= PROVEN

    def _rise(self, dual: Solution) -> FloatArray:
        """By how much of its full speed a job could rise at most while all keep their targets.

        All targets together are worth the bound, up to what is spare; one more step/s of a job is worth y_m, or costs
        so much more than it is worth, whichever is more.
        """
        if dual.time_price is None:
            return np.full(len(self.unit), np.inf)
        spare = max(ROUNDING * dual.bound, dual.bound - float(dual.multiplier @ self.targets))
        program = level_program(self.problem, self.throughput, self.targets, self.pairs)
        dear = self.problem.gpus[:, None] * dual.price + dual.time_price[:, None]
        least = _least_per_step(dear - dual.multiplier[:, None] * self.throughput, self.throughput, self.problem.usable)
        if self.pairs is not None:
            loss = dual.time_price[self.pairs.jobs].sum(axis=1)[:, None]
            loss = loss - pair_reduced_cost(program, dual.multiplier, dual.price)
            for side in (0, 1):
                speed = self.pairs.throughput[:, :, side]
                np.minimum.at(least, self.pairs.jobs[:, side], _least_per_step(loss, speed, np.isfinite(loss)))
        worth = np.maximum(dual.multiplier, least)
        held = worth > 0.0
        return np.where(held, spare / np.where(held, worth * self.speed, 1.0), np.inf)


def _least_per_step(loss: FloatArray, speed: FloatArray, usable: BoolArray) -> FloatArray:
    """By row, the least loss per step over the types that make any."""
    moving = usable & (speed > 0.0)
    return np.where(moving, loss / np.where(moving, speed, 1.0), np.inf).min(axis=1, initial=np.inf)


def _level_worth(tree: TreeTargets, worth: FloatArray, value: float, high: float) -> float:
    """The largest level in [0, high] at which what the jobs have received is worth no more than `value`.

    sum_m worth_m received_m(level) is piecewise linear and increasing: regula falsi with the slope at hand.
    """
    if value <= 0.0:
        return 0.0
    low = 0.0
    level = high
    received, rate = np.empty(len(worth)), np.empty(len(worth))
    for _ in range(200):
        tree.at(level, received, rate)
        excess = float(worth @ received) - value
        slope = float(worth @ rate)
        if excess > 0.0:
            high = level
        else:
            low = level
        if abs(excess) <= 1e-15 * value or high - low <= 1e-15 * high:
            break
        step = level - excess / slope if slope > 0.0 else -1.0
        level = step if low < step < high else 0.5 * (low + high)
    return level

"""Water filling and hierarchical fairness: exact lexicographic max-min, any depth, any size.

The level rises; every job's target r_m(level) follows from the tree of entities (tree.py) until a GPU type runs out.
A job that reaches its own full speed simply stops, which needs no solve. So a stage looks for the largest level whose
targets are feasible: a piecewise linear function of one variable, found by Newton's method, each step one program

    max delta  s.t.  throughput_m >= r_m(level) + r'_m(level) delta.

At that level the multipliers name the jobs that cannot rise further; they are frozen, the others go on. In a strictly
complementary solution a job that is not frozen uses none of the priced types, so each stage uses up at least one type
and there are at most J stages, however many jobs there are.
"""

from __future__ import annotations

import numpy as np

from trainmaster.policies.gavel.levels import proportional_throughput
from trainmaster.policies.gavel.problem import (
    AllocationProblem,
    AllocationResult,
    BoolArray,
    FloatArray,
    Pairs,
    Status,
    delivered_throughput,
)
from trainmaster.policies.gavel.program import Program, Solution, repair
from trainmaster.policies.gavel.solve import solve_program
from trainmaster.policies.gavel.tree import FillTree

NEWTON_STEPS_MAX = 60
FROZEN_RELATIVE = 1e-6  # a multiplier that carries this part of the level's worth binds its job


def full_speed(problem: AllocationProblem, throughput: FloatArray, pairs: Pairs | None) -> FloatArray:
    """The most a job can get when it has a GPU type of its choice, alone or in a pair, all the time."""
    best = np.where(problem.usable, np.minimum(1.0, problem.counts / problem.gpus[:, None]) * throughput, 0.0)
    fastest = _best_mix(problem, throughput, best)
    if pairs is not None:
        for side in (0, 1):
            np.maximum.at(fastest, pairs.jobs[:, side], pairs.throughput[:, :, side].max(axis=1))
    return fastest


def _best_mix(problem: AllocationProblem, throughput: FloatArray, best: FloatArray) -> FloatArray:
    """Fill the job's time with its fastest types first; a gang larger than a type gets only part of its time there."""
    usable = np.where(problem.usable, throughput, 0.0)
    order = np.argsort(-usable, axis=1, kind="stable")
    limit = np.take_along_axis(
        np.where(problem.usable, np.minimum(1.0, problem.counts[None, :] / problem.gpus[:, None]), 0.0),
        order,
        axis=1,
    )
    speed = np.take_along_axis(usable, order, axis=1)
    used_before = np.minimum(1.0, np.cumsum(limit, axis=1) - limit)
    part = np.minimum(limit, 1.0 - used_before)
    return np.maximum((part * speed).sum(axis=1), best.max(axis=1, initial=0.0))


def water_filling(
    problem: AllocationProblem, aware: bool, pairs: Pairs | None, solver: str, hierarchical: bool
) -> AllocationResult:
    """Lexicographic max-min of normalised throughput; with `hierarchical`, levels rise through the entity tree."""
    throughput = problem.throughput if aware else np.where(problem.usable, 1.0, 0.0)
    prop = proportional_throughput(problem, throughput) if aware else np.ones(problem.job_count)
    prop = np.where(prop > 0.0, prop, 1.0)
    unit = prop / problem.gpus  # throughput per unit of level
    tree = FillTree(
        problem.weight,
        problem.entities if hierarchical else (),
        problem.entity_of if hierarchical else None,
    )
    speed = full_speed(problem, throughput, pairs)
    frozen = speed <= 0.0
    base = np.zeros(problem.job_count)  # targets reached, in throughput
    iterations = solves = 0
    worst_gap = 0.0
    solution: Solution | None = None
    while not frozen.all():
        rooms = tree.room(np.where(frozen, 0.0, (speed - base) / unit))
        stage = _Stage(problem, throughput, pairs, solver, tree, rooms, unit, base, frozen)
        stage.run()
        iterations += stage.iterations
        solves += stage.solves
        worst_gap = max(worst_gap, stage.gap)
        solution = stage.solution or solution
        base = stage.targets
        newly = stage.stuck & ~frozen
        if not newly.any():
            break
        frozen = frozen | newly
    targets = base
    final = _realise(problem, throughput, pairs, solver, targets)
    solves += 1
    iterations += final.iterations
    got = delivered_throughput(problem, final.share, final.pair_share, throughput)
    normalized = got / prop
    certified = bool(np.all(got >= targets * (1.0 - 1e-7)))
    return AllocationResult(
        status=Status.OPTIMAL if certified else Status.UNCERTIFIED,
        objective=float(normalized.min(initial=np.inf)) if problem.job_count else 0.0,
        share=final.share,
        pair_share=final.pair_share,
        throughput=delivered_throughput(problem, final.share, final.pair_share),
        normalized=normalized,
        iterations=iterations,
        solves=solves,
        gap=worst_gap,
        solver=final.solver,
        fallback=""
        if certified
        else "the levels found could not be realised to 1e-7; the nearest shares are returned",
    )


class _Stage:
    """Raise the level from `base` until a GPU type runs out or every job has its full speed."""

    def __init__(
        self,
        problem: AllocationProblem,
        throughput: FloatArray,
        pairs: Pairs | None,
        solver: str,
        tree: FillTree,
        rooms: list[FloatArray],
        unit: FloatArray,
        base: FloatArray,
        frozen: BoolArray,
    ) -> None:
        self.problem, self.throughput, self.pairs, self.solver = problem, throughput, pairs, solver
        self.tree, self.rooms, self.unit, self.base, self.frozen = tree, rooms, unit, base, frozen
        self.iterations = self.solves = 0
        self.gap = 0.0
        self.solution: Solution | None = None
        self.targets = base
        self.stuck = np.zeros(len(unit), dtype=bool)

    def run(self) -> None:
        low, high, level = 0.0, np.inf, 0.0
        for _ in range(NEWTON_STEPS_MAX):
            received, rate = self.tree.raise_level(self.rooms, level)
            need = self.base + received * self.unit
            slope = rate * self.unit
            if not np.any(slope > 0.0):
                # every job that may rise is at full speed; feasible, else a step back would have been taken
                if self._feasible(need):
                    self.targets, self.stuck = need, np.ones(len(need), dtype=bool)
                    return
                high = level
                level = 0.5 * (low + high)
                continue
            program = Program(
                self.throughput,
                self.problem.usable,
                self.problem.gpus,
                self.problem.counts,
                slope,
                need,
                pairs=self.pairs,
            )
            solution = solve_program(program, self.solver)
            self.iterations += solution.iterations
            self.solves += 1
            self.solution = solution
            delta = solution.value if solution.feasible else -np.inf
            if delta >= 0.0:
                low = max(low, level)
            else:
                high = min(high, level)
            proposal = level + delta
            if abs(delta) <= 1e-9 * max(level, 1e-12) or (np.isfinite(high) and high - low <= 1e-12 * high):
                break
            if not low < proposal < high:
                proposal = 0.5 * (low + high) if np.isfinite(high) else proposal
            level = proposal
        received, rate = self.tree.raise_level(self.rooms, level)
        self.targets = self.base + received * self.unit
        assert self.solution is not None
        worth = self.solution.multiplier * self.unit
        scale = float(worth.max(initial=0.0))
        self.stuck = worth > FROZEN_RELATIVE * scale

    def _feasible(self, need: FloatArray) -> bool:
        solution = _realise(self.problem, self.throughput, self.pairs, self.solver, need)
        self.solves += 1
        got = delivered_throughput(self.problem, solution.share, solution.pair_share, self.throughput)
        return bool(np.all(got >= need * (1.0 - 1e-9)))


def _realise(
    problem: AllocationProblem, throughput: FloatArray, pairs: Pairs | None, solver: str, targets: FloatArray
) -> Solution:
    """Shares that deliver the targets: max t with throughput_m >= targets_m t, where t = 1 up to rounding."""
    program = Program(
        throughput, problem.usable, problem.gpus, problem.counts, targets, np.zeros(len(targets)), pairs=pairs
    )
    return solve_program(program, solver)


__all__ = ["full_speed", "repair", "water_filling"]

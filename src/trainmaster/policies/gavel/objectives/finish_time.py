"""Finish-time fairness (Themis): min_X max_m (t_m + R_m / throughput(m, X)) / D_m (section 4.2), where
D_m = cum_m + R_m / throughput(m, X_isolated).

With u = 1 / rho the condition is throughput_m >= q_m(u) = R_m u / (D_m - t_m u), convex and increasing in u: targets
that rise with a level u, which cutting planes raise directly. With pairs (or by HiGHS) a tangent of q_m at u_k gives a
program whose optimum bounds u from above, and Newton's method descends to the optimum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from trainmaster.policies.gavel.objectives.max_min import UNPROVEN, level_program, nothing_to_do, result_from
from trainmaster.policies.gavel.problem import (
    AllocationProblem,
    AllocationResult,
    BoolArray,
    FloatArray,
    Pairs,
    Status,
    effective_throughput,
    judged,
)
from trainmaster.policies.gavel.solver import solve_program
from trainmaster.policies.gavel.solver.least_cost import least_cost
from trainmaster.policies.gavel.solver.prices import climb_to
from trainmaster.policies.gavel.solver.program import CERTIFIED_GAP, Solution, proven_gap, repair
from trainmaster.policies.gavel.solver.targets import RationalTargets

NEWTON_STEPS_MAX = 60


@dataclass(frozen=True)
class _Terms:
    """What the ratio of a job is made of; rows only for jobs that are `live` (able to run, with work
    left)."""

    throughput: FloatArray  # n x J, as the policy sees it
    live: BoolArray
    work: FloatArray  # R
    elapsed: FloatArray  # t
    due: FloatArray  # D
    bound: float  # no job alone lets 1 / rho be larger
    isolated_level: float  # 1 / rho of isolated shares

    def level_of(self, got: FloatArray) -> float:
        """1 / rho of throughputs `got`."""
        with np.errstate(divide="ignore"):
            return float(np.min(self.due / (self.elapsed + self.work / got[self.live])))


def finish_time_fairness(problem: AllocationProblem, aware: bool, pairs: Pairs | None, solver: str) -> AllocationResult:
    """The smallest largest ratio of finish time to finish time with an isolated 1/n share."""
    terms = _terms(problem, aware, pairs)
    if not terms.live.any():
        return nothing_to_do(problem, pairs)
    if pairs is None and solver != "highs":
        result = _by_prices(problem, terms)
        if solver == "prices" or result.status is Status.OPTIMAL:
            return result
    return _by_tangents(problem, terms, pairs, solver)


def _terms(problem: AllocationProblem, aware: bool, pairs: Pairs | None) -> _Terms:
    throughput = problem.seen_by(aware)
    live = problem.runnable & (problem.steps_remaining > 0.0)
    speeds = np.where(problem.usable, throughput, 0.0)
    isolated = (speeds * problem.isolated_share).sum(axis=1)[live]
    fastest = speeds.max(axis=1, initial=0.0)
    work = problem.steps_remaining[live]
    due = problem.isolated_so_far_s[live] + work / isolated
    elapsed = problem.elapsed_s[live]
    if pairs is not None:
        for side in (0, 1):
            np.maximum.at(fastest, pairs.jobs[:, side], pairs.throughput[:, :, side].max(axis=1))
        work = work * problem.weight[live]  # as in the original, in the shared variant alone
    bound = float(np.min(due / (elapsed + work / fastest[live]), initial=np.inf))
    level = float(np.min(due / (elapsed + work / isolated), initial=np.inf))
    return _Terms(throughput, live, work, elapsed, due, bound, min(bound, level))


def _by_prices(problem: AllocationProblem, terms: _Terms) -> AllocationResult:
    n = problem.job_count
    speeds = np.where(problem.usable, terms.throughput, 0.0)
    work, due, elapsed = np.zeros(n), np.ones(n), np.zeros(n)
    work[terms.live], due[terms.live], elapsed[terms.live] = terms.work, terms.due, terms.elapsed
    targets = RationalTargets(work, due, elapsed)
    ascent, share, _ = climb_to(speeds, problem.gpus, problem.counts, targets, terms.bound)
    share, _ = repair(level_program(problem, terms.throughput, work, None), share, None)
    reached = terms.level_of((speeds * share).sum(axis=1))
    bound = _level_bound(problem, terms, ascent.level, ascent.tangent)
    gap = proven_gap(reached, bound)
    return judged(
        problem,
        share,
        gap <= CERTIFIED_GAP,
        UNPROVEN,
        objective=1.0 / reached,
        iterations=ascent.passes,
        solves=1,
        gap=gap,
        solver="prices",
    )


def _level_bound(problem: AllocationProblem, terms: _Terms, level: float, tangent: FloatArray) -> float:
    """No level above this fits, whatever the search says of `level` and its prices.

    The least cost of the targets at fixed prices is convex in the level; where the line through two of its points
    reaches 1, all GPUs are paid for. Without prices the bound is that of the job which alone is slowest.
    """
    counts = np.where(problem.counts > 0.0, problem.counts, 1.0)
    prices = np.maximum(tangent, 0.0) / counts
    spent = float(prices @ problem.counts)
    if not 0.0 < spent < np.inf or not 0.0 < level <= terms.bound:
        return terms.bound
    speeds = np.where(problem.usable, terms.throughput, 0.0)[terms.live]

    def cost(u: float) -> float:
        target = terms.work * u / (terms.due - terms.elapsed * u)
        return least_cost(speeds, problem.gpus[terms.live], target, prices / spent)

    below = level * (1.0 - 1e-3)
    here, before = cost(level), cost(below)
    if here >= 1.0:
        return min(terms.bound, level)
    slope = (here - before) / (level - below)
    return min(terms.bound, level + (1.0 - here) / slope) if slope > 0.0 else terms.bound


def _by_tangents(problem: AllocationProblem, terms: _Terms, pairs: Pairs | None, solver: str) -> AllocationResult:
    live, work, elapsed, due = terms.live, terms.work, terms.elapsed, terms.due
    bound, u = terms.bound, terms.isolated_level
    best: tuple[float, Solution] | None = None
    iterations = solves = 0
    for _ in range(NEWTON_STEPS_MAX):
        rate, need = np.zeros(problem.job_count), np.zeros(problem.job_count)
        left = due - elapsed * u
        rate[live] = work * due / left**2
        need[live] = work * u / left - rate[live] * u
        program = level_program(problem, terms.throughput, rate, pairs, need)
        solution = solve_program(program, solver)
        iterations += solution.iterations
        solves += 1
        reached = terms.level_of(effective_throughput(terms.throughput, pairs, solution.share, solution.pair_share))
        if best is None or reached > best[0]:
            best = (reached, solution)
        bound = min(bound, solution.bound if np.isfinite(solution.bound) else bound)
        previous, u = u, min(bound, solution.value)
        if bound - best[0] <= 1e-10 * bound or abs(u - previous) <= 1e-10 * u:
            break
    assert best is not None
    reached, solution = best
    gap = proven_gap(reached, bound)
    proven = gap <= CERTIFIED_GAP
    return replace(
        result_from(problem, solution, 1.0 / reached),
        solves=solves,
        status=Status.OPTIMAL if proven else Status.UNCERTIFIED,
        fallback="" if proven else UNPROVEN,
        gap=gap,
        iterations=iterations,
    )

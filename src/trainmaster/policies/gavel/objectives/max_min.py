"""Objectives that raise a common level in proportion to a rate per job: max-min fairness, makespan."""

from __future__ import annotations

import numpy as np

from trainmaster.policies.gavel.problem import AllocationProblem, AllocationResult, FloatArray, Pairs, Status, judged
from trainmaster.policies.gavel.solver import solve_program
from trainmaster.policies.gavel.solver.program import LinearProgram, Solution

UNPROVEN = "best feasible allocation found; its optimality is not proven"


def max_min(problem: AllocationProblem, aware: bool, pairs: Pairs | None, solver: str) -> AllocationResult:
    """max_X min_m  (1 / w_m) throughput(m, X) / throughput(m, X_equal) * scale_m  (section 4.1)."""
    throughput, equal = problem.normalised(aware)
    rate = np.where(problem.runnable, problem.weight * equal / problem.gpus, 0.0)
    return _common_level(problem, throughput, rate, pairs, solver, inverse=False)


def makespan(problem: AllocationProblem, aware: bool, pairs: Pairs | None, solver: str) -> AllocationResult:
    """min_X max_m  steps_m / throughput(m, X)  (section 4.2): the level is the inverse of the makespan."""
    rate = np.where(problem.runnable, problem.steps_remaining, 0.0)
    return _common_level(problem, problem.seen_by(aware), rate, pairs, solver, inverse=True)


def _common_level(
    problem: AllocationProblem,
    throughput: FloatArray,
    rate: FloatArray,
    pairs: Pairs | None,
    solver: str,
    inverse: bool,
) -> AllocationResult:
    if not rate.any():
        return nothing_to_do(problem, pairs)
    solution = solve_program(level_program(problem, throughput, rate, pairs), solver)
    objective = solution.value
    if inverse:
        objective = 1.0 / objective if objective > 0.0 else float("inf")
    return result_from(problem, solution, objective)


def level_program(
    problem: AllocationProblem,
    throughput: FloatArray,
    rate: FloatArray,
    pairs: Pairs | None,
    need: FloatArray | None = None,
) -> LinearProgram:
    """max t  s.t.  throughput_m >= rate_m t + need_m."""
    need = np.zeros(problem.job_count) if need is None else need
    return LinearProgram(throughput, problem.usable, problem.gpus, problem.counts, rate, need, pairs=pairs)


def result_from(problem: AllocationProblem, solution: Solution, objective: float) -> AllocationResult:
    return judged(
        problem,
        solution.share,
        solution.is_certified,
        UNPROVEN,
        solution.pair_share,
        objective=objective,
        iterations=solution.iterations,
        solves=1,
        gap=solution.gap,
        solver=solution.solver,
    )


def nothing_to_do(problem: AllocationProblem, pairs: Pairs | None) -> AllocationResult:
    """No job can make progress, or none has work left: nobody gets anything."""
    return AllocationResult(
        Status.OPTIMAL,
        0.0,
        np.zeros_like(problem.throughput),
        np.zeros(problem.job_count),
        pair_share=None if pairs is None else np.zeros((len(pairs), len(problem.counts))),
        gap=0.0,
        solver="direct",
    )

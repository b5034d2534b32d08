"""Policies that raise a common level in proportion to a rate per job: max-min fairness, makespan."""

from __future__ import annotations

import numpy as np

from trainmaster.policies.gavel.problem import (
    AllocationProblem,
    AllocationResult,
    BoolArray,
    FloatArray,
    Pairs,
    Status,
    delivered_throughput,
)
from trainmaster.policies.gavel.program import Program, Solution
from trainmaster.policies.gavel.solve import is_certified, solve_warm

UNPROVEN = "best feasible allocation found; its optimality is not proven"


def proportional_throughput(problem: AllocationProblem, throughput: FloatArray) -> FloatArray:
    """prop_m: throughput under time shares proportional to the number of GPUs of each type."""
    usable = np.where(problem.usable, throughput, 0.0)
    return usable @ (problem.counts / problem.counts.sum())


def isolated_share(problem: AllocationProblem) -> FloatArray:
    """1/n of every type for each job, in units of its gang, scaled down to at most all of its time."""
    share = problem.counts[None, :] / (problem.job_count * problem.gpus[:, None])
    return share / np.maximum(share.sum(axis=1), 1.0)[:, None]


def reference_type(problem: AllocationProblem) -> int:
    """The type whose speeds a heterogeneity-agnostic policy takes for all: v100 where there is one, as the
    paper's
    implementation does, else the type with the largest total throughput (ties: the first)."""
    lowered = [name.lower() for name in problem.type_names]
    if "v100" in lowered:
        return lowered.index("v100")
    return int(np.argmax(np.where(problem.usable, problem.throughput, 0.0).sum(axis=0)))


def reference_throughput(problem: AllocationProblem) -> FloatArray:
    """Every usable type as fast as the reference type (a job that cannot use that one: as its fastest)."""
    usable = np.where(problem.usable, problem.throughput, 0.0)
    speed = usable[:, reference_type(problem)]
    speed = np.where(speed > 0.0, speed, usable.max(axis=1, initial=0.0))
    return np.where(problem.usable, speed[:, None], 0.0)


def level_program(
    problem: AllocationProblem,
    throughput: FloatArray,
    rate: FloatArray,
    need: FloatArray,
    pairs: Pairs | None,
) -> Program:
    return Program(throughput, problem.usable, problem.gpus, problem.counts, rate, need, pairs=pairs)


def runnable(problem: AllocationProblem) -> BoolArray:
    """Jobs that can make progress somewhere; the others get nothing and are left out of a level."""
    return np.asarray(problem.usable.any(axis=1))


def result_from(
    problem: AllocationProblem,
    solution: Solution,
    objective: float,
    solves: int,
    prices: FloatArray | None = None,
) -> AllocationResult:
    certified = is_certified(solution)
    return AllocationResult(
        status=Status.OPTIMAL if certified else Status.UNCERTIFIED,
        objective=objective,
        share=solution.share,
        pair_share=solution.pair_share,
        throughput=delivered_throughput(problem, solution.share, solution.pair_share),
        iterations=solution.iterations,
        solves=solves,
        gap=solution.gap,
        solver=solution.solver,
        fallback="" if certified else UNPROVEN,
        prices=prices,
    )


def max_min(
    problem: AllocationProblem, aware: bool, pairs: Pairs | None, solver: str, warm: FloatArray | None = None
) -> AllocationResult:
    """max min_m  s_m / (w_m prop_m) * throughput(m, X); agnostic: throughputs and prop are ones."""
    throughput = problem.throughput if aware else np.where(problem.usable, 1.0, 0.0)
    prop = proportional_throughput(problem, throughput) if aware else np.ones(problem.job_count)
    rate = np.where(runnable(problem), problem.weight * prop / problem.gpus, 0.0)
    return _common_level(problem, throughput, rate, pairs, solver, warm, inverse=False)


def makespan(
    problem: AllocationProblem, aware: bool, pairs: Pairs | None, solver: str, warm: FloatArray | None = None
) -> AllocationResult:
    """min max_m R_m / throughput(m, X): the level is the inverse of the makespan."""
    throughput = problem.throughput if aware else reference_throughput(problem)
    rate = np.where(runnable(problem), problem.steps_remaining, 0.0)
    return _common_level(problem, throughput, rate, pairs, solver, warm, inverse=True)


def _common_level(
    problem: AllocationProblem,
    throughput: FloatArray,
    rate: FloatArray,
    pairs: Pairs | None,
    solver: str,
    warm: FloatArray | None,
    inverse: bool,
) -> AllocationResult:
    if not rate.any():
        return nothing_to_do(problem, pairs)
    program = level_program(problem, throughput, rate, np.zeros(problem.job_count), pairs)
    solution, prices = solve_warm(program, solver, warm)
    objective = solution.value
    if inverse:
        objective = 1.0 / objective if objective > 0.0 else float("inf")
    return result_from(problem, solution, objective, 1, prices)


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

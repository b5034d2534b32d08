"""Policies that raise a common level: max-min fairness, makespan, finish-time fairness."""

from __future__ import annotations

import numpy as np

from trainmaster.policies.gavel.problem import (
    AllocationProblem,
    AllocationResult,
    BoolArray,
    FloatArray,
    Pairs,
    Status,
)
from trainmaster.policies.gavel.program import CERTIFIED_GAP, Program, Solution, delivered
from trainmaster.policies.gavel.solve import is_certified, solve_program

NEWTON_STEPS_MAX = 60


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
    problem: AllocationProblem, solution: Solution, objective: float, solves: int, gap: float | None = None
) -> AllocationResult:
    certified = is_certified(solution) if gap is None else gap <= CERTIFIED_GAP
    return AllocationResult(
        status=Status.OPTIMAL if certified else Status.UNCERTIFIED,
        objective=objective,
        share=solution.share,
        pair_share=solution.pair_share,
        throughput=_true_throughput(problem, solution),
        iterations=solution.iterations,
        solves=solves,
        gap=solution.gap if gap is None else gap,
        solver=solution.solver,
        fallback="" if certified else "best feasible allocation found; its optimality is not proven",
    )


def _true_throughput(problem: AllocationProblem, solution: Solution) -> FloatArray:
    real = Program(
        problem.throughput,
        problem.usable,
        problem.gpus,
        problem.counts,
        problem.gpus,
        problem.gpus,
        pairs=problem.pairs,
    )
    return delivered(real, solution.share, solution.pair_share)


def max_min(problem: AllocationProblem, aware: bool, pairs: Pairs | None, solver: str) -> AllocationResult:
    """max min_m  s_m / (w_m prop_m) * throughput(m, X); agnostic: throughputs and prop are ones."""
    throughput = problem.throughput if aware else np.where(problem.usable, 1.0, 0.0)
    prop = proportional_throughput(problem, throughput) if aware else np.ones(problem.job_count)
    rate = np.where(runnable(problem), problem.weight * prop / problem.gpus, 0.0)
    program = level_program(problem, throughput, rate, np.zeros(problem.job_count), pairs)
    solution = solve_program(program, solver)
    return result_from(problem, solution, solution.value, 1)


def makespan(problem: AllocationProblem, aware: bool, pairs: Pairs | None, solver: str) -> AllocationResult:
    """min max_m R_m / throughput(m, X): the level is the inverse of the makespan."""
    throughput = problem.throughput if aware else reference_throughput(problem)
    rate = np.where(runnable(problem), problem.steps_remaining, 0.0)
    program = level_program(problem, throughput, rate, np.zeros(problem.job_count), pairs)
    solution = solve_program(program, solver)
    return result_from(problem, solution, 1.0 / solution.value if solution.value > 0.0 else float("inf"), 1)


def finish_time_fairness(
    problem: AllocationProblem, aware: bool, pairs: Pairs | None, solver: str
) -> AllocationResult:
    """min max_m (t_m + R_m / throughput_m) / D_m,  D_m = cum_m + R_m / isolated_m.

    With u = 1 / rho the condition is throughput_m >= q_m(u) = R_m u / (D_m - t_m u), convex and increasing
    in u: a
    tangent at any u_k gives a relaxation whose optimum is an upper bound on u. Newton's method on it
    descends to the
    optimum quadratically; it ends when the ratio reached by the allocation meets the bound.
    """
    throughput = problem.throughput if aware else reference_throughput(problem)
    live = runnable(problem) & (problem.steps_remaining > 0.0)
    isolated = (np.where(problem.usable, throughput, 0.0) * isolated_share(problem)).sum(axis=1)
    steps, elapsed = problem.steps_remaining, problem.elapsed_s
    with np.errstate(divide="ignore", invalid="ignore"):
        due = problem.isolated_so_far_s + steps / isolated
    fastest = np.where(problem.usable, throughput, 0.0).max(axis=1, initial=0.0)
    if pairs is not None:
        for side in (0, 1):
            np.maximum.at(fastest, pairs.jobs[:, side], pairs.throughput[:, :, side].max(axis=1))
    # As in the original, the shared variant (alone) counts a job's remaining time by its weight.
    r = steps[live] * (problem.weight[live] if pairs is not None else 1.0)
    e, d = elapsed[live], due[live]
    bound = float(np.min(d / (e + r / fastest[live]))) if live.any() else 1.0
    # A first guess: the ratio that isolated shares reach.
    u = min(bound, float(np.min(d / (e + r / isolated[live])))) if live.any() else 1.0
    best: tuple[float, Solution] | None = None
    iterations = solves = 0
    for _ in range(NEWTON_STEPS_MAX):
        rate, need = np.zeros(problem.job_count), np.zeros(problem.job_count)
        left = d - e * u
        rate[live] = r * d / left**2
        need[live] = r * u / left - rate[live] * u
        solution = solve_program(level_program(problem, throughput, rate, need, pairs), solver)
        iterations += solution.iterations
        solves += 1
        program = level_program(problem, throughput, rate, need, pairs)
        got = delivered(program, solution.share, solution.pair_share)[live]
        with np.errstate(divide="ignore"):
            reached = float(np.min(d / (e + r / got)))
        if best is None or reached > best[0]:
            best = (reached, solution)
        bound = min(bound, solution.bound if np.isfinite(solution.bound) else bound)
        previous, u = u, min(bound, solution.value)
        if bound - best[0] <= 1e-10 * bound or abs(u - previous) <= 1e-10 * u:
            break
    assert best is not None
    reached, solution = best
    gap = max(0.0, bound - reached) / bound
    result = result_from(problem, solution, 1.0 / reached, solves, gap)
    return AllocationResult(**{**result.__dict__, "iterations": iterations})

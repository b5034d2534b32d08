"""Policies that maximise a sum: total throughput, throughput per cost, the same with service-level
objectives."""

from __future__ import annotations

import dataclasses

import numpy as np

from trainmaster.policies.gavel.levels import nothing_to_do, reference_throughput, result_from
from trainmaster.policies.gavel.problem import (
    AllocationProblem,
    AllocationResult,
    FloatArray,
    Pairs,
    Status,
)
from trainmaster.policies.gavel.program import Program
from trainmaster.policies.gavel.solve import solve_program, solve_warm


def total_throughput(
    problem: AllocationProblem, aware: bool, pairs: Pairs | None, solver: str, warm: FloatArray | None = None
) -> AllocationResult:
    """max sum_m throughput(m, X)."""
    price = np.ones(len(problem.counts))
    return _solve_sum(problem, aware, pairs, solver, price, np.zeros(problem.job_count), warm)


def throughput_per_cost(
    problem: AllocationProblem, aware: bool, pairs: Pairs | None, solver: str, warm: FloatArray | None = None
) -> AllocationResult:
    """max sum_mj T_mj x_mj / cost_j."""
    return _solve_sum(problem, aware, pairs, solver, problem.cost_per_hour, np.zeros(problem.job_count), warm)


def throughput_per_cost_with_slo(
    problem: AllocationProblem, aware: bool, pairs: Pairs | None, solver: str, warm: FloatArray | None = None
) -> AllocationResult:
    """The same subject to throughput(m, X) >= R_m / SLO_m; without the SLOs when they cannot all be met."""
    bound_by = np.isfinite(problem.slo_s) & (problem.steps_remaining > 0.0)
    need = np.zeros(problem.job_count)
    need[bound_by] = problem.steps_remaining[bound_by] / problem.slo_s[bound_by]
    if not bound_by.any():
        return throughput_per_cost(problem, aware, pairs, solver, warm)
    throughput = problem.throughput if aware else reference_throughput(problem)
    # How far can all needs be met at once? max t: throughput_m >= need_m t. Feasible iff t >= 1.
    able = problem.usable.any(axis=1)
    hopeless = bound_by & ~able
    trial = Program(
        throughput,
        problem.usable,
        problem.gpus,
        problem.counts,
        np.where(able, need, 0.0),
        0.0 * need,
        pairs=pairs,
    )
    reach = solve_program(trial, solver) if trial.has_level else None
    if hopeless.any() or (reach is not None and reach.value < 1.0 - 1e-9):
        late = hopeless.copy()
        if reach is not None and reach.value < 1.0 - 1e-9:
            # The jobs that hold the level down: exactly those with a multiplier.
            late |= bound_by & (reach.multiplier * need > 1e-7)
        relaxed = throughput_per_cost(problem, aware, pairs, solver, warm)
        most = 0.0 if hopeless.any() or reach is None else reach.value
        return dataclasses.replace(
            relaxed,
            status=Status.INFEASIBLE_SLO,
            fallback=f"solved without SLOs: at most {most:.4g} of the required speeds can be met together",
            late_jobs=np.flatnonzero(late),
        )
    if reach is not None and reach.value < 1.0:
        need = need * reach.value  # met exactly, up to rounding
    return _solve_sum(problem, aware, pairs, solver, problem.cost_per_hour, need, warm)


def _solve_sum(
    problem: AllocationProblem,
    aware: bool,
    pairs: Pairs | None,
    solver: str,
    price: FloatArray,
    need: FloatArray,
    warm: FloatArray | None,
) -> AllocationResult:
    throughput = problem.throughput if aware else reference_throughput(problem)
    gain = np.where(problem.usable, throughput, 0.0) / price[None, :]
    pair_gain = None if pairs is None else pairs.throughput.sum(axis=2) / price[None, :]
    program = Program(
        throughput,
        problem.usable,
        problem.gpus,
        problem.counts,
        np.zeros(problem.job_count),
        need,
        gain=gain,
        pairs=pairs,
        pair_gain=pair_gain,
    )
    if not gain.any():
        return nothing_to_do(problem, pairs)
    solution, prices = solve_warm(program, solver, warm)
    return result_from(problem, solution, solution.value, 1, prices)

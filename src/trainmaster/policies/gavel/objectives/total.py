"""Objectives that maximise a sum: total throughput, throughput per cost, the same with service-level objectives."""

from __future__ import annotations

import dataclasses

import numpy as np

from trainmaster.policies.gavel.objectives.max_min import level_program, nothing_to_do, result_from
from trainmaster.policies.gavel.problem import AllocationProblem, AllocationResult, FloatArray, Pairs, Status
from trainmaster.policies.gavel.solver import solve_program
from trainmaster.policies.gavel.solver.program import LinearProgram

MET = 1.0 - 1e-9
"""Needs that can be met up to this part are met."""


def total_throughput(problem: AllocationProblem, aware: bool, pairs: Pairs | None, solver: str) -> AllocationResult:
    """max_X sum_m throughput(m, X)."""
    return _largest_sum(problem, aware, pairs, solver, np.ones(len(problem.counts)), np.zeros(problem.job_count))


def throughput_per_cost(problem: AllocationProblem, aware: bool, pairs: Pairs | None, solver: str) -> AllocationResult:
    """max_X sum_mj T_mj X_mj / cost_j  (section 4.2)."""
    return _largest_sum(problem, aware, pairs, solver, problem.cost_per_hour, np.zeros(problem.job_count))


def throughput_per_cost_with_slo(
    problem: AllocationProblem, aware: bool, pairs: Pairs | None, solver: str
) -> AllocationResult:
    """The same subject to throughput(m, X) >= steps_m / SLO_m; without the SLOs when they cannot all be met."""
    bound_by = np.isfinite(problem.slo_s) & (problem.steps_remaining > 0.0)
    if not bound_by.any():
        return throughput_per_cost(problem, aware, pairs, solver)
    need = np.zeros(problem.job_count)
    need[bound_by] = problem.steps_remaining[bound_by] / problem.slo_s[bound_by]
    # How far can all needs be met at once? max t: throughput_m >= need_m t. Feasible iff t >= 1.
    hopeless = bound_by & ~problem.runnable
    trial = level_program(problem, problem.seen_by(aware), np.where(problem.runnable, need, 0.0), pairs)
    reach = solve_program(trial, solver) if trial.has_level else None
    short = reach is not None and reach.value < MET
    if hopeless.any() or short:
        late = hopeless.copy()
        if reach is not None and short:
            # The jobs that hold the level down: exactly those with a multiplier.
            late |= bound_by & (reach.multiplier * need > 1e-7)
        most = 0.0 if hopeless.any() or reach is None else reach.value
        proven = hopeless.any() or reach is None or reach.bound < 1.0
        return dataclasses.replace(
            throughput_per_cost(problem, aware, pairs, solver),
            status=Status.INFEASIBLE_SLO if proven else Status.UNCERTIFIED,
            fallback=f"solved without SLOs: at most {most:.4g} of the required speeds can be met together",
            late_jobs=np.flatnonzero(late),
        )
    if reach is not None and reach.value < 1.0:
        need = need * reach.value  # met exactly, up to rounding
    return _largest_sum(problem, aware, pairs, solver, problem.cost_per_hour, need)


def _largest_sum(
    problem: AllocationProblem, aware: bool, pairs: Pairs | None, solver: str, price: FloatArray, need: FloatArray
) -> AllocationResult:
    throughput = problem.seen_by(aware)
    gain = np.where(problem.usable, throughput, 0.0) / price[None, :]
    if not gain.any():
        return nothing_to_do(problem, pairs)
    program = LinearProgram(
        throughput,
        problem.usable,
        problem.gpus,
        problem.counts,
        np.zeros(problem.job_count),
        need,
        gain=gain,
        pairs=pairs,
        pair_gain=None if pairs is None else pairs.throughput.sum(axis=2) / price[None, :],
    )
    solution = solve_program(program, solver)
    return result_from(problem, solution, solution.value)

"""Which of the optimal shares to take: those that the published implementation would compute, for the mechanism
`original`, and for policies that are blind to types.

Same optimum as ours, but among the optimal allocations the one where its solver stops (`interior`); for the makespan
policy, which bisects to within 5 %, the one for the last makespan that its bisection finds feasible.
"""

from __future__ import annotations

import numpy as np

from trainmaster.policies.gavel.artifact.interior_point import stop_of_feasibility, stop_of_level, stop_of_total
from trainmaster.policies.gavel.problem import AllocationProblem, AllocationResult, FloatArray, IntArray

LINEAR = frozenset({"gavel-max-min", "gavel-throughput", "gavel-cost"})
"""Policies that are one linear program: nothing else has to be known to find where its solver stops."""


def linear_share(problem: AllocationProblem, allocation: str, aware: bool) -> FloatArray | None:
    """Shares of a policy in `LINEAR`. None: the path did not converge."""
    live = problem.runnable
    some, gpu_types = np.flatnonzero(live), np.flatnonzero(problem.counts > 0.0)
    at = np.ix_(some, gpu_types)
    if len(some) == 0:
        return np.zeros_like(problem.throughput)
    gpus, counts = problem.gpus[some], problem.counts[gpu_types]
    if allocation == "gavel-max-min":
        speeds, equal = problem.normalised(aware)
        rate = (problem.weight * equal / problem.gpus)[some]
        found = stop_of_level(np.where(problem.usable, speeds, 0.0)[at], rate, gpus, counts)
    else:
        worth = np.where(problem.usable, problem.seen_by(aware), 0.0)
        if allocation == "gavel-cost":
            worth = worth / problem.cost_per_hour
        found = stop_of_total(worth[at], gpus, counts)
    return None if found is None else _placed(problem, some, gpu_types, found)


def makespan_share(problem: AllocationProblem, aware: bool, exact: AllocationResult) -> FloatArray:
    """Shares of the makespan policy; `exact` is the optimum."""
    speeds = problem.seen_by(aware)
    some, gpu_types = np.flatnonzero(problem.runnable), np.flatnonzero(problem.counts > 0.0)
    if len(some) == 0:
        return exact.share
    need = problem.steps_remaining[some] / _bisected_makespan_s(exact.objective)
    speeds = np.where(problem.usable, speeds, 0.0)[np.ix_(some, gpu_types)]
    found = stop_of_feasibility(speeds, need, problem.gpus[some], problem.counts[gpu_types])
    return exact.share if found is None else _placed(problem, some, gpu_types, found)


def finish_time_share(problem: AllocationProblem, aware: bool, exact: AllocationResult) -> FloatArray:
    """Shares of finish-time fairness: at the optimal ratio rho each job needs R / (rho D - t) steps/s (see
    `finish_time`), and a solver stops near the centre of what gives all of them as much."""
    speeds = np.where(problem.usable, problem.seen_by(aware), 0.0)
    due = problem.isolated_so_far_s + problem.steps_remaining / np.maximum(
        (speeds * problem.isolated_share).sum(axis=1), 1e-300
    )
    left = exact.objective * due - problem.elapsed_s
    live = problem.runnable & (problem.steps_remaining > 0.0)
    some = np.flatnonzero(live)
    if len(some) == 0 or not (left[some] > 0.0).all():
        return exact.share
    return _of_level(problem, speeds, some, problem.steps_remaining[some] / left[some], exact)


def spread_over_types(problem: AllocationProblem, exact: AllocationResult) -> FloatArray:
    """The shares of a policy that is blind to types, which decides how much time a job has, not where: the same time
    for everybody, spread over the types as evenly as they have room. A corner would leave some jobs on the slowest
    type for good, for no reason that the policy knows."""
    usable = np.where(problem.usable, 1.0, 0.0)
    time = (exact.share * usable).sum(axis=1)
    some = np.flatnonzero(time > 1e-9)
    return _of_level(problem, usable, some, time[some], exact) * usable if len(some) else exact.share


def _of_level(
    problem: AllocationProblem, speeds: FloatArray, some: IntArray, rate: FloatArray, exact: AllocationResult
) -> FloatArray:
    """Where the solver stops that gives these jobs all they can have of a rate; the exact shares if it gets nowhere."""
    gpu_types = np.flatnonzero(problem.counts > 0.0)
    found = stop_of_level(speeds[np.ix_(some, gpu_types)], rate, problem.gpus[some], problem.counts[gpu_types])
    return exact.share if found is None else _placed(problem, some, gpu_types, found)


def _placed(problem: AllocationProblem, some: IntArray, gpu_types: IntArray, found: FloatArray) -> FloatArray:
    """The shares of these jobs on these types among those of all."""
    share = np.zeros_like(problem.throughput)
    share[np.ix_(some, gpu_types)] = np.clip(found, 0.0, 1.0)
    return share


def _bisected_makespan_s(optimum_s: float) -> float:
    """The last feasible makespan of a bisection of 100 s to 1,000,000 s (then ten times as much, and so on) that stops
    within 5 %."""
    low, high = 100.0, 1_000_000.0
    if not optimum_s < np.inf:
        return optimum_s
    while optimum_s > high:
        low, high = high, 10.0 * high
    while 1.05 * low < high:
        middle = (low + high) / 2.0
        if middle >= optimum_s:
            high = middle
        else:
            low = middle
    return max(high, optimum_s)

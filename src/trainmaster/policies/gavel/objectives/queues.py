"""Allocations that need no program: first come first served, shortest first, isolated shares, Gandiva-style packing."""

from __future__ import annotations

import numpy as np

from trainmaster.policies.gavel.problem import (
    AllocationProblem,
    AllocationResult,
    FloatArray,
    IntArray,
    Pairs,
    Status,
    effective_throughput,
)

PACKING_GAIN_MIN = 1.0  # Gandiva keeps two jobs together while their combined relative speed is above one


def _result(
    problem: AllocationProblem, share: FloatArray, objective: float | None = None, pair_share: FloatArray | None = None
) -> AllocationResult:
    got = effective_throughput(problem.throughput, problem.pairs, share, pair_share)
    prop = problem.equal_throughput(problem.throughput)
    normalized = got / np.where(prop > 0.0, prop, 1.0)
    return AllocationResult(
        Status.OPTIMAL,
        float(got.sum()) if objective is None else objective,
        share,
        got,
        pair_share=pair_share,
        normalized=normalized,
        solver="direct",
    )


def in_order(problem: AllocationProblem, order: IntArray, aware: bool) -> AllocationResult:
    """Give each job in turn whole GPUs of its fastest type that still has room for the gang; stop at the
    first job
    that fits nowhere (no overtaking). Agnostic: the first type with room."""
    free = problem.counts.copy()
    share = np.zeros_like(problem.throughput)
    usable = problem.usable
    for m in order:
        fits = usable[m] & (free >= problem.gpus[m])
        if not fits.any():
            if usable[m].any() and bool((usable[m] & (problem.counts >= problem.gpus[m])).any()):
                break
            continue  # could never run: it must not block those behind it
        j = int(np.argmax(np.where(fits, problem.throughput[m], -1.0))) if aware else int(np.argmax(fits))
        share[m, j] = 1.0
        free[j] -= problem.gpus[m]
    return _result(problem, share)


def fifo(problem: AllocationProblem, aware: bool, _pairs: Pairs | None, _solver: str) -> AllocationResult:
    """Jobs in the order of the instance (arrival)."""
    return in_order(problem, np.arange(problem.job_count), aware)


def shortest_first(problem: AllocationProblem, aware: bool, _pairs: Pairs | None, _solver: str) -> AllocationResult:
    """Jobs by remaining time on their fastest type (agnostic: by remaining steps); ties by position."""
    fastest = np.where(problem.usable, problem.throughput, 0.0).max(axis=1, initial=0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        left = problem.steps_remaining / fastest if aware else problem.steps_remaining
    left = np.where(fastest > 0.0, left, np.inf)
    return in_order(problem, np.argsort(left, kind="stable"), aware)


def isolated(problem: AllocationProblem, _aware: bool, _pairs: Pairs | None, _solver: str) -> AllocationResult:
    """A static 1/n of every type to each job; the part on unusable types is lost."""
    share = np.where(problem.allowed, problem.isolated_share, 0.0)
    result = _result(problem, share)
    assert result.normalized is not None
    return _result(problem, share, float(result.normalized.min(initial=np.inf)) if problem.job_count else 0.0)


def gandiva(problem: AllocationProblem, aware: bool, pairs: Pairs | None, solver: str) -> AllocationResult:
    """Time slicing, and packing when the cluster is oversubscribed (Xiao et al., OSDI 2018).

    Pairs of equal gangs are matched greedily by combined relative speed averaged over types, best first,
    where it
    exceeds one; the resulting units (pairs and single jobs) each get an equal part of every type.
    """
    share = np.zeros_like(problem.throughput)
    if pairs is None or problem.gpus.sum() <= problem.counts.sum() or len(pairs) == 0:
        return isolated(problem, aware, pairs, solver)
    first, second = pairs.jobs[:, 0], pairs.jobs[:, 1]
    alone = np.where(problem.usable, problem.throughput, 0.0)
    both = problem.usable[first] & problem.usable[second] & (pairs.throughput > 0.0).all(axis=2)
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = pairs.throughput[:, :, 0] / alone[first] + pairs.throughput[:, :, 1] / alone[second]
    count = both.sum(axis=1)
    mean_gain = np.where(count > 0, np.where(both, gain, 0.0).sum(axis=1) / np.maximum(count, 1), 0.0)
    order = np.lexsort((second, first, -mean_gain))
    taken = np.zeros(problem.job_count, dtype=bool)
    chosen: list[int] = []
    for k in order:
        if mean_gain[k] <= PACKING_GAIN_MIN:
            break
        if not taken[first[k]] and not taken[second[k]] and problem.gpus[first[k]] == problem.gpus[second[k]]:
            taken[first[k]] = taken[second[k]] = True
            chosen.append(int(k))
    units = problem.job_count - len(chosen)
    pair_share = np.zeros((len(pairs), len(problem.counts)))

    def equal_part(gang: float) -> FloatArray:
        part = problem.counts / (units * gang)
        return part / max(1.0, float(part.sum()))

    for m in np.flatnonzero(~taken):
        share[m] = np.where(problem.usable[m], equal_part(float(problem.gpus[m])), 0.0)
    for k in chosen:
        pair_share[k] = np.where(both[k], equal_part(float(problem.gpus[first[k]])), 0.0)
    return _result(problem, share, None, pair_share)

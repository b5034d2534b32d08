"""AlloX (Le et al., EuroSys 2020): minimise the total completion time of single-GPU jobs by min-cost matching.

A job that is k-th from the last on its worker delays k completions by its own processing time, so putting job m at
that position of a worker of type j costs k R_m / T_mj. Workers of one type are alike, positions fill from the last,
and at most ceil(n / N_j) positions per worker are ever used, which leaves about J n + sum N_j columns. The matching is
called optimal when a bound that is computed here, from its costs alone, reaches it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trainmaster.policies.gavel.objectives.matching import assign
from trainmaster.policies.gavel.objectives.max_min import UNPROVEN
from trainmaster.policies.gavel.problem import AllocationProblem, AllocationResult, FloatArray, IntArray, Pairs, judged
from trainmaster.policies.gavel.solver.program import CERTIFIED_GAP, proven_gap


def allox(problem: AllocationProblem, _aware: bool, _pairs: Pairs | None, _solver: str) -> AllocationResult:
    """The job that stands first on each worker gets it whole; the others wait. AlloX is defined for single-GPU jobs:
    larger gangs are left out (share 0)."""
    share = np.zeros_like(problem.throughput)
    eligible = np.flatnonzero((problem.gpus == 1.0) & problem.usable.any(axis=1) & (problem.steps_remaining > 0.0))
    total_s = gap = 0.0
    n = len(eligible)
    if n:
        types, positions = _slots(problem.counts, n)
        with np.errstate(divide="ignore"):
            time_s = problem.steps_remaining[eligible, None] / np.where(
                problem.usable[eligible], problem.throughput[eligible], 0.0
            )
        blocked = float(np.where(np.isfinite(time_s), time_s, 0.0).max()) * (n + 1) * n + 1.0
        cost = np.where(np.isfinite(time_s[:, types]), time_s[:, types] * positions[None, :], blocked)
        column = assign(np.ascontiguousarray(cost))
        matched_s = float(cost[np.arange(n), column].sum())
        distinct = len(np.unique(column)) == n
        gap = proven_gap(matched_s, least_total(cost, column)) if distinct else np.inf
        total_s = matched_s + float(problem.elapsed_s[eligible].sum())
        for j in np.unique(types):
            mine = np.flatnonzero(types[column] == j)
            place = positions[column[mine]]
            # the deepest positions head their workers; among equals the earlier job
            heads = mine[np.lexsort((mine, -place))][: int(problem.counts[j])]
            share[eligible[heads], j] = 1.0
    left_out = np.flatnonzero(problem.gpus != 1.0)
    result = judged(problem, share, gap <= CERTIFIED_GAP, UNPROVEN, objective=total_s, solver="matching", gap=gap)
    if not len(left_out):
        return result
    note = f"AlloX places single-GPU jobs only: {len(left_out)} gangs get nothing"
    return replace(result, fallback="; ".join(filter(None, (result.fallback, note))))


def least_total(cost: FloatArray, column: IntArray) -> float:
    """No assignment of all rows costs less, whatever `column` is; it reaches the cost of `column` if that is optimal.

    Weak duality: sum_i min_c (cost_ic - v_c) + sum_c v_c for any prices v <= 0 of columns. The prices are the longest
    paths from free columns along exchanges of `column` (Bellman-Ford), cut off at 0.
    """
    rows = np.arange(len(column))
    own = cost[rows, column]
    free = np.ones(cost.shape[1], dtype=bool)
    free[column] = False
    exchange = own[:, None] - cost[:, column]
    lowest = -float(cost.max()) * len(rows)
    price = np.maximum(own - cost[:, free].min(axis=1, initial=np.inf), lowest)
    for _ in rows:
        raised = np.maximum(price, (exchange + price[None, :]).max(axis=1))
        if (raised <= price).all():
            break
        price = raised
    every = np.zeros(cost.shape[1])
    np.add.at(every, column, np.minimum(price, 0.0))
    return float((cost - every[None, :]).min(axis=1).sum() + every.sum())


def _slots(counts: FloatArray, jobs: int) -> tuple[IntArray, FloatArray]:
    """(type, position from the last) of every slot that an optimal schedule may use."""
    types: list[IntArray] = []
    positions: list[FloatArray] = []
    for j, count in enumerate(counts.astype(np.int64)):
        if count > 0:
            depth = -(-jobs // int(count))
            types.append(np.full(int(count) * depth, j, dtype=np.int64))
            positions.append(np.repeat(np.arange(1, depth + 1), int(count)).astype(np.float64))
    return np.concatenate(types), np.concatenate(positions)

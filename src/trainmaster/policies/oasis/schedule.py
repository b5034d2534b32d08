"""The best schedule of one job at fixed prices: DP over slots and workload, one table for all end slots.

DP(t, D) = min_d COST(t, d) + DP(t-1, D-d); row t ends every schedule that completes by slot t, so one table
yields the cheapest cost for each end slot, and the payoff f(t - a) - DP(t, W) is maximised over them.

Granularity. With `grains` = N the DP runs in single worker-slots and is exact. When slots x work x N
exceeds `operations_max`, it runs in grains of N/m worker-slots, m < N: a slot offers d_j = ceil(j N/m)
workers counted as j grains, j = 0 .. m, and the job needs ceil(W m/N) grains. Since d_j >= j N/m, the
schedule never under-serves; since d_m = N, the shortest completion stays reachable. What is served in
excess is trimmed afterwards, dearest first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numba import njit

from trainmaster.model.utility import FloatArray
from trainmaster.policies.oasis.formulation import AdmissionJob, Cluster, Schedule
from trainmaster.policies.oasis.prices import PriceTable
from trainmaster.policies.oasis.quotes import Quotes


@dataclass(frozen=True)
class SearchLimits:
    """What one decision may spend: inner DP steps in all, and steps of the exact joint placement over all
    slots.
    """

    operations_max: int = 20_000_000
    joint_operations_max: int = 20_000_000


@dataclass(frozen=True)
class Offer:
    """The best schedule found, or none. `cost_by_end[j]` is the least cost of completing by slot arrival +
    j.
    """

    schedule: Schedule | None
    payoff: float
    utility: float
    cost: float
    cost_by_end: FloatArray
    grain_worker_slots: float
    exact: bool


@njit(cache=True)
def fill_table(option_cost, units, values, stop_early):
    """The DP table. option_cost: slots x (m + 1); values[t]: utility of ending in slot t.

    Returns (table, rows): table[t + 1, u] is the least cost of u grains by slot t. With `stop_early`, rows
    end where no later end slot can beat the best payoff found, because utility does not rise and cost is
    not negative.
    """
    slots, width = option_cost.shape
    table = np.full((slots + 1, units + 1), np.inf)
    table[0, 0] = 0.0
    best = 0.0
    for t in range(slots):
        if stop_early and best > 0.0 and values[t] <= best:
            return table, t
        top = min(units, (t + 1) * (width - 1))
        before = table[t]
        now = table[t + 1]
        now[: top + 1] = before[: top + 1]
        for j in range(1, width):
            step = option_cost[t, j]
            if step == np.inf:
                continue
            for u in range(j, top + 1):
                value = before[u - j] + step
                now[u] = value if value < now[u] else now[u]
        best = max(best, values[t] - now[units])
    return table, slots


@njit(cache=True)
def trace_back(table, option_cost, end):
    """Options chosen in slots 0 .. end on a cheapest path that serves all grains by `end`."""
    chosen = np.zeros(end + 1, np.int64)
    left = table.shape[1] - 1
    for back in range(end + 1):
        t = end - back
        for j in range(min(left, option_cost.shape[1] - 1) + 1):
            # The same floating-point sum as in the forward pass, so equality is exact; idle is preferred.
            if table[t, left - j] + option_cost[t, j] == table[t + 1, left]:
                chosen[t] = j
                left -= j
                break
    return chosen


def grains_per_slot(job: AdmissionJob, slots: int, operations_max: int) -> int:
    """m, the grains of a slot with all N workers: N (exact) when affordable, else as fine as the limit
    allows.
    """
    affordable = math.isqrt(max(1, operations_max * job.chunks // (slots * job.worker_slots)))
    return max(1, min(job.chunks, affordable))


def best_schedule(
    job: AdmissionJob,
    table: PriceTable,
    cluster: Cluster,
    used: FloatArray,
    limits: SearchLimits,
    *,
    all_ends: bool = False,
) -> Offer:
    """Maximise f(t - a) - cost at the prices of `used` (slots x servers x resources, slot 0 first).

    The payoff may be negative; it is -inf, and there is no schedule, when the job cannot complete by the
    horizon. `all_ends` computes the cost of every end slot even after the best one is known.
    """
    slots = used.shape[0] - job.arrival
    none = Offer(None, -math.inf, 0.0, math.inf, np.full(max(slots, 0), np.inf), 1.0, True)
    if slots < job.fewest_slots:
        return none
    grains = grains_per_slot(job, slots, limits.operations_max)
    options = -(-np.arange(grains + 1) * job.chunks // grains)
    quotes = Quotes.of(job, table, cluster, used[job.arrival :], options, limits.joint_operations_max)
    values = job.utility.values(np.arange(slots, dtype=np.float64))
    option_cost = np.ascontiguousarray(quotes.cost[:, options])
    units = -(-job.worker_slots * grains // job.chunks)
    filled, rows = fill_table(option_cost, units, values, not all_ends)
    cost_by_end = np.full(slots, np.inf)
    cost_by_end[:rows] = filled[1 : rows + 1, units]
    exact = quotes.exact and grains == job.chunks
    if not np.isfinite(cost_by_end).any():
        return Offer(None, -math.inf, 0.0, math.inf, cost_by_end, job.chunks / grains, exact)
    end = int(np.argmax(values - cost_by_end))
    workers = options[trace_back(filled, option_cost, end)]
    _trim(workers, quotes, int(workers.sum()) - job.worker_slots)
    schedule, cost = quotes.place(workers)
    utility = job.utility.value(schedule.completion - job.arrival)
    return Offer(schedule, utility - cost, utility, cost, cost_by_end, job.chunks / grains, exact)


def _trim(workers: np.ndarray, quotes: Quotes, excess: int) -> None:
    """Take up to `excess` worker-slots back, the dearest first, the latest among equals; in place."""
    for _ in range(excess):
        best_slot, best_saving = -1, -1e-300
        for slot in np.flatnonzero(workers)[::-1]:
            count = int(workers[slot])
            saving = quotes.cost_at(slot, count) - quotes.cost_at(slot, count - 1)
            if saving > best_saving and math.isfinite(saving):
                best_slot, best_saving = int(slot), saving
        if best_slot < 0:
            return
        workers[best_slot] -= 1

"""The best schedule of one job at fixed prices: DP over slots and workload, one table for all end slots.

DP(t, D) = min_d COST(t, d) + DP(t-1, D-d), in `schedule_table`; row t ends every schedule that completes by slot t, so
one table yields the cheapest cost for each end slot, and the payoff f(t - a) - DP(t, W) is maximised over them.

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

from trainmaster.model.utility import FloatArray
from trainmaster.policies.oasis.formulation import AdmissionJob, Cluster, Schedule
from trainmaster.policies.oasis.prices import PriceTable
from trainmaster.policies.oasis.quotes import Quotes
from trainmaster.policies.oasis.schedule_table import ScheduleTable


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
    quotes = Quotes(job, table, cluster, used[job.arrival :], options, limits.joint_operations_max)
    values = job.utility.values(np.arange(slots, dtype=np.float64))
    units = -(-job.worker_slots * grains // job.chunks)
    gain = np.broadcast_to(np.arange(1, grains + 1), (slots, grains)).copy()
    filled = ScheduleTable(np.ascontiguousarray(quotes.cost[:, options[1:]]), gain, units, False)
    filled.fill(values, not all_ends)
    # What is done by a slot may have been done in an earlier one.
    cost_by_end = np.minimum.accumulate(np.asarray(filled.finish))
    cost_by_end[filled.rows :] = np.inf
    exact = quotes.exact and grains == job.chunks
    if not np.isfinite(cost_by_end).any():
        return Offer(None, -math.inf, 0.0, math.inf, cost_by_end, job.chunks / grains, exact)
    end = int(np.argmax(values - cost_by_end))
    chosen = np.full(end + 1, -1, np.int64)
    filled.trace(end, chosen)
    workers = options[chosen + 1]
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

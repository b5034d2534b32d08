"""The online algorithm on an instance: each arriving job is offered its best schedule at current prices, once.

Admit iff the payoff mu = f(completion - a) - cost is positive; commit the schedule, which raises the prices of what it
uses. A job turned away is told its payoff and what would have let it in.

Granularity. With `grains` = N the DP runs in single worker-slots and is exact. When slots x work x N exceeds
`operations_max`, it runs in grains of N/m worker-slots, m < N: a slot offers d_j = ceil(j N/m) workers counted as j
grains, j = 0 .. m, and the job needs ceil(W m/N) grains. Since d_j >= j N/m, the schedule never under-serves; since
d_m = N, the shortest completion stays reachable. What is served in excess is trimmed afterwards, dearest first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from trainmaster.model.utility import FloatArray
from trainmaster.policies.oasis.instance.formulation import AdmissionJob, Cluster, Schedule
from trainmaster.policies.oasis.offers import best_path, lacking
from trainmaster.policies.oasis.prices import Densities, Extent, PriceSettings, PriceTable, densities, price_table
from trainmaster.policies.oasis.quotes import Quotes


@dataclass(frozen=True)
class SearchLimits:
    """What one decision may spend: inner DP steps in all, and steps of the exact joint placement over all slots."""

    operations_max: int = 20_000_000
    joint_operations_max: int = 20_000_000


@dataclass(frozen=True)
class Offer:
    """The best schedule found, or none: then `payoff` is -inf. `cost_by_end[j]`: least cost of ending in slot
    arrival + j."""

    schedule: Schedule | None
    payoff: float
    utility: float
    cost: float
    cost_by_end: FloatArray
    grain_worker_slots: float
    exact: bool


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

    The payoff may be negative. `all_ends` computes the cost of every end slot even after the best one is known.
    """
    time_slots = used.shape[0] - job.arrival
    if time_slots < job.fewest_slots:
        return Offer(None, -math.inf, 0.0, math.inf, np.full(max(time_slots, 0), np.inf), 1.0, True)
    affordable = math.isqrt(max(1, limits.operations_max * job.chunks // (time_slots * job.worker_slots)))
    grains = max(1, min(job.chunks, affordable))
    options = -(-np.arange(grains + 1) * job.chunks // grains)
    quotes = Quotes(job, table, cluster, used[job.arrival :], options, limits.joint_operations_max)
    gain = np.broadcast_to(np.arange(1, grains + 1), (time_slots, grains)).copy()
    path = best_path(
        np.ascontiguousarray(quotes.cost[:, options[1:]]),
        gain,
        -(-job.worker_slots * grains // job.chunks),
        job.utility.values(np.arange(time_slots, dtype=np.float64)),
        part_paid=False,
        all_ends=all_ends,
    )
    exact = quotes.exact and grains == job.chunks
    if path.end < 0:
        return Offer(None, -math.inf, 0.0, math.inf, path.costs, job.chunks / grains, exact)
    workers = options[path.chosen + 1]
    _trim(workers, quotes, int(workers.sum()) - job.worker_slots)
    schedule, cost = quotes.place(workers)
    utility = job.utility.value(schedule.completion - job.arrival)
    return Offer(schedule, utility - cost, utility, cost, path.costs, job.chunks / grains, exact)


def _trim(workers: np.ndarray, quotes: Quotes, excess: int) -> None:
    """Take up to `excess` worker-slots back, the dearest first, the latest among equals; in place."""
    for _ in range(excess):
        best_slot, best_saving = -1, -1e-300
        for time_slot in np.flatnonzero(workers)[::-1]:
            count = int(workers[time_slot])
            saving = quotes.cost_at(time_slot, count) - quotes.cost_at(time_slot, count - 1)
            if saving > best_saving and math.isfinite(saving):
                best_slot, best_saving = int(time_slot), saving
        if best_slot < 0:
            return
        workers[best_slot] -= 1


@dataclass(frozen=True)
class Population:
    """What the constants need to know of the jobs seen so far (or declared)."""

    densities: list[Densities] = field(default_factory=list)
    extents: list[Extent] = field(default_factory=list)

    @staticmethod
    def of(jobs: Iterable[AdmissionJob], horizon: int) -> Population:
        population = Population()
        for job in jobs:
            population = population.including(job, horizon)
        return population

    def including(self, job: AdmissionJob, horizon: int) -> Population:
        """With one more job. Jobs that can never be worth anything teach nothing about prices."""
        ln_best = job.utility.log_value(job.fewest_slots - 1)
        if ln_best == -math.inf or job.arrival + job.fewest_slots > horizon:
            return self
        roles = (job.worker_demand, job.worker_slots), (job.server_demand, job.ps_slots)
        amounts = [amount * time_slots for demand, time_slots in roles for amount in demand]
        totals = [sum(demand) for demand, _ in roles]
        extent = Extent.of(job.utility.log_value(horizon - job.arrival), (job.worker_slots, job.ps_slots), totals)
        return Population([*self.densities, densities(ln_best, amounts)], [*self.extents, extent])

    def prices(self, cluster: Cluster, horizon: int, settings: PriceSettings) -> PriceTable:
        hosts = np.array([cluster.hosts_workers, cluster.hosts_ps])
        supply = [cluster.capacity[role].sum() * horizon for role in hosts]
        return price_table(
            self.densities, len(cluster.resources), hosts.T, settings, self.extents, (supply[0], supply[1])
        )


class OnlineAdmission:
    """Commitments and constants of one cluster over one horizon; `offer` takes jobs in arrival order.

    `population` None: constants from the jobs offered so far, the arriving one included (no peeking),
    starting from `history` if there is any. Otherwise from the declared population alone.
    """

    def __init__(
        self,
        cluster: Cluster,
        horizon: int,
        settings: PriceSettings,
        *,
        population: Population | None = None,
        history: Population | None = None,
        limits: SearchLimits | None = None,
    ) -> None:
        self.cluster, self.horizon, self.settings = cluster, horizon, settings
        self.limits = limits or SearchLimits()
        self.used: FloatArray = np.zeros((horizon, len(cluster.servers), len(cluster.resources)))
        self.seen = history or Population()
        self._fixed = None if population is None else population.prices(cluster, horizon, settings)

    def prices_for(self, job: AdmissionJob) -> PriceTable:
        """The constants that decide about `job`: fixed, or from history including the job itself."""
        return self._fixed or self.seen.including(job, self.horizon).prices(self.cluster, self.horizon, self.settings)

    def offer(self, job: AdmissionJob) -> tuple[Offer, float]:
        """Decide about one arrival and commit its schedule if its payoff is positive; with alpha of its prices."""
        table = self.prices_for(job)
        self.seen = self.seen.including(job, self.horizon)
        offer = best_schedule(job, table, self.cluster, self.used, self.limits)
        if offer.schedule is not None and offer.payoff > 0:
            self.used += offer.schedule.usage(job, self.horizon, len(self.cluster.servers))
        return offer, table.alpha


def rejection(job: AdmissionJob, offer: Offer, horizon: int) -> dict[str, object]:
    """What a rejected job is told. Reasons: `horizon` (even all N workers from arrival on are too slow), `capacity`
    (what is not yet committed cannot serve the work in time), `price` (it costs at least what it is worth); then
    `price_factor` and `grace_slots`, as in `lacking`."""
    if offer.schedule is None:
        late = job.arrival + job.fewest_slots > horizon
        return {"reason": "horizon" if late else "capacity", "price_factor": None, "grace_slots": None}
    ages = np.arange(len(offer.cost_by_end), dtype=np.float64)
    factor, grace = lacking(job.utility, ages, offer.cost_by_end, (offer.utility, offer.cost), 1.0)
    return {"reason": "price", "price_factor": factor, "grace_slots": None if grace is None else round(grace)}

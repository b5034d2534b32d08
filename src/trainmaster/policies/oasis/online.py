"""The online algorithm: each arriving job is offered its best schedule at current prices, once and for good.

Admit iff the payoff mu = f(completion - a) - cost is positive; commit the schedule, which raises the prices
of what it uses. A job turned away is told its payoff and what would have let it in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from trainmaster.model.utility import FloatArray
from trainmaster.policies.oasis.formulation import AdmissionJob, Cluster, Schedule
from trainmaster.policies.oasis.prices import Densities, Extent, PriceSettings, PriceTable, densities, price_table
from trainmaster.policies.oasis.schedule import Offer, SearchLimits, best_schedule


class RejectionReason(StrEnum):
    """Why no schedule was committed."""

    HORIZON = "horizon"  # even all N workers from arrival on are too slow for the horizon
    CAPACITY = "capacity"  # what is not yet committed cannot serve the work before the horizon
    PRICE = "price"  # it could run, but costs at least what it is worth


@dataclass(frozen=True)
class Rejection:
    """What a rejected job is told.

    `price_factor`: prices multiplied by anything below this would have admitted it (below 1).
    `grace_slots`: the least number of slots by which its utility would have to wait longer; None: no delay
    helps.
    """

    reason: RejectionReason
    price_factor: float | None
    grace_slots: int | None


@dataclass(frozen=True)
class Decision:
    """The answer to one arrival. `payoff` is None when the job has no feasible schedule at all."""

    job_id: str
    schedule: Schedule | None
    payoff: float | None
    utility: float
    cost: float
    grain_worker_slots: float
    exact: bool
    alpha: float
    rejection: Rejection | None

    @property
    def admitted(self) -> bool:
        return self.schedule is not None


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
        amounts = [amount * slots for demand, slots in roles for amount in demand]
        totals = [sum(demand) for demand, _ in roles]
        extent = Extent(
            job.utility.log_value(horizon - job.arrival),
            (math.log(job.worker_slots), math.log(job.ps_slots)),
            (_log(totals[0]), _log(totals[1])),
        )
        return Population([*self.densities, densities(ln_best, amounts)], [*self.extents, extent])

    def prices(self, cluster: Cluster, horizon: int, settings: PriceSettings) -> PriceTable:
        hosts = np.array([cluster.hosts_workers, cluster.hosts_ps])
        supply = [cluster.capacity[role].sum() * horizon for role in hosts]
        return price_table(
            self.densities, len(cluster.resources), hosts.T, settings, self.extents, (supply[0], supply[1])
        )


def _log(amount: float) -> float:
    return math.log(amount) if amount > 0 else -math.inf


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

    def offer(self, job: AdmissionJob) -> Decision:
        """Decide about one arrival and commit its schedule if it is admitted."""
        table = self.prices_for(job)
        self.seen = self.seen.including(job, self.horizon)
        offer = best_schedule(job, table, self.cluster, self.used, self.limits)
        if offer.schedule is not None and offer.payoff > 0:
            commit(self.used, job, offer.schedule)
            return Decision(
                job.id, offer.schedule, offer.payoff, offer.utility, offer.cost, offer.grain_worker_slots,
                offer.exact, table.alpha, None,
            )  # fmt: skip
        payoff = offer.payoff if offer.schedule is not None else None
        rejection = explain_rejection(job, offer, self.horizon)
        return Decision(
            job.id, None, payoff, 0.0, 0.0, offer.grain_worker_slots, offer.exact, table.alpha, rejection
        )  # fmt: skip


def commit(used: FloatArray, job: AdmissionJob, schedule: Schedule, sign: float = 1.0) -> None:
    """Add a schedule to the commitments (`sign` -1 takes it back)."""
    worker, ps = sign * np.asarray(job.worker_demand), sign * np.asarray(job.server_demand)
    for slot, server, count in schedule.workers:
        used[slot, server] += count * worker
    for slot, server, count in schedule.servers:
        used[slot, server] += count * ps


def explain_rejection(job: AdmissionJob, offer: Offer, horizon: int) -> Rejection:
    """From the least cost of every end slot: the price factor and the grace that would have made mu
    positive.
    """
    ends = np.flatnonzero(np.isfinite(offer.cost_by_end))
    if ends.size == 0:
        late = job.arrival + job.fewest_slots > horizon
        return Rejection(RejectionReason.HORIZON if late else RejectionReason.CAPACITY, None, None)
    costs = offer.cost_by_end[ends]
    values = job.utility.values(ends.astype(np.float64))
    with np.errstate(divide="ignore"):
        factor = float(np.max(np.where(costs > 0, values / np.where(costs > 0, costs, 1.0), 0.0)))
    if offer.cost > 0:
        # The schedule found may be cheaper than its DP cost, when trimmed.
        factor = max(factor, offer.utility / offer.cost)
    return Rejection(RejectionReason.PRICE, factor, _least_grace(job, ends, costs))


def _least_grace(job: AdmissionJob, ends: np.ndarray, costs: FloatArray) -> int | None:
    """The least whole delay g with f(max(0, age - g)) > cost for some end slot; f(age - g) rises with g:
    bisect.
    """
    ages = ends.astype(np.float64)

    def helps(grace: int) -> bool:
        return bool((job.utility.values(np.maximum(ages - grace, 0.0)) > costs).any())

    low, high = 0, math.ceil(ages.max())
    if not helps(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if helps(middle) else (middle + 1, high)
    return low

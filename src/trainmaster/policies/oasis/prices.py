"""Dual prices p = L (U/L)^(used/capacity), in log space, and the constants L and U they rest on.

Two rules give the constants from a population of jobs:

`paper`    U1^r = max_i f_i(best) / w_i^r: one worker-slot on a full server costs more than any job is
           worth. L1 = min_i f_i(T - a_i) / (ceil(W_i) sum_r w_i^r) / (4 eta1), one value for all resources,
           with 1/eta1 = min_i ceil(W_i) sum_r w_i^r / (T sum_h sum_r c_h^r); L2, U2 likewise with s and the
           PS servers.
`density`  (default) In utility per unit of resource and slot, density_i^r = f_i(best) / (slots_i w_i^r),
           slots_i being the worker-slots (PS-slots) of the whole job: U^r = `scale` * max_i density_i^r,
           about where the best job breaks even, and L^r = `low` / K * min_i density_i^r with K the number
           of priced resources of both roles, so that the least dense job seen keeps 1 - `low` of its
           utility in an idle cluster. Capacity is checked by the placement itself, so U need not keep jobs
           off full servers by price; U/L loses the factor W, and L no longer rests on f_i(T - a_i), which
           underflows.

Under either rule the floor keeps ln(U/L) at most `spread_max`: with a vanishing L prices stay near zero
until a server is full, and the algorithm degenerates into "admit what fits". f_i(best) is the utility with
all N workers throughout. Resources a job does not demand are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from trainmaster.model.utility import FloatArray
from trainmaster.policies.oasis.formulation import AdmissionJob, Cluster, Role

PriceRule = Literal["density", "paper"]


@dataclass(frozen=True)
class PriceSettings:
    """How constants follow from a population. `spread_max` is the floor on L, as the largest ln(U/L)."""

    rule: PriceRule = "density"
    scale: float = 1.0
    low: float = 0.5
    spread_max: float = 5.5


PAPER_SETTINGS = PriceSettings(rule="paper", scale=1.0, low=1.0, spread_max=math.inf)


@dataclass(frozen=True)
class RoleExtremes:
    """Running extremes of one role (workers or PS) over the jobs seen, in logarithms."""

    ln_best_per_unit: tuple[float, ...]  # max_i ln f_i(best) - ln w_i^r
    ln_best_per_slot: tuple[float, ...]  # max_i ln f_i(best) - ln(slots_i w_i^r)
    ln_least_per_slot: tuple[float, ...]  # min_i ln f_i(best) - ln(slots_i w_i^r)
    ln_worst_per_slot: float  # min_i ln f_i(T - a_i) - ln(slots_i sum_r w_i^r)
    ln_least_total: float  # min_i ln(slots_i sum_r w_i^r)

    @staticmethod
    def empty(resources: int) -> RoleExtremes:
        nothing = (-math.inf,) * resources
        return RoleExtremes(nothing, nothing, (math.inf,) * resources, math.inf, math.inf)

    def including(self, demand: tuple[float, ...], slots: int, ln_best: float, ln_worst: float) -> RoleExtremes:
        total = sum(demand)
        if total <= 0.0:
            return self
        ln_slots = math.log(slots)
        ln_demand = [math.log(amount) if amount > 0 else math.inf for amount in demand]
        return RoleExtremes(
            tuple(max(old, ln_best - ln) for old, ln in zip(self.ln_best_per_unit, ln_demand, strict=True)),
            tuple(max(old, ln_best - ln - ln_slots) for old, ln in zip(self.ln_best_per_slot, ln_demand, strict=True)),
            tuple(
                min(old, ln_best - ln - ln_slots) if ln < math.inf else old
                for old, ln in zip(self.ln_least_per_slot, ln_demand, strict=True)
            ),
            min(self.ln_worst_per_slot, ln_worst - ln_slots - math.log(total)),
            min(self.ln_least_total, ln_slots + math.log(total)),
        )


@dataclass(frozen=True)
class Population:
    """What the constants need to know of the jobs seen so far (or declared); grows one job at a time."""

    workers: RoleExtremes
    ps: RoleExtremes
    jobs: int = 0

    @staticmethod
    def empty(resources: int) -> Population:
        return Population(RoleExtremes.empty(resources), RoleExtremes.empty(resources))

    @staticmethod
    def of(jobs: Iterable[AdmissionJob], horizon: int, resources: int) -> Population:
        population = Population.empty(resources)
        for job in jobs:
            population = population.including(job, horizon)
        return population

    def including(self, job: AdmissionJob, horizon: int) -> Population:
        """With one more job. Jobs that can never be worth anything teach nothing about prices."""
        fewest = job.fewest_slots
        ln_best = job.utility.log_value(fewest - 1)
        if ln_best == -math.inf or job.arrival + fewest > horizon:
            return replace(self, jobs=self.jobs + 1)
        ln_worst = job.utility.log_value(horizon - job.arrival)
        ps_slots = ps_slots_at_full_speed(job)
        return Population(
            self.workers.including(job.worker_demand, job.worker_slots, ln_best, ln_worst),
            self.ps.including(job.server_demand, ps_slots, ln_best, ln_worst),
            self.jobs + 1,
        )


def ps_slots_at_full_speed(job: AdmissionJob) -> int:
    """PS-slots of a run with N workers in every slot but the last, which has what is left."""
    whole, rest = divmod(job.worker_slots, job.chunks)
    return whole * job.servers_for(job.chunks) + job.servers_for(rest)


@dataclass(frozen=True)
class PriceTable:
    """ln L and ln U - ln L per server and resource; `alpha` of the bound 2 alpha."""

    ln_low: FloatArray
    ln_spread: FloatArray
    alpha: float

    def prices(self, used: FloatArray, capacity: FloatArray) -> FloatArray:
        """Unit prices for commitments `used` (... x servers x resources)."""
        fraction = np.divide(used, capacity, out=np.zeros_like(used), where=capacity > 0)
        return np.exp(self.ln_low + self.ln_spread * fraction)


def price_table(population: Population, cluster: Cluster, horizon: int, settings: PriceSettings) -> PriceTable:
    """The constants of every server; a server of both roles takes the lower L and the higher U of the two."""
    totals = [cluster.capacity[hosts].sum() for hosts in (cluster.hosts_workers, cluster.hosts_ps)]
    priced = sum(ln > -math.inf for role in (population.workers, population.ps) for ln in role.ln_best_per_slot)
    low_worker, high_worker = _constants(population.workers, totals[0] * horizon, priced, settings)
    low_ps, high_ps = _constants(population.ps, totals[1] * horizon, priced, settings)
    shape = (len(cluster.servers), len(cluster.resources))
    ln_low, ln_spread = np.zeros(shape), np.zeros(shape)
    alpha = 1.0
    for row, server in enumerate(cluster.servers):
        if server.role is Role.WORKER:
            low, high = low_worker, high_worker
        elif server.role is Role.PS:
            low, high = low_ps, high_ps
        else:
            low, high = np.minimum(low_worker, low_ps), np.fmax(high_worker, high_ps)
        # A resource nobody seen demands has no U yet: its price is zero.
        known = np.isfinite(high) & np.isfinite(low)
        ln_low[row] = np.where(known, low, -np.inf)
        ln_spread[row] = np.where(known, np.maximum(high - np.where(known, low, 0.0), 0.0), 0.0)
        alpha = max(alpha, float(ln_spread[row].max(initial=0.0)))
    return PriceTable(ln_low, ln_spread, alpha)


def _constants(
    role: RoleExtremes, supply: float, priced: int, settings: PriceSettings
) -> tuple[FloatArray, FloatArray]:
    """(ln L^r, ln U^r) of one role; `supply` is T sum_h sum_r c_h^r, `priced` is K."""
    if settings.rule == "paper":
        high = np.array(role.ln_best_per_unit)
        if role.ln_worst_per_slot == math.inf or supply <= 0:
            return np.full_like(high, np.inf), high
        ln_inverse_eta = role.ln_least_total - math.log(supply)
        ln_low = -math.log(4.0) + ln_inverse_eta + role.ln_worst_per_slot
        low = np.full_like(high, ln_low)
    else:
        high = np.array(role.ln_best_per_slot) + math.log(settings.scale)
        low = np.array(role.ln_least_per_slot) + math.log(settings.low / max(priced, 1))
    return np.fmax(low, high - settings.spread_max), high

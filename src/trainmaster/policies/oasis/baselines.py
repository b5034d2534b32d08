"""Baselines on the OASiS formulation: `fifo` and `rrh` here, both with a fixed number of workers per job.

A job with n workers holds them, and their PS, on the same servers for ceil(W/n) slots from its start. No
baseline
starts a job that can no longer complete before the horizon: its resources are left to the others. `drf` and
`dorm` re-divide the cluster in every slot and live in `sharing_baselines.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trainmaster.model.utility import FloatArray
from trainmaster.policies.oasis.cost import Gang
from trainmaster.policies.oasis.formulation import AdmissionJob, Cluster, Instance, Schedule
from trainmaster.policies.oasis.quotes import gang_costs

WORKERS_DRAWN_MAX = 30


@dataclass(frozen=True)
class BaselineSettings:
    """Parameters of the baselines; each uses its own.

    workers: the fixed number for every job; None: drawn uniformly from 1..30 by `seed`, as in the paper's
    study.
    theta1, theta2: Dorm's bounds on fairness loss and on the share of running jobs it may adjust.
    alpha, discount, threshold: RRH's weight of reward against risk, discount rate per slot, least slack to
    admit.
    """

    workers: int | None = None
    seed: int = 0
    theta1: float = 0.1
    theta2: float = 0.1
    alpha: float = 0.5
    discount: float = 0.01
    threshold: float = 0.0


@dataclass
class Waiting:
    """A job that has arrived and not started: with its workers, their PS, and the slots it will hold them."""

    job: AdmissionJob
    workers: int
    ps: int
    run_slots: int

    def utility_if_started(self, slot: int) -> float:
        return self.job.utility.value(slot + self.run_slots - 1 - self.job.arrival)


Order = Callable[[list[Waiting], int], list[Waiting]]
Gate = Callable[[Waiting, list[Waiting], int], bool]


def run_baseline(
    instance: Instance, policy: str, settings: BaselineSettings
) -> tuple[dict[str, Schedule], dict[str, int]]:
    """Schedules of the jobs that complete, and the worker-slots left of those that were started and did
    not.
    """
    from trainmaster.policies.oasis.sharing_baselines import run_dorm, run_drf

    workers = fixed_workers(instance, settings)
    if policy == "fifo":
        return run_fixed(instance, workers, _arrival_order, _admit_all, skip_blocked=False), {}
    if policy == "rrh":
        rule = RiskReward(instance, settings)
        return run_fixed(instance, workers, rule.order, rule.admits, skip_blocked=True), {}
    if policy == "drf":
        return run_drf(instance, workers)
    if policy == "dorm":
        return run_dorm(instance, settings.theta1, settings.theta2)
    raise ValueError(f"no baseline '{policy}'")


def fixed_workers(instance: Instance, settings: BaselineSettings) -> dict[str, int]:
    """Workers of each job: the given or drawn number, at most N and at most what the empty cluster can
    host.
    """
    rng = np.random.Generator(np.random.PCG64(settings.seed))
    chosen: dict[str, int] = {}
    empty = np.zeros_like(instance.cluster.capacity)
    for job in sorted(instance.jobs, key=lambda job: job.id):
        drawn = int(rng.integers(1, WORKERS_DRAWN_MAX + 1))
        wanted = min(job.chunks, settings.workers or drawn)
        while wanted > 1 and place(job, wanted, instance.cluster, empty) is None:
            wanted -= 1
        chosen[job.id] = wanted
    return chosen


def place(job: AdmissionJob, workers: int, cluster: Cluster, used: FloatArray) -> tuple[np.ndarray, np.ndarray] | None:
    """First-fit counts per server of `workers` workers and their PS in one slot, or None if they do not
    fit.
    """
    costs, gang = gang_costs(job, cluster, used[None]), Gang(workers, job.servers_for(workers))
    free_of_charge = np.full_like(cluster.capacity, -np.inf)
    costs.price(free_of_charge, np.zeros_like(cluster.capacity), workers, gang.servers)
    for workers_first in (True, False) if cluster.shared else (True,):
        if costs.place(0, gang, workers_first) < math.inf:
            return np.array(costs.on_workers), np.array(costs.on_ps)
    return None


def run_fixed(
    instance: Instance, workers: dict[str, int], order: Order, admits: Gate, *, skip_blocked: bool
) -> dict[str, Schedule]:
    """Slot by slot: admit arrivals, then start waiting jobs in `order`; a blocked one blocks unless
    `skip_blocked`.
    """
    cluster = instance.cluster
    used = np.zeros((instance.horizon, *cluster.capacity.shape))
    arrivals = instance.arrivals()
    waiting: list[Waiting] = []
    schedules: dict[str, Schedule] = {}
    for slot in range(instance.horizon):
        while arrivals and arrivals[0].arrival <= slot:
            job = arrivals.pop(0)
            count = workers[job.id]
            candidate = Waiting(job, count, job.servers_for(count), -(-job.worker_slots // count))
            if slot + candidate.run_slots <= instance.horizon and admits(candidate, waiting, slot):
                waiting.append(candidate)
        waiting = [item for item in waiting if slot + item.run_slots <= instance.horizon]
        for item in order(waiting, slot):
            placement = place(item.job, item.workers, cluster, used[slot])
            if placement is None:
                if skip_blocked:
                    continue
                break
            schedules[item.job.id] = _hold(item, slot, placement, used)
            waiting.remove(item)
    return schedules


def _hold(item: Waiting, start: int, placement: tuple[np.ndarray, np.ndarray], used: FloatArray) -> Schedule:
    """Commit the run: the same workers and PS in every slot, whole to the end."""
    on_workers, on_ps = placement
    job = item.job
    held = np.outer(on_workers, job.worker_demand) + np.outer(on_ps, job.server_demand)
    used[start : start + item.run_slots] += held
    worker_rows: list[tuple[int, int, int]] = []
    ps_rows: list[tuple[int, int, int]] = []
    for slot in range(start, start + item.run_slots):
        worker_rows += [(slot, int(s), int(on_workers[s])) for s in np.flatnonzero(on_workers)]
        ps_rows += [(slot, int(s), int(on_ps[s])) for s in np.flatnonzero(on_ps)]
    return Schedule(tuple(worker_rows), tuple(ps_rows))


def _arrival_order(waiting: list[Waiting], slot: int) -> list[Waiting]:  # noqa: ARG001 - same in every slot
    return list(waiting)


def _admit_all(candidate: Waiting, waiting: list[Waiting], slot: int) -> bool:  # noqa: ARG001
    return True


class RiskReward:
    """FirstReward of Irwin, Grit and Chase (HPDC 2004), with the utility's true decline in place of a
    linear decay.

    reward_i = (alpha PV_i - (1 - alpha) cost_i) / run_i;  PV_i = yield_i / (1 + discount run_i);
    cost_i = share_i * sum over other waiting jobs j of what j loses if it starts run_i slots later.
    The original prices one machine; here job i delays others only by the share of the cluster it holds.
    Admission: slack_i = (PV_i - cost_i) / (loss of i per slot of delay) must exceed the threshold.
    """

    def __init__(self, instance: Instance, settings: BaselineSettings) -> None:
        self.settings = settings
        cluster = instance.cluster
        self._horizon = instance.horizon
        self._values: dict[str, FloatArray] = {}
        self._worker_total = cluster.capacity[cluster.hosts_workers].sum(axis=0)
        self._ps_total = cluster.capacity[cluster.hosts_ps].sum(axis=0)

    def order(self, waiting: list[Waiting], slot: int) -> list[Waiting]:
        worth_it = [item for item in waiting if item.utility_if_started(slot) > 0]
        rewards = {item.job.id: self._reward(item, worth_it, slot) for item in worth_it}
        return sorted(worth_it, key=lambda item: (-rewards[item.job.id], item.job.arrival, item.job.id))

    def admits(self, candidate: Waiting, waiting: list[Waiting], slot: int) -> bool:
        present, risk = self._present_value(candidate, slot), self._risk(candidate, waiting, slot)
        decline = candidate.utility_if_started(slot) - candidate.utility_if_started(slot + 1)
        slack = (present - risk) / decline if decline > 0 else math.copysign(math.inf, present - risk)
        return bool(slack > self.settings.threshold)

    def _reward(self, item: Waiting, waiting: list[Waiting], slot: int) -> float:
        alpha = self.settings.alpha
        value = alpha * self._present_value(item, slot) - (1 - alpha) * self._risk(item, waiting, slot)
        return value / item.run_slots

    def _present_value(self, item: Waiting, slot: int) -> float:
        return item.utility_if_started(slot) / (1 + self.settings.discount * item.run_slots)

    def _risk(self, item: Waiting, waiting: list[Waiting], slot: int) -> float:
        others = [self._values_of(other) for other in waiting if other is not item]
        lost = sum(values[slot] - values[slot + item.run_slots] for values in others)
        return self._share(item) * float(lost)

    def _values_of(self, item: Waiting) -> FloatArray:
        """Utility by start slot, up to two horizons ahead; asked for every pair of jobs."""
        if item.job.id not in self._values:
            starts = np.arange(2 * self._horizon + 1, dtype=np.float64)
            ages = np.maximum(starts + item.run_slots - 1 - item.job.arrival, 0.0)
            self._values[item.job.id] = item.job.utility.values(ages)
        return self._values[item.job.id]

    def _share(self, item: Waiting) -> float:
        """Dominant share of the cluster that the job holds while it runs."""
        worker = np.divide(
            np.asarray(item.job.worker_demand) * item.workers, self._worker_total,
            out=np.zeros_like(self._worker_total), where=self._worker_total > 0,
        )  # fmt: skip
        ps = np.divide(
            np.asarray(item.job.server_demand) * item.ps, self._ps_total,
            out=np.zeros_like(self._ps_total), where=self._ps_total > 0,
        )  # fmt: skip
        return float(max(worker.max(initial=0.0), ps.max(initial=0.0)))

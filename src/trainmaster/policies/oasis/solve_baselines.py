"""Baselines on admission instances: `fifo` and `rrh` with a fixed number of workers, `drf` and `dorm` that re-divide.

fifo, rrh: a job with n workers holds them, and their PS, on the same servers for ceil(W/n) slots from its start. No job
starts that can no longer complete before the horizon: its resources are left to the others.

drf, dorm: every job is served and its workers may change from slot to slot. A job counts as admitted when it completes
before the horizon; what one that does not complete has used is lost. The rules of RRH and Dorm are those of the
engine's policies (`rrh`, `dorm_program`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from trainmaster.model.utility import FloatArray
from trainmaster.policies.oasis.dorm_program import Division, divide
from trainmaster.policies.oasis.instance.cost import Gang
from trainmaster.policies.oasis.instance.formulation import AdmissionJob, Cluster, Instance, Schedule
from trainmaster.policies.oasis.quotes import gang_costs
from trainmaster.policies.oasis.rrh import Candidate, RiskReward

WORKERS_DRAWN_MAX = 30
Placement = tuple[np.ndarray, np.ndarray]
"""Workers and PS by server."""


@dataclass(frozen=True)
class BaselineSettings:
    """Parameters of the baselines; each uses its own.

    workers: the fixed number for every job; None: drawn uniformly from 1..30 by `seed`, as in the paper's study.
    theta1, theta2: Dorm's bounds on fairness loss and on the share of running jobs it may adjust.
    alpha, discount, threshold: RRH's weight of reward against risk, discount rate per slot, least slack to admit.
    """

    workers: int | None = None
    seed: int = 0
    theta1: float = 0.1
    theta2: float = 0.1
    alpha: float = 0.5
    discount: float = 0.01
    threshold: float = 0.0


def run_baseline(
    instance: Instance, policy: str, settings: BaselineSettings
) -> tuple[dict[str, Schedule], dict[str, int]]:
    """Schedules of the jobs that complete, and the worker-slots left of those that were started and did not."""
    if policy == "dorm":
        return _run_shared(instance, lambda runs: _dorm(runs, instance.cluster, settings), every_slot=False)
    workers = _fixed_workers(instance, settings)
    if policy == "drf":
        return _run_shared(instance, lambda runs: _drf(runs, instance.cluster, workers), every_slot=True)
    rule = RiskReward(1.0, settings.alpha, settings.discount, settings.threshold) if policy == "rrh" else None
    return _run_fixed(instance, workers, rule), {}


def _place(job: AdmissionJob, workers: int, cluster: Cluster, used: FloatArray) -> Placement | None:
    """First-fit counts per server of `workers` workers and their PS in one slot, or None if they do not fit."""
    costs, gang = gang_costs(job, cluster, used[None]), Gang(workers, job.servers_for(workers))
    free_of_charge = np.full_like(cluster.capacity, -np.inf)
    costs.price(free_of_charge, np.zeros_like(cluster.capacity), workers, gang.servers)
    for workers_first in (True, False) if cluster.shared else (True,):
        if costs.place(0, gang, workers_first) < math.inf:
            return np.array(costs.on_workers), np.array(costs.on_ps)
    return None


@dataclass(eq=False)
class _Run:
    """A job in the system: what is left of its work, where it runs, and where it has run."""

    job: AdmissionJob
    left: int
    placement: Placement | None = None
    rows: tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]] = field(default_factory=lambda: ([], []))

    def serve(self, time_slot: int) -> None:
        """Use `placement` for one slot."""
        if self.placement is not None:
            for rows, taken in zip(self.rows, self.placement, strict=True):
                rows += [(time_slot, int(s), int(taken[s])) for s in np.flatnonzero(taken)]
            self.left -= int(self.placement[0].sum())

    @property
    def workers(self) -> int:
        return 0 if self.placement is None else int(self.placement[0].sum())

    def held(self) -> FloatArray:
        assert self.placement is not None
        on_workers, on_ps = self.placement
        return np.outer(on_workers, self.job.worker_demand) + np.outer(on_ps, self.job.server_demand)

    def schedule(self) -> Schedule:
        return Schedule(tuple(self.rows[0]), tuple(self.rows[1]))


# -- a fixed number of workers ---------------------------------------------------------------------------


def _fixed_workers(instance: Instance, settings: BaselineSettings) -> dict[str, int]:
    """Workers of each job: the given or drawn number, at most N and at most what the empty cluster can host."""
    rng = np.random.Generator(np.random.PCG64(settings.seed))
    chosen: dict[str, int] = {}
    empty = np.zeros_like(instance.cluster.capacity)
    for job in sorted(instance.jobs, key=lambda job: job.id):
        drawn = int(rng.integers(1, WORKERS_DRAWN_MAX + 1))
        wanted = min(job.chunks, settings.workers or drawn)
        while wanted > 1 and _place(job, wanted, instance.cluster, empty) is None:
            wanted -= 1
        chosen[job.id] = wanted
    return chosen


def _run_fixed(instance: Instance, workers: dict[str, int], rule: RiskReward | None) -> dict[str, Schedule]:
    """Slot by slot: admit arrivals, then start waiting jobs; without a rule in order of arrival, and a job that does
    not fit blocks those behind it."""
    cluster, jobs = instance.cluster, instance.jobs
    used = np.zeros((instance.horizon, *cluster.capacity.shape))
    run_slots = [-(-job.worker_slots // workers[job.id]) for job in jobs]
    arrivals = sorted(range(len(jobs)), key=lambda i: jobs[i].arrival)
    waiting: list[int] = []
    schedules: dict[str, Schedule] = {}
    shares = [_dominant_share(job, workers[job.id], cluster) for job in jobs]

    def candidate(i: int) -> Candidate:
        # The utility counts from the last slot, hence - 1.
        age = time_slot - jobs[i].arrival - 1
        return Candidate(i, jobs[i].id, jobs[i].utility, age, run_slots[i], shares[i])

    for time_slot in range(instance.horizon):
        while arrivals and jobs[arrivals[0]].arrival <= time_slot:
            i = arrivals.pop(0)
            in_time = time_slot + run_slots[i] <= instance.horizon
            if in_time and (rule is None or rule.slack(candidate(i), [*map(candidate, waiting)])[1] > rule.threshold):
                waiting.append(i)
        waiting = [i for i in waiting if time_slot + run_slots[i] <= instance.horizon]
        order = list(waiting)
        if rule is not None:
            worth_it = [c for c in map(candidate, waiting) if c.value() > 0]
            order = [c.key for c in rule.ordered(worth_it, worth_it)]
        for i in order:
            placement = _place(jobs[i], workers[jobs[i].id], cluster, used[time_slot])
            if placement is not None:
                run = _Run(jobs[i], jobs[i].worker_slots, placement)
                for t in range(time_slot, time_slot + run_slots[i]):
                    run.serve(t)
                used[time_slot : time_slot + run_slots[i]] += run.held()
                schedules[jobs[i].id] = run.schedule()
                waiting.remove(i)
            elif rule is None:
                break
    return schedules


def _dominant_share(job: AdmissionJob, workers: int, cluster: Cluster) -> float:
    """What of the cluster the job holds while it runs."""
    share = 0.0
    for demand, count, hosts in (
        (job.worker_demand, workers, cluster.hosts_workers),
        (job.server_demand, job.servers_for(workers), cluster.hosts_ps),
    ):
        total = cluster.capacity[hosts].sum(axis=0)
        parts = np.divide(np.asarray(demand) * count, total, out=np.zeros_like(total), where=total > 0)
        share = max(share, float(parts.max(initial=0.0)))
    return share


# -- the cluster divided again -----------------------------------------------------------------------------


def _run_shared(
    instance: Instance, redivide: Callable[[list[_Run]], None], *, every_slot: bool
) -> tuple[dict[str, Schedule], dict[str, int]]:
    """Jobs present, in order of arrival; those that can no longer complete, even with N workers, leave. The cluster is
    divided anew in every slot, or when somebody came or left."""
    arrivals = instance.arrivals()
    present: list[_Run] = []
    done: list[_Run] = []
    lost: list[_Run] = []
    changed = False
    for time_slot in range(instance.horizon):
        while arrivals and arrivals[0].arrival <= time_slot:
            job = arrivals.pop(0)
            present.append(_Run(job, job.worker_slots))
            changed = True
        late = [run for run in present if run.left > (instance.horizon - time_slot) * run.job.chunks]
        lost += late
        present = [run for run in present if run not in late]
        if present and (every_slot or changed or late):
            redivide(present)
            changed = False
        for run in present:
            run.serve(time_slot)
        ended = [run for run in present if run.left <= 0]
        done += ended
        present = [run for run in present if run not in ended]
        changed = changed or bool(ended)
    return {run.job.id: run.schedule() for run in done}, {run.job.id: run.left for run in [*lost, *present]}


def _division(runs: list[_Run], cluster: Cluster, most: list[int]) -> Division:
    return Division(
        capacity=cluster.capacity,
        hosts=np.array([cluster.hosts_workers, cluster.hosts_ps]),
        worker=np.array([run.job.worker_demand for run in runs]).reshape(len(runs), -1),
        ps=np.array([run.job.server_demand for run in runs]).reshape(len(runs), -1),
        ps_per_worker=np.array([run.job.worker_mb_per_slot / run.job.server_mb_per_slot for run in runs]),
        now=np.array([run.workers for run in runs]),
        least=np.ones(len(runs), np.int64),
        most=np.array(most, np.int64),
    )


def _drf(runs: list[_Run], cluster: Cluster, workers: dict[str, int]) -> None:
    """Progressive filling; a job asks for its fixed number of workers and may get fewer."""
    filling = _division(runs, cluster, [min(workers[run.job.id], run.left) for run in runs]).fair()
    for run, *placement in zip(runs, np.asarray(filling.on_workers), np.asarray(filling.on_ps), strict=True):
        run.placement = (placement[0], placement[1]) if placement[0].any() else None


def _dorm(runs: list[_Run], cluster: Cluster, settings: BaselineSettings) -> None:
    """New counts and placements; jobs whose count stays keep their place, and wait when not even one worker fits."""
    first = np.asarray(_division(runs, cluster, [1] * len(runs)).fair().on_workers)
    taken = [run for run, workers in zip(runs, first, strict=True) if workers.any()]
    most = [min(run.job.chunks, run.left) for run in taken]
    counts = divide(_division(taken, cluster, most), settings.theta1, settings.theta2)
    used = np.zeros_like(cluster.capacity)
    moving: list[tuple[_Run, int]] = []
    for run, count in zip(taken, counts, strict=True):
        if run.placement is not None and run.workers == count:
            used += run.held()
        else:
            moving.append((run, count))
    for run in runs:
        if run not in taken or any(run is moved for moved, _ in moving):
            run.placement = None
    for run, count in moving:
        # Pooled capacity may promise more than single servers can host: take what fits, by bisection.
        low, high = 0, count
        while low < high:
            middle = (low + high + 1) // 2
            placement = _place(run.job, middle, cluster, used)
            if placement is None:
                high = middle - 1
            else:
                low, run.placement = middle, placement
        if run.placement is not None:
            used += run.held()

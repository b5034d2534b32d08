"""Dominant resource fairness (Ghodsi et al., NSDI'11) over GPUs, CPU and memory; gangs and elastic jobs."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numba import njit

from trainmaster.model.errors import InputError
from trainmaster.model.plan import Plan
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import MS_PER_S
from trainmaster.policies.feasible import feasible_when_empty
from trainmaster.policies.pools import (
    capacity,
    demands,
    fastest_with_room,
    fits,
    free_pools,
    sizes_when_giving_way,
    take,
)
from trainmaster.policies.registry import register
from trainmaster.policies.sizing import Ints, Sizes, apply_sizes, resizable_rows, smallest_servers


@register("drf", fair=True)
@dataclass(frozen=True)
class DominantResourceFairness:
    """The next gang or bundle (worker + server) goes to the team and job with the smallest dominant share.

    What runs is not stopped; elastic jobs are filled up again from their minimum at every decision. A job
    that has waited `patience_s` is served before all others, so that large gangs do not starve.
    """

    patience_s: float = field(
        default=3600.0, metadata={"help": "after waiting this long nothing passes a job any more; 0: never"}
    )
    own_rounds = False

    def __post_init__(self) -> None:
        if self.patience_s < 0:
            raise InputError(f"option 'patience_s' of policy 'drf' is {self.patience_s}", "0 or more")

    @property
    def fair(self) -> bool:
        return self.patience_s > 0

    def decide(self, view: Snapshot) -> Plan:
        waiting = view.waiting_rows()
        first = self._impatient(view, waiting)
        sizes = _fill(view, waiting, first)
        draft = view.draft()
        elastic = np.flatnonzero(resizable_rows(view))
        elastic = elastic[np.argsort(view.jobs.arrival[elastic])]
        apply_sizes(draft, sizes, np.concatenate([elastic, waiting]), first)
        return draft.plan(wake_at_ms=self._next_impatience_ms(view, waiting))

    def _impatient(self, view: Snapshot, waiting: Ints) -> Ints:
        if self.patience_s == 0 or len(waiting) == 0:
            return waiting[:0]
        jobs = view.jobs
        waited_ms = view.now_ms - jobs.waiting_since_ms[waiting]
        late = waiting[waited_ms >= self.patience_s * MS_PER_S]
        if len(late) == 0:
            return late
        late = late[feasible_when_empty(view, late)]
        return late[np.lexsort((jobs.arrival[late], jobs.waiting_since_ms[late]))]

    def _next_impatience_ms(self, view: Snapshot, waiting: Ints) -> int | None:
        if self.patience_s == 0 or len(waiting) == 0:
            return None
        due = view.jobs.waiting_since_ms[waiting] + int(np.ceil(self.patience_s * MS_PER_S))
        due = due[due > view.now_ms]
        return int(due.min()) if len(due) else None


def _fill(view: Snapshot, waiting: Ints, first: Ints) -> Sizes:
    """Progressive filling by number: sizes for the waiting and the elastic jobs."""
    jobs = view.jobs
    n = len(jobs)
    resizable = resizable_rows(view)
    start_servers = smallest_servers(view)
    need, pools = demands(view), free_pools(view)
    workers, servers, kind = sizes_when_giving_way(view, resizable, start_servers, need, pools)
    may_start = np.zeros(n, np.bool_)
    may_start[waiting] = True
    _, group = np.unique(jobs.entity, return_inverse=True)
    names = [jobs.entities[e] for e in np.unique(jobs.entity).tolist()]
    entity_weight = np.array([view.entity_weights.get(name, 1.0) for name in names])
    fill_bundles(
        pools, need, capacity(view), workers, servers, kind, may_start, resizable, jobs.workers_min,
        jobs.workers_max, start_servers, jobs.servers_max, jobs.allowed, jobs.throughput,
        group.astype(np.int64), np.maximum(entity_weight, 1e-9), np.maximum(jobs.weight, 1e-9),
        jobs.arrival, first,
    )  # fmt: skip
    return Sizes(workers, servers, kind)


@njit(cache=True)
def _use(need, row, workers, servers, resource):
    if resource == 0:
        return workers * need.gpu[row]
    if resource == 1:
        return workers * need.cpu[row] + servers * need.server_cpu[row]
    return workers * need.mem[row] + servers * need.server_mem[row]


@njit(cache=True)
def fill_bundles(
    pools, need, total, workers, servers, kind, may_start, may_grow, workers_min, workers_max, start_servers,
    servers_max, allowed, throughput, group, group_weight, weight, arrival, first,
):  # fmt: skip
    """Grant gangs and bundles one at a time, always to the smallest weighted dominant share.

    The team with the smallest share comes first, then its job with the smallest; the earlier arrival breaks
    ties. What does not fit is passed over, since what is left only shrinks. Jobs in `first` come before.
    """
    n, n_groups = workers.size, group_weight.size
    group_use = np.zeros((n_groups, 3))
    for row in range(n):
        for resource in range(3):
            group_use[group[row], resource] += _use(need, row, workers[row], servers[row], resource)
    closed = np.zeros(allowed.shape[1], np.bool_)
    open_ = may_start | may_grow
    for k in range(first.size):
        row = first[k]
        best = fastest_with_room(pools, need, row, workers_min[row], start_servers[row], allowed, throughput, closed)
        if best < 0:
            for j in range(allowed.shape[1]):
                closed[j] = closed[j] or allowed[row, j]
            # It keeps its place at the head; its target size says that it shall run as soon as it can.
            workers[row], servers[row] = workers_min[row], start_servers[row]
            open_[row] = False
            continue
        take(pools, need, row, best, workers_min[row], start_servers[row])
        workers[row], servers[row], kind[row] = workers_min[row], start_servers[row], best
        may_grow[row] = workers_min[row] < workers_max[row]
        for resource in range(3):
            group_use[group[row], resource] += _use(need, row, workers[row], servers[row], resource)
    job_share = np.zeros(n)
    for row in range(n):
        for resource in range(3):
            used = _use(need, row, workers[row], servers[row], resource)
            job_share[row] = max(job_share[row], used / total[resource] / weight[row])
    while True:
        # The best open job of each group, then the best group that has one.
        head = np.full(n_groups, -1, np.int64)
        for row in range(n):
            if not open_[row]:
                continue
            g = group[row]
            b = head[g]
            if b < 0 or job_share[row] < job_share[b] or (job_share[row] == job_share[b] and arrival[row] < arrival[b]):
                head[g] = row
        chosen = -1
        chosen_share = 0.0
        for g in range(n_groups):
            if head[g] < 0:
                continue
            share = 0.0
            for resource in range(3):
                share = max(share, group_use[g, resource] / total[resource])
            share /= group_weight[g]
            if chosen < 0 or share < chosen_share or (share == chosen_share and arrival[head[g]] < arrival[chosen]):
                chosen, chosen_share = head[g], share
        if chosen < 0:
            return
        row = chosen
        if workers[row] == 0:
            more, more_servers = workers_min[row], start_servers[row]
            k = fastest_with_room(pools, need, row, more, more_servers, allowed, throughput, closed)
            if k < 0:
                open_[row] = False
                continue
            kind[row] = k
        else:
            k = kind[row]
            more = 1
            more_servers = 1 if servers[row] < servers_max[row] else 0
            if workers[row] >= workers_max[row] or closed[k] or not fits(pools, need, row, k, more, more_servers):
                open_[row] = False
                continue
        take(pools, need, row, k, more, more_servers)
        workers[row] += more
        servers[row] += more_servers
        for resource in range(3):
            group_use[group[row], resource] += _use(need, row, more, more_servers, resource)
            used = _use(need, row, workers[row], servers[row], resource)
            job_share[row] = max(job_share[row], used / total[resource] / weight[row])
        if workers[row] >= workers_max[row]:
            open_[row] = False

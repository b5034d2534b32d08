"""Dominant resource fairness (Ghodsi et al., NSDI'11) over GPUs, CPU and memory; gangs and elastic jobs."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from trainmaster.core.arrays import Ints
from trainmaster.model.errors import InputError
from trainmaster.model.plan import Plan
from trainmaster.model.policy import PolicyTraits
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import MS_PER_S
from trainmaster.policies.registry import register
from trainmaster.policies.shared.could_run import could_run
from trainmaster.policies.shared.node_capacity import JobSizes, Room
from trainmaster.policies.shared.pools import capacity, demands, free_pools, sizes_when_giving_way
from trainmaster.policies.shared.progressive_filling import DominantShares
from trainmaster.policies.shared.sizing import Sizes, apply_sizes, resizable_rows, smallest_servers


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

    def __post_init__(self) -> None:
        if self.patience_s < 0:
            raise InputError(f"option 'patience_s' of policy 'drf' is {self.patience_s}", "0 or more")

    @property
    def traits(self) -> PolicyTraits:
        return PolicyTraits(fair=self.patience_s > 0)

    def decide(self, view: Snapshot) -> Plan:
        waiting = view.waiting_rows()
        first = self._impatient(view, waiting)
        sizes = _fill(view, waiting, first)
        builder = view.draft()
        elastic = np.flatnonzero(resizable_rows(view))
        elastic = elastic[np.argsort(view.jobs.arrival[elastic])]
        apply_sizes(builder, sizes, np.concatenate([elastic, waiting]), first)
        return builder.plan(wake_at_ms=self._next_impatience_ms(view, waiting))

    def _impatient(self, view: Snapshot, waiting: Ints) -> Ints:
        if self.patience_s == 0 or len(waiting) == 0:
            return waiting[:0]
        jobs = view.jobs
        waited_ms = view.now_ms - jobs.waiting_since_ms[waiting]
        late = waiting[waited_ms >= self.patience_s * MS_PER_S]
        if len(late) == 0:
            return late
        late = late[could_run(view, late, jobs.workers_min, smallest_servers(view))]
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
    workers, servers, gpu_type = sizes_when_giving_way(view, resizable, start_servers, need, pools)
    may_start = np.zeros(n, np.bool_)
    may_start[waiting] = True
    _, group = np.unique(jobs.entity, return_inverse=True)
    names = [jobs.entities[e] for e in np.unique(jobs.entity).tolist()]
    entity_weight = np.array([view.entity_weights.get(name, 1.0) for name in names])
    sizes = JobSizes(
        workers,
        servers,
        gpu_type,
        jobs.workers_min,
        jobs.workers_max,
        start_servers,
        jobs.servers_max,
        jobs.allowed,
        jobs.throughput,
    )
    shares = DominantShares(
        Room(pools, need),
        sizes,
        capacity(view),
        group.astype(np.int64),
        np.maximum(entity_weight, 1e-9),
        np.maximum(jobs.weight, 1e-9),
        jobs.arrival,
    )
    shares.fill(may_start, resizable, first)
    return Sizes(workers, servers, gpu_type)

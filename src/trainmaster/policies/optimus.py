"""Optimus (Peng et al., EuroSys'18): resources go where they shorten a job most for what they cost."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from trainmaster.model.errors import InputError
from trainmaster.model.plan import Plan
from trainmaster.model.snapshot import Snapshot
from trainmaster.policies.registry import register
from trainmaster.policies.shared import exploring
from trainmaster.policies.shared.marginal_gains import MarginalGains
from trainmaster.policies.shared.node_capacity import JobSizes, Room
from trainmaster.policies.shared.optimus_estimates import Estimates, believe
from trainmaster.policies.shared.pools import capacity, demands, free_pools, sizes_when_giving_way
from trainmaster.policies.shared.sizing import Sizes, apply_sizes, elastic_rows, resizable_rows, smallest_servers
from trainmaster.policies.shared.speed_curves import SpeedCurves


@register("optimus")
@dataclass(frozen=True)
class Optimus:
    """Every job starts small; then each worker or server goes where it saves most time per dominant share.

    `error` makes every job's believed speed and remaining work wrong by that fraction (up or down). With
    `fitted` the speed is fitted to `profile_points` profiled sizes, measured with noise `error`, and the work
    left is predicted from the losses that the job has reported.
    """

    error: float = field(default=0.0, metadata={"help": "relative error of the estimates, or of a profiled point"})
    fitted: bool = field(default=False, metadata={"help": "fit speed and loss curves instead of believing the job"})
    profile_points: int = field(default=8, metadata={"help": "sizes at which a new job is profiled (fitted)"})
    converged: float = field(
        default=0.01,
        metadata={"help": "done when an epoch lowers the loss by less, relative to the first (fitted)"},
    )

    explore: bool = field(
        default=True, metadata={"help": "where speeds are learned: let a job of each profile try a size across nodes"}
    )

    def __post_init__(self) -> None:
        for name, good, expected in (
            ("error", 0 <= self.error < 1, "a fraction from 0 to below 1"),
            ("profile_points", self.profile_points >= 1, "1 or more"),
            ("converged", self.converged > 0, "a positive number"),
        ):
            if not good:
                raise InputError(f"option '{name}' of policy 'optimus' is {getattr(self, name)}", expected)

    def decide(self, view: Snapshot) -> Plan:
        jobs = view.jobs
        waiting = view.waiting_rows()
        resizable = resizable_rows(view)
        elastic = np.flatnonzero(resizable)
        elastic = elastic[np.argsort(jobs.arrival[elastic])]
        ready = np.zeros(len(jobs), np.bool_)
        ready[waiting] = True
        growable = (ready & elastic_rows(view)) | resizable
        beliefs = believe(view, np.flatnonzero(growable), self.error, self.fitted, self.profile_points, self.converged)
        sizes = _marginal_gains(view, beliefs, waiting, growable)
        builder = view.draft()
        tries = exploring.under_way(view)
        tries.hold(view, sizes)
        apply_sizes(builder, sizes, np.concatenate([elastic, waiting]))
        if self.explore:
            exploring.begin(builder, tries, elastic)
        memo, wake_at_ms = tries.memo(view, beliefs.memo)
        return builder.plan(memo=memo, wake_at_ms=wake_at_ms)


def _marginal_gains(view: Snapshot, beliefs: Estimates, waiting: np.ndarray, growable: np.ndarray) -> Sizes:
    jobs = view.jobs
    start_servers = smallest_servers(view)
    need, pools = demands(view), free_pools(view)
    workers, servers, gpu_type = sizes_when_giving_way(view, growable & jobs.holding, start_servers, need, pools)
    room = Room(pools, need)
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
    sizes.start_small(room, waiting, np.zeros(jobs.allowed.shape[1], np.bool_))
    total = capacity(view)
    worker_cost = np.maximum.reduce([need.gpu / total[0], need.cpu / total[1], need.mem / total[2]])
    server_cost = np.maximum(need.server_cpu / total[1], need.server_mem / total[2])
    rows = np.flatnonzero(growable & (workers > 0) & (beliefs.remaining > 0))
    rows = rows[np.argsort(jobs.arrival[rows])]
    gains = MarginalGains(
        room, sizes, SpeedCurves(beliefs.coefficients), beliefs.remaining, beliefs.table, beliefs.tables, beliefs.scale
    )
    gains.grow(rows, np.maximum(worker_cost, 1e-12), np.maximum(server_cost, 1e-12))
    return Sizes(workers, servers, gpu_type)

"""Optimus (Peng et al., EuroSys'18): resources go where they shorten a job most for what they cost."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numba import njit

from trainmaster.model.errors import InputError
from trainmaster.model.plan import Plan
from trainmaster.model.snapshot import Snapshot
from trainmaster.policies.optimus_estimates import Beliefs, believe
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
from trainmaster.policies.sizing import Sizes, apply_sizes, elastic_rows, resizable_rows, smallest_servers


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
    own_rounds = False

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
        draft = view.draft()
        apply_sizes(draft, sizes, np.concatenate([elastic, waiting]))
        return draft.plan(memo=beliefs.memo)


def _marginal_gains(view: Snapshot, beliefs: Beliefs, waiting: np.ndarray, growable: np.ndarray) -> Sizes:
    jobs = view.jobs
    start_servers = smallest_servers(view)
    need, pools = demands(view), free_pools(view)
    workers, servers, kind = sizes_when_giving_way(view, growable & jobs.holding, start_servers, need, pools)
    start_small(
        pools,
        need,
        waiting,
        workers,
        servers,
        kind,
        jobs.workers_min,
        start_servers,
        jobs.allowed,
        jobs.throughput,
    )
    total = capacity(view)
    worker_cost = np.maximum.reduce([need.gpu / total[0], need.cpu / total[1], need.mem / total[2]])
    server_cost = np.maximum(need.server_cpu / total[1], need.server_mem / total[2])
    rows = np.flatnonzero(growable & (workers > 0) & (beliefs.remaining > 0))
    rows = rows[np.argsort(jobs.arrival[rows])]
    grow_by_gain(
        pools, need, rows, workers, servers, kind, jobs.workers_max, jobs.servers_max,
        np.maximum(worker_cost, 1e-12), np.maximum(server_cost, 1e-12),
        beliefs.remaining, beliefs.coefficients, beliefs.table, beliefs.tables, beliefs.scale,
    )  # fmt: skip
    return Sizes(workers, servers, kind)


@njit(cache=True)
def start_small(pools, need, waiting, workers, servers, kind, workers_min, start_servers, allowed, throughput):
    """One smallest gang for each waiting job, in this order, on its fastest type with room."""
    nothing_closed = np.zeros(allowed.shape[1], np.bool_)
    for position in range(waiting.size):
        row = waiting[position]
        least, with_servers = workers_min[row], start_servers[row]
        k = fastest_with_room(pools, need, row, least, with_servers, allowed, throughput, nothing_closed)
        if k >= 0:
            take(pools, need, row, k, least, with_servers)
            workers[row], servers[row], kind[row] = least, with_servers, k


@njit(cache=True)
def _time_left(row, w, p, k, remaining, coefficients, table, tables, scale):
    """Seconds to finish the remaining work with w workers and p servers on type k."""
    if table[row] >= 0:
        speed = tables[table[row], min(w, tables.shape[1] - 1)]
        step = 1.0 / speed if speed > 0 else np.inf
    else:
        c = coefficients[row]
        step = c[0] / w + c[1] + c[3] * w
        if p > 0:
            step += c[2] * w / p + c[4] * p + c[5] / p + c[6] * p / w
    return remaining[row] * step / scale[row, k] if scale[row, k] > 0 else np.inf


@njit(cache=True)
def grow_by_gain(
    pools, need, rows, workers, servers, kind, workers_max, servers_max, worker_cost, server_cost,
    remaining, coefficients, table, tables, scale,
):  # fmt: skip
    """Repeatedly give one worker or one server to the job with the largest (time saved) / (dominant share),
    EuroSys'18 section 4.1, until nothing gains or fits. `rows` are in order of arrival, which breaks ties."""
    n = rows.size
    gain = np.zeros((n, 2))
    stale = np.ones(n, np.bool_)
    out_of_room = np.zeros((n, 2), np.bool_)
    while True:
        best, best_role, best_gain = -1, 0, 0.0
        for i in range(n):
            row = rows[i]
            if stale[i]:
                stale[i] = False
                w, p, k = workers[row], servers[row], kind[row]
                now = _time_left(row, w, p, k, remaining, coefficients, table, tables, scale)
                gain[i, 0] = gain[i, 1] = 0.0
                if w < workers_max[row] and not out_of_room[i, 0]:
                    then = _time_left(row, w + 1, p, k, remaining, coefficients, table, tables, scale)
                    gain[i, 0] = (now - then) / worker_cost[row]
                if p < servers_max[row] and not out_of_room[i, 1]:
                    then = _time_left(row, w, p + 1, k, remaining, coefficients, table, tables, scale)
                    gain[i, 1] = (now - then) / server_cost[row]
            for role in range(2):
                if gain[i, role] > best_gain:
                    best, best_role, best_gain = i, role, gain[i, role]
        if best < 0:
            return
        row = rows[best]
        more, more_servers = (1, 0) if best_role == 0 else (0, 1)
        stale[best] = True
        if not fits(pools, need, row, kind[row], more, more_servers):
            out_of_room[best, best_role] = True
            continue
        take(pools, need, row, kind[row], more, more_servers)
        workers[row] += more
        servers[row] += more_servers

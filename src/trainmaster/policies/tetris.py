"""Tetris (Grandl et al., SIGCOMM'14): pack what aligns with the free resources, favour little work left."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numba import njit

from trainmaster.model.errors import InputError
from trainmaster.model.plan import Plan
from trainmaster.model.snapshot import Snapshot
from trainmaster.policies.pools import capacity, demands, fits, free_pools, take
from trainmaster.policies.registry import register
from trainmaster.policies.sizing import Floats, Ints


@register("tetris")
@dataclass(frozen=True)
class Tetris:
    """Starts the job whose demand aligns best with free resources, less a term for its remaining work."""

    mix: float = field(
        default=1.0, metadata={"help": "weight of short remaining work against alignment; 0: packing alone"}
    )
    own_rounds = False

    def __post_init__(self) -> None:
        if self.mix < 0:
            raise InputError(f"option 'mix' of policy 'tetris' is {self.mix}", "0 or more")

    def decide(self, view: Snapshot) -> Plan:
        draft = view.draft()
        waiting = view.waiting_rows()
        if len(waiting):
            order = _order(view, waiting, self.mix)
            draft.place_rows(order)
        return draft.plan()


def _order(view: Snapshot, waiting: Ints, mix: float) -> Ints:
    """Waiting rows in the order in which they are to be placed: those that fit by number, then the others."""
    jobs = view.jobs
    total = capacity(view)
    need = demands(view)
    gang = np.stack(
        [
            jobs.workers_ask * need.gpu,
            jobs.workers_ask * need.cpu + jobs.servers_ask * need.server_cpu,
            jobs.workers_ask * need.mem + jobs.servers_ask * need.server_mem,
        ],
        axis=1,
    )
    share = gang / total
    work = _work(share[waiting], jobs.remaining_s[waiting])
    chosen, n_fitting = align(
        free_pools(view), need, waiting, share, total, jobs.workers_ask, jobs.servers_ask, jobs.allowed,
        jobs.throughput, work, mix,
    )  # fmt: skip
    rest = np.setdiff1d(np.arange(len(waiting)), chosen[:n_fitting])
    rest = rest[np.argsort(work[rest], kind="stable")]
    return waiting[np.concatenate([chosen[:n_fitting], rest])]


def _work(share: Floats, remaining_s: Floats) -> Floats:
    """Remaining work: sum of the shares, times the time left. Unknown counts as the longest known."""
    known = np.isfinite(remaining_s)
    longest = float(remaining_s[known].max()) if known.any() else 1.0
    return share.sum(axis=1) * np.where(known, remaining_s, longest)


@njit(cache=True)
def align(pools, need, waiting, share, total, workers, servers, allowed, throughput, work, mix):
    """Positions in `waiting`, best score first, each judged by what those before it leave free.

    score = alignment / mean alignment - mix * work / mean work, which is the paper's a - epsilon p with
    epsilon = mix * (mean a) / (mean p), section 3.3.2. A job is judged on its fastest type with
    room.
    """
    n, n_types = waiting.size, allowed.shape[1]
    mean_work = max(work.mean(), 1e-300)
    open_ = np.ones(n, np.bool_)
    alignment = np.zeros(n)
    on = np.zeros(n, np.int64)
    chosen = np.empty(n, np.int64)
    n_chosen = 0
    free = np.zeros((n_types, 3))
    while True:
        for kind in range(n_types):
            free[kind, 0] = pools.milli[kind] / total[0]
            free[kind, 1] = pools.cpu[kind] / total[1]
            free[kind, 2] = pools.mem[kind] / total[2]
        sum_alignment = 0.0
        n_open = 0
        for i in range(n):
            if not open_[i]:
                continue
            row = waiting[i]
            best = -1
            for kind in range(n_types):
                if (
                    allowed[row, kind]
                    and (best < 0 or throughput[row, kind] > throughput[row, best])
                    and fits(pools, need, row, kind, workers[row], servers[row])
                ):
                    best = kind
            if best < 0:  # what is free only shrinks
                open_[i] = False
                continue
            on[i] = best
            alignment[i] = 0.0
            for resource in range(3):
                alignment[i] += share[row, resource] * free[best, resource]
            sum_alignment += alignment[i]
            n_open += 1
        if n_open == 0:
            return chosen, n_chosen
        mean_alignment = max(sum_alignment / n_open, 1e-300)
        top = -1
        top_score = 0.0
        for i in range(n):
            if open_[i]:
                score = alignment[i] / mean_alignment - mix * work[i] / mean_work
                if top < 0 or score > top_score:
                    top, top_score = i, score
        chosen[n_chosen] = top
        n_chosen += 1
        open_[top] = False
        row = waiting[top]
        take(pools, need, row, on[top], workers[row], servers[row])

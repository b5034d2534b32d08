"""Tetris (Grandl et al., SIGCOMM'14): pack what aligns with the free resources, favour little work left."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from trainmaster.core.arrays import Floats, Ints
from trainmaster.model.errors import InputError
from trainmaster.model.plan import Plan
from trainmaster.model.snapshot import Snapshot
from trainmaster.policies.registry import register
from trainmaster.policies.shared.node_capacity import Room
from trainmaster.policies.shared.pools import capacity, demands, free_pools
from trainmaster.policies.shared.tetris_packing import Packing


@register("tetris")
@dataclass(frozen=True)
class Tetris:
    """Starts the job whose demand aligns best with free resources, less a term for its remaining work."""

    mix: float = field(
        default=1.0, metadata={"help": "weight of short remaining work against alignment; 0: packing alone"}
    )

    def __post_init__(self) -> None:
        if self.mix < 0:
            raise InputError(f"option 'mix' of policy 'tetris' is {self.mix}", "0 or more")

    def decide(self, view: Snapshot) -> Plan:
        builder = view.draft()
        waiting = view.waiting_rows()
        if len(waiting):
            order = _order(view, waiting, self.mix)
            builder.place_rows(order)
        return builder.plan()


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
    packing = Packing(
        Room(free_pools(view), need),
        waiting,
        share,
        total,
        jobs.workers_ask,
        jobs.servers_ask,
        jobs.allowed,
        jobs.throughput,
    )
    chosen = np.empty(len(waiting), np.int64)
    n_fitting = packing.order(work, max(float(work.mean()), 1e-300), mix, chosen)
    rest = np.setdiff1d(np.arange(len(waiting)), chosen[:n_fitting])
    rest = rest[np.argsort(work[rest], kind="stable")]
    return waiting[np.concatenate([chosen[:n_fitting], rest])]


def _work(share: Floats, remaining_s: Floats) -> Floats:
    """Remaining work: sum of the shares, times the time left. Unknown counts as the longest known."""
    known = np.isfinite(remaining_s)
    longest = float(remaining_s[known].max()) if known.any() else 1.0
    return share.sum(axis=1) * np.where(known, remaining_s, longest)

"""Dorm in the engine: when jobs come, end or fail, a MILP re-divides each type of accelerator among its jobs.

Counts come from `dorm_program` over the pooled capacity of a type, between each job's least and most workers
(a rigid job: one size); jobs whose count stays are left alone. A job keeps its type; a waiting one takes the
fastest with room for its least size. Nobody is refused and nobody is stopped: who does not fit waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from trainmaster.model.job import PhaseCode
from trainmaster.model.plan import Plan
from trainmaster.model.plan_builder import PlanBuilder
from trainmaster.model.policy import PolicyTraits
from trainmaster.model.policy_state import PolicyState
from trainmaster.model.reasons import Why
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import GPU_MILLI
from trainmaster.policies.oasis.dorm_program import Division, divide
from trainmaster.policies.oasis.gang_options import Floats, Pool, fits_idle, node_room, servers_for
from trainmaster.policies.registry import register

_RESIZABLE = (PhaseCode.RESERVED, PhaseCode.RUNNING)


@dataclass
class _Share:
    """A job of one type: what a worker takes, the range of workers it may get, and what it has."""

    row: int
    worker: Floats
    least: int
    most: int
    now: int


@register("dorm")
@dataclass(frozen=True)
class Dorm:
    """Re-divides the cluster for utilisation, bounds fairness loss and adjustments (Sun et al., 2017)."""

    theta1: float = field(default=0.1, metadata={"help": "bound on fairness loss"})
    theta2: float = field(default=0.1, metadata={"help": "share of running jobs that one division may adjust"})
    traits = PolicyTraits(remembers_nodes=True)

    def decide(self, view: Snapshot) -> Plan:
        jobs, builder = view.jobs, view.draft()
        names = jobs.ids
        order = sorted(range(len(jobs)), key=lambda row: (int(jobs.submit_ms[row]), names[row]))
        pending = [row for row in order if int(jobs.phase[row]) == PhaseCode.PENDING]
        key = self._key(view, names, pending)
        if view.memo.values.get("divided") != key:
            self._divide(view, builder, order)
        left = [row for row in pending if builder.allocation(row) is None and row not in builder.rejections]
        return builder.plan(memo=PolicyState({"divided": self._key(view, names, left)}))

    def _key(self, view: Snapshot, names: Sequence[str], pending: list[int]) -> dict[str, list[str] | list[int]]:
        """What a division rests on: while it is the same, dividing again would only shuffle."""
        ready = sorted(names[row] for row in pending if view.jobs.not_before_ms[row] <= view.now_ms)
        key = {"jobs": sorted(names), "waiting": ready, "down": np.flatnonzero(~view.up).tolist()}
        others = _held_by_others(view)
        return {**key, "others": others} if any(others) else key

    def _divide(self, view: Snapshot, builder: PlanBuilder, order: list[int]) -> None:
        pool = Pool.of(view.cluster)
        shares = self._chosen(view, builder, pool, order)
        for kind, present in sorted(shares.items()):
            if present:
                counts = self._counts(view, pool, kind, present)
                _carry_out(view, builder, kind, present, counts)

    def _chosen(self, view: Snapshot, builder: PlanBuilder, pool: Pool, order: list[int]) -> dict[int, list[_Share]]:
        """Jobs by type: those that hold something, then in order of arrival those whose least size fits."""
        jobs, kinds = view.jobs, view.cluster.type_of
        shares: dict[int, list[_Share]] = {kind: [] for kind in range(len(view.cluster.types))}
        free = {kind: pool.capacity[view.up & (kinds == kind)].sum(axis=0) for kind in shares}
        held = [row for row in order if jobs.holding[row]]
        ready = [
            row
            for row in order
            if int(jobs.phase[row]) == PhaseCode.PENDING and int(jobs.not_before_ms[row]) <= view.now_ms
        ]
        for row in held + ready:
            spec, present = jobs.spec(row), jobs.allocation(row) if jobs.holding[row] else None
            least, most = int(jobs.workers_min[row]), int(jobs.workers_max[row])
            now = 0 if present is None else present.workers
            if present is not None and int(jobs.phase[row]) not in _RESIZABLE:
                least = most = now
            demand = pool.demand(spec.worker)
            room = node_room(pool, demand)
            allowed = [k for k in range(len(view.cluster.types)) if jobs.allowed[row][k]]
            if present is None and not fits_idle(view, row, least, servers_for(spec, least)):
                builder.reject(row, Why.NEVER_FITS)
                continue
            if present is not None:
                allowed = [present.accelerator]
            allowed.sort(key=lambda k: (-jobs.throughput[row][k], k))
            for kind in allowed:
                need = least * demand
                fits = bool((need <= free[kind] + 1e-9).all()) and room[view.up & (kinds == kind)].sum() >= least
                if present is not None or fits:
                    free[kind] = free[kind] - need
                    shares[kind].append(_Share(row, demand, least, most, now))
                    break
            else:
                builder.wait(row, Why.CAPACITY)
        return shares

    def _counts(self, view: Snapshot, pool: Pool, kind: int, present: list[_Share]) -> list[int]:
        """The nodes of a type are one server. Parameter servers may sit on nodes of any type, so they do not compete
        for this one; placement sees to them."""
        nodes = view.up & (view.cluster.type_of == kind)
        worker = np.array([share.worker for share in present])
        division = Division(
            capacity=pool.capacity[nodes].sum(axis=0, keepdims=True),
            hosts=np.ones((2, 1), np.bool_),
            worker=worker,
            ps=np.zeros_like(worker),
            ps_per_worker=np.ones(len(present)),
            now=np.array([share.now for share in present]),
            least=np.array([share.least for share in present]),
            most=np.array([share.most for share in present]),
        )
        return divide(division, self.theta1, self.theta2)


def _carry_out(view: Snapshot, builder: PlanBuilder, kind: int, present: list[_Share], counts: list[int]) -> None:
    """Shrink, grow, then start; a start that does not fit as planned takes the largest size that does."""
    todo = sorted(zip(present, counts, strict=True), key=lambda item: item[1] - item[0].now)
    for share, count in todo:
        if share.now and share.now != count:
            builder.resize(share.row, count, servers_for(view.jobs.spec(share.row), count))
    for share, count in zip(present, counts, strict=True):
        if share.now:
            continue
        spec = view.jobs.spec(share.row)
        for size in range(count, share.least - 1, -1):
            if builder.place(share.row, workers=size, servers=servers_for(spec, size), accelerator=kind):
                break


def _held_by_others(view: Snapshot) -> list[int]:
    """GPU thousandths by type that jobs hold which this view does not show: those of other priority bands."""
    jobs, cluster, n = view.jobs, view.cluster, len(view.cluster.types)
    free_milli = view.free_capacity.device_milli.sum(axis=1)
    used = np.bincount(cluster.type_of, weights=(cluster.gpus * GPU_MILLI - free_milli) * view.up, minlength=n)
    holds = jobs.holding & (jobs.held_type >= 0)
    mine = np.bincount(jobs.held_type[holds], weights=jobs.held_gpu_milli[holds], minlength=n)
    return (used - mine).astype(np.int64).tolist()

"""One pass after a policy that decides at fixed sizes: elastic jobs start with what fits, idle GPUs go to elastic jobs,
and are taken back, by shrinking in place, when a job waits for them.

Nothing that the policy decided is undone. Only the job that the policy would start next is helped, of the highest
priority that waits: who waits behind it goes on waiting. It takes from gangs of a higher priority only what they have
beyond the size that they ask for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from trainmaster.core.arrays import Ints
from trainmaster.model.allocation import Allocation
from trainmaster.model.job import PhaseCode
from trainmaster.model.plan import Plan
from trainmaster.model.plan_builder import PlanBuilder
from trainmaster.model.reasons import Why
from trainmaster.model.snapshot import Snapshot

_SHORT = (Why.CAPACITY, Why.SHAPE, Why.OUTRANKED, Why.PRIORITY)


def fill(view: Snapshot, why: np.ndarray) -> Plan | None:
    """The further changes, if there are any; `why`: why each row waits after the policy's decision."""
    jobs = view.jobs
    elastic = jobs.workers_min < jobs.workers_max
    if not elastic.any():
        return None
    waiting = view.waiting_rows()
    running = np.flatnonzero(elastic & (jobs.phase == PhaseCode.RUNNING))
    if len(waiting) == 0:
        builder = view.draft()
        _grow(builder, running.tolist())
    else:
        first = waiting[jobs.priority[waiting] == jobs.priority[waiting].max()]
        short = [row for row in first.tolist() if Why(int(why[row])) in _SHORT]
        if not short:
            return None
        builder = view.draft()
        if not _start(builder, short[0]):
            builder = view.draft()
            if not _make_room(builder, short[0], running.tolist()):
                return None
    return builder.plan() if builder.changes else None


def spared(view: Snapshot, plan: Plan) -> Plan:
    """The same plan, but elastic gangs that it stops shrink instead, if that leaves room for those that it starts."""
    jobs = view.jobs
    elastic = (jobs.workers_min < jobs.workers_max) & (jobs.phase == PhaseCode.RUNNING)
    stopped = [row for row, allocation in plan.changes.items() if allocation is None]
    shrinking = [row for row in stopped if elastic[row]]
    started = {row: allocation for row, allocation in plan.changes.items() if allocation is not None}
    if not shrinking or any(jobs.holds(row) for row in started):
        return plan
    builder = view.draft()
    for row in stopped:
        if not elastic[row]:
            builder.release(row)
    while not _place_all(builder, started):
        if not _shrink_one(builder, shrinking, jobs.workers_min):
            return plan
    why = plan.why.copy()
    why[shrinking] = 0
    return replace(plan, changes=builder.changes, why=why)


def _place_all(builder: PlanBuilder, wanted: Mapping[int, Allocation]) -> bool:
    """All of them, of these sizes and types, or none."""
    placed: list[int] = []
    for row, allocation in wanted.items():
        gpu_type = allocation.accelerator if allocation.accelerator >= 0 else None
        if not builder.place(row, workers=allocation.workers, servers=allocation.servers, accelerator=gpu_type):
            for other in placed:
                builder.release(other)
            return False
        placed.append(row)
    return True


def _shrink_one(builder: PlanBuilder, rows: list[int], least: Ints) -> bool:
    """Take a worker from the gang that is furthest above its least size; False: none is."""
    surplus = {row: _workers(builder, row) - int(least[row]) for row in rows}
    if max(surplus.values(), default=0) <= 0:
        return False
    largest = max(rows, key=lambda row: (surplus[row], row))
    return builder.resize(largest, _workers(builder, largest) - 1)


def grown(view: Snapshot, job_index: int, workers: int) -> Allocation | None:
    """What a running gang has with so many workers, where there is room for them beside it."""
    row = int(np.flatnonzero(view.jobs.job_indices == job_index)[0])
    builder = view.draft()
    return builder.allocation(row) if builder.resize(row, workers) else None


def _start(builder: PlanBuilder, row: int) -> bool:
    """The largest size that fits."""
    jobs = builder.view.jobs
    most, least = int(jobs.workers_ask[row]), int(jobs.workers_min[row])
    return any(builder.place(row, workers=workers) for workers in range(most, least - 1, -1))


def _make_room(builder: PlanBuilder, row: int, running: list[int]) -> bool:
    """Shrink the largest gangs, worker by worker, until the job fits at its smallest size."""
    jobs = builder.view.jobs
    least = np.where(jobs.priority > jobs.priority[row], jobs.workers_ask, jobs.workers_min)
    while _shrink_one(builder, running, least):
        if builder.place(row, workers=int(jobs.workers_min[row])):
            return True
    return False


def _grow(builder: PlanBuilder, running: list[int]) -> None:
    """Worker by worker, the job of the highest priority with the smallest part of its range first."""
    jobs = builder.view.jobs
    priority, most = jobs.priority.tolist(), jobs.workers_max.tolist()
    while running:
        row = min(running, key=lambda row: (-priority[row], _workers(builder, row) / most[row], row))
        workers = _workers(builder, row)
        if workers >= jobs.workers_max[row] or not builder.resize(row, workers + 1):
            running.remove(row)


def _workers(builder: PlanBuilder, row: int) -> int:
    allocation = builder.allocation(row)
    return 0 if allocation is None else allocation.workers

"""From target sizes to a plan: shrink first, then place what waits, then grow. Shared by every policy that
chooses how many workers and servers a job gets.

Gangs are placed before growth because a gang is all or nothing while growth may stop anywhere. A job is
touched only when its size changes; growth that would not repay a restart is left out, and a shrink that
nobody came to need is taken back, so that jobs are not pushed to and fro.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainmaster.core.arrays import Bools, Ints
from trainmaster.model.job import PhaseCode
from trainmaster.model.plan_builder import PlanBuilder
from trainmaster.model.reasons import Why
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import MS_PER_S


@dataclass(frozen=True)
class Sizes:
    """Target of every row: 0 workers for a job that shall not run. `gpu_type`: accelerator type to place it on
    (-1: its fastest with room); a job that runs keeps its own."""

    workers: Ints
    servers: Ints
    gpu_type: Ints


def elastic_rows(view: Snapshot) -> Bools:
    """Jobs whose size may differ, by row."""
    jobs = view.jobs
    return (jobs.workers_min < jobs.workers_max) | (jobs.servers_min < jobs.servers_max)


def resizable_rows(view: Snapshot) -> Bools:
    """Jobs that hold something and may be given another size now."""
    jobs = view.jobs
    return jobs.holding & elastic_rows(view) & ((jobs.phase == PhaseCode.RUNNING) | (jobs.phase == PhaseCode.RESERVED))


def smallest_servers(view: Snapshot) -> Ints:
    """Servers that go with the fewest workers: one for each where the job takes any, within its range."""
    jobs = view.jobs
    return np.maximum(jobs.servers_min, np.minimum(jobs.servers_max, jobs.workers_min))


def apply_sizes(builder: PlanBuilder, sizes: Sizes, rows: Ints, first: Ints | None = None) -> None:
    """Bring the plan builder to these sizes as far as placement allows; `rows` in order of precedence.

    Every job of `first` (waiting jobs, in order) is placed before all others; when one does not fit,
    nothing else starts or grows on the types that it accepts.
    """
    view, jobs = builder.view, builder.view.jobs
    target = sizes.workers
    held = jobs.holding[rows]
    for row in rows[held & (target[rows] == 0)].tolist():
        builder.release(row)
        builder.wait(row, Why.OUTRANKED)
    running = rows[held & (target[rows] > 0)]
    shrunk = _shrink(builder, sizes, running)
    closed = np.zeros(len(view.cluster.types), np.bool_)
    blocker = -1
    for row in first.tolist() if first is not None else []:
        fits = not (closed & jobs.allowed[row]).any() and _place_smaller(builder, sizes, row)
        if not fits:
            closed |= jobs.allowed[row]
            if blocker < 0:
                blocker = row
            else:
                builder.wait(row, Why.BEHIND, blocker)
    starting = rows[~held & (target[rows] > 0)]
    if first is not None and len(first):
        starting = starting[~np.isin(starting, first)]
    if closed.any():
        barred = (jobs.allowed[starting] & closed).any(axis=1)
        builder.wait_rows(starting[barred], Why.BEHIND, blocker)
        starting = starting[~barred]
    _place(builder, sizes, starting)
    growing = running if not closed.any() else running[~closed[jobs.held_type[running]]]
    _grow(builder, sizes, growing)
    for row in reversed(shrunk):
        if not closed[jobs.held_type[row]] and not _gains(view, row, *_size(builder, row)):
            builder.restore(row)


def _size(builder: PlanBuilder, row: int) -> tuple[int, int]:
    allocation = builder.allocation(row)
    assert allocation is not None
    return allocation.workers, allocation.servers


def _shrink(builder: PlanBuilder, sizes: Sizes, rows: Ints) -> list[int]:
    jobs = builder.view.jobs
    down = (sizes.workers[rows] < jobs.workers[rows]) | (sizes.servers[rows] < jobs.servers[rows])
    shrunk = []
    for row in rows[down].tolist():
        fewer = min(int(sizes.workers[row]), int(jobs.workers[row]))
        if builder.resize(row, fewer, min(int(sizes.servers[row]), int(jobs.servers[row]))):
            shrunk.append(row)
    return shrunk


def _place(builder: PlanBuilder, sizes: Sizes, rows: Ints) -> None:
    """Start waiting jobs at their target, or at the largest smaller size that fits."""
    if len(rows) == 0:
        return
    single = len(builder.view.cluster.types) == 1 or (sizes.gpu_type[rows] < 0).all()
    if single and builder.place_rows(rows, workers=sizes.workers, servers=sizes.servers) < 0:
        return
    for row in rows.tolist():
        if row not in builder.changes:
            _place_smaller(builder, sizes, row)


def _place_smaller(builder: PlanBuilder, sizes: Sizes, row: int) -> bool:
    gpu_type = int(sizes.gpu_type[row])
    workers, servers = int(sizes.workers[row]), int(sizes.servers[row])
    if gpu_type >= 0 and builder.place(row, workers=workers, servers=servers, accelerator=gpu_type):
        return True
    if builder.place(row, workers=workers, servers=servers):
        return True
    return _largest(builder, sizes, row, int(builder.view.jobs.workers_min[row]), workers - 1)


def _largest(builder: PlanBuilder, sizes: Sizes, row: int, low: int, high: int) -> bool:
    """The largest size from low to high that fits, by bisection (what fits at a size fits below it)."""
    done = False
    while low <= high:
        middle = (low + high + 1) // 2
        holds = builder.allocation(row) is not None
        if not holds:
            fits = builder.place(row, workers=middle, servers=_servers_for(builder.view, sizes, row, middle))
        else:
            fits = builder.resize(row, middle, _servers_for(builder.view, sizes, row, middle))
        if fits:
            done, low = True, middle + 1
        else:
            high = middle - 1
    return done


def _servers_for(view: Snapshot, sizes: Sizes, row: int, workers: int) -> int:
    """Servers in the target's proportion, within the job's range."""
    asked = -(-int(sizes.servers[row]) * workers // max(int(sizes.workers[row]), 1))
    return max(int(view.jobs.servers_min[row]), min(asked, int(view.jobs.servers_max[row])))


def _grow(builder: PlanBuilder, sizes: Sizes, rows: Ints) -> None:
    jobs = builder.view.jobs
    up = (sizes.workers[rows] > jobs.workers[rows]) | (sizes.servers[rows] > jobs.servers[rows])
    for row in rows[up].tolist():
        workers, servers = int(sizes.workers[row]), int(sizes.servers[row])
        if not _repays(builder.view, row, workers, servers) or builder.resize(row, workers, servers):
            continue
        now_workers, now_servers = _size(builder, row)
        if _largest(builder, sizes, row, now_workers + 1, workers - 1):
            continue
        if servers > now_servers:
            builder.resize(row, now_workers, servers)


def _time_left_s(view: Snapshot, row: int, workers: int, servers: int) -> float:
    left = float(view.jobs.remaining[row])
    rate = view.jobs.rate_at(row, int(view.jobs.held_type[row]), workers, servers)
    return left / rate if rate > 0 and left == left else np.inf


def _repays(view: Snapshot, row: int, workers: int, servers: int) -> bool:
    """Whether a running job gains more by this size than a restart costs (unknown work: always)."""
    if view.restart_cost_ms == 0 or view.jobs.phase[row] != PhaseCode.RUNNING or np.isnan(view.jobs.remaining[row]):
        return True
    now_s = _time_left_s(view, row, int(view.jobs.workers[row]), int(view.jobs.servers[row]))
    then_s = _time_left_s(view, row, workers, servers)
    return now_s - then_s > view.restart_cost_ms / MS_PER_S


def _gains(view: Snapshot, row: int, workers: int, servers: int) -> bool:
    """Whether a job is faster at this size than at its present one, by more than a restart costs."""
    if (workers, servers) == (int(view.jobs.workers[row]), int(view.jobs.servers[row])):
        return True
    gpu_type = int(view.jobs.held_type[row])
    here = view.jobs.rate_at(row, gpu_type, int(view.jobs.workers[row]), int(view.jobs.servers[row]))
    return view.jobs.rate_at(row, gpu_type, workers, servers) > here and _repays(view, row, workers, servers)

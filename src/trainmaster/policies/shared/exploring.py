"""One short try of a size across the boundary of a node, for each profile of which none was measured there.

Efficiency falls most where a job leaves its node, and a policy that grows by one never learns by how much. A try costs
what a resize costs, so it is made only where enough GPUs are idle, nobody waits, and enough work is left to gain by it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from trainmaster.core.arrays import Bools, Floats, Ints
from trainmaster.model.plan_builder import PlanBuilder
from trainmaster.model.policy_state import PolicyState
from trainmaster.model.scaling import SpeedTable
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import GPU_MILLI, MS_PER_S
from trainmaster.policies.shared.sizing import Sizes

IDLE_GPUS = 4
WORK_LEFT_S = 600.0
TRY_MS = 180_000
"""A try ends when its speed is measured, and after so long in any case, without what resizing takes."""
TRIES = 2
"""Of a profile: a job may end or move while it tries."""
UNTIL = "try_until"
"""Column: until when a job keeps the size that it tries; 0: it tries nothing."""
TRIED = "tries"
"""By profile: how often it was tried."""


class Exploration(NamedTuple):
    """`trying`: rows that keep their size for now."""

    trying: Bools
    until: Floats
    tried: dict[str, int]

    def hold(self, view: Snapshot, sizes: Sizes) -> None:
        """What tries a size keeps it."""
        sizes.workers[self.trying] = view.jobs.workers[self.trying]
        sizes.servers[self.trying] = view.jobs.servers[self.trying]

    def memo(self, view: Snapshot, memo: PolicyState) -> tuple[PolicyState, int | None]:
        """With what is remembered, and when to look again."""
        if not self.tried and not self.until.any():
            return memo, None
        values: dict[str, Any] = {**memo.values, TRIED: self.tried}
        open_until = self.until[self.until > view.now_ms]
        wake_at_ms = int(open_until.min()) if len(open_until) else None
        return PolicyState(values, {**memo.columns, UNTIL: self.until[:, None]}), wake_at_ms


def under_way(view: Snapshot) -> Exploration:
    """The tries that have not ended yet."""
    kept = view.memo.columns.get(UNTIL)
    until = np.zeros(len(view.jobs)) if kept is None else np.array(kept[:, 0])
    for row in np.flatnonzero(until).tolist():
        belief = view.jobs.belief(row)
        over = until[row] <= view.now_ms or not view.jobs.holding[row] or belief is None
        if over or (belief is not None and belief.crossed):
            until[row] = 0.0
    return Exploration(until > 0, until, dict(view.memo.values.get(TRIED, {})))


def begin(builder: PlanBuilder, known: Exploration, resizable: Ints) -> None:
    """Let running jobs whose size nobody needs try one across the boundary, those with most work left first."""
    view, jobs = builder.view, builder.view.jobs
    if len(view.waiting_rows()):
        return
    rows = [row for row in resizable.tolist() if row not in builder.changes and not known.trying[row]]
    left = {row: _left_s(view, row) for row in rows}
    trying = {belief.group for row in np.flatnonzero(known.trying).tolist() if (belief := jobs.belief(row))}
    for row in sorted(rows, key=lambda row: (-left[row], int(jobs.arrival[row]))):
        belief = jobs.belief(row)
        if belief is None or left[row] < WORK_LEFT_S or belief.crossed or belief.group in trying:
            continue
        workers = _beyond(view, row, belief)
        if workers is None or known.tried.get(belief.group, 0) >= TRIES or not _has_room(builder, row, workers):
            continue
        if builder.resize(row, workers, int(jobs.servers[row])):
            known.until[row] = view.now_ms + view.resize_cost_ms + TRY_MS
            known.tried[belief.group] = known.tried.get(belief.group, 0) + 1
            trying.add(belief.group)


def _left_s(view: Snapshot, row: int) -> float:
    """Of the work left as fast as one node can do it: what a try must be worth more than."""
    jobs, belief = view.jobs, view.jobs.belief(row)
    rate, kind = float(jobs.rate[row]), int(jobs.held_type[row])
    if belief is not None:
        most = min(belief.node_workers[kind], int(jobs.workers_max[row]))
        rate = max(rate, jobs.rate_at(row, kind, most, int(jobs.servers[row])))
    left = float(view.jobs.remaining[row]) / rate if rate > 0 else 0.0
    return left if np.isfinite(left) else 0.0


def _beyond(view: Snapshot, row: int, belief: SpeedTable) -> int | None:
    """The least power of two that does not fit on a node, as far as the job may grow."""
    jobs = view.jobs
    most = belief.node_workers[int(jobs.held_type[row])]
    if int(jobs.workers_max[row]) <= most or int(jobs.workers[row]) > most:
        return None
    return min(1 << most.bit_length(), int(jobs.workers_max[row]))


def _has_room(builder: PlanBuilder, row: int, workers: int) -> bool:
    view = builder.view
    kind = int(view.jobs.held_type[row])
    nodes = view.up & (view.cluster.type_of == kind)
    idle = float((builder.free_capacity.device_milli[nodes] == GPU_MILLI).sum())
    more = (workers - int(view.jobs.workers[row])) * int(view.jobs.devices_each[row])
    return idle >= max(IDLE_GPUS, more) and view.resize_cost_ms < WORK_LEFT_S * MS_PER_S

"""What the policy believes of the jobs' speed: declared figures corrected by measured progress."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainmaster.core.arrays import Floats
from trainmaster.estimate.completion import RatioPool, quantile_z
from trainmaster.model.job import PhaseCode
from trainmaster.model.placement import Strategy
from trainmaster.model.snapshot import Snapshot
from trainmaster.policies.deadline.reservations import JobArrays
from trainmaster.policies.deadline.scarcest_demand import blocked_milli
from trainmaster.policies.deadline.sizes import MAX_LEVELS

_SAME = 1e-9
"""A rate that equals the declared one to this relative difference is a belief, not a measurement."""
OVERRUN = 0.02
"""Work still assumed (of the total) when a job has outlived the finish that was planned for it."""


@dataclass(frozen=True)
class SpeedCorrections:
    jobs: JobArrays
    pool: RatioPool
    seen: Floats
    """Generation whose speed has been measured, and the log ratio; a memo column of two."""


def believe(
    view: Snapshot, tables: Floats, work_total: Floats, confidence: float, overrun: npt.NDArray[np.bool_]
) -> SpeedCorrections:
    """Arrays for the kernels. Speeds not yet measured are taken at the `confidence` quantile of the pool."""
    t = view.jobs
    n = len(t)
    sizes, speeds = tables[:, 3 : 3 + MAX_LEVELS], tables[:, 3 + MAX_LEVELS :]
    base = np.where(t.allowed, t.throughput, 0.0)
    if not np.array_equal(t.throughput, t.throughput_spread):
        # A gang may end up on several nodes: count on the slower figure unless it is a single worker.
        gang = t.workers_max > 1
        base[gang] = np.minimum(base, np.where(t.allowed, t.throughput_spread, 0.0))[gang]
    pool, seen = _measured(view, sizes, speeds, base)
    factor = np.full(n, pool.factor(confidence))
    known = seen[:, 0] > 0
    if known.any():
        # Measured in this attempt: that speed. In an earlier one: the same, less its spread.
        margin = quantile_z(confidence) * pool.sigma
        current = known & (seen[:, 0] == t.generation)
        factor = np.where(known, np.exp(seen[:, 1] - np.where(current, 0.0, margin)), factor)
    work = np.maximum(work_total - t.work_done, 0.0)
    if overrun.any():
        work = np.where(overrun, np.maximum(work, OVERRUN * work_total), work)
    phase, generation = t.phase, t.generation
    moving = (
        ((phase == PhaseCode.RESERVED) & (generation > 0))
        | ((phase == PhaseCode.LAUNCHING) & (generation > 1))
        | (phase == PhaseCode.STOPPING)
    )
    pending = np.where(moving, view.restart_cost_ms, np.maximum(t.productive_ms - view.now_ms, 0))
    resize_ms = view.resize_cost_ms
    if view.placement == Strategy.COUNT:  # devices are anonymous: a resize may turn out to be a move
        resize_ms = max(resize_ms, view.restart_cost_ms)
    holding = t.holding
    arrays = JobArrays(
        work=np.nan_to_num(work, nan=0.0),
        base=base * factor[:, None],
        sizes=np.ascontiguousarray(sizes),
        speeds=np.ascontiguousarray(speeds),
        levels=tables[:, 0].astype(np.int64),
        each=blocked_milli(view),
        held=np.where(holding, t.workers, 0),
        held_kind=np.where(holding, t.held_type, -1),
        ran=generation > 0,
        pending_ms=np.where((phase == PhaseCode.RUNNING) | (phase == PhaseCode.RESIZING) | moving, pending, 0.0).astype(
            np.float64
        ),
        whole=t.preemptible == 0,
        restart_ms=float(view.restart_cost_ms),
        resize_ms=float(resize_ms),
    )
    return SpeedCorrections(arrays, pool, seen)


def _measured(view: Snapshot, sizes: Floats, speeds: Floats, base: Floats) -> tuple[RatioPool, Floats]:
    """Learn from running jobs whose rate differs from what was believed: once per attempt."""
    t = view.jobs
    memo = view.memo
    pool = RatioPool(*memo.values.get("ratios", (0.0, 0.0, 0.0)))
    kept = memo.columns.get("seen")
    seen = np.zeros((len(t), 2)) if kept is None else kept
    running = np.flatnonzero((t.phase == PhaseCode.RUNNING) & (t.held_type >= 0) & (t.rate > 0.0))
    if running.size == 0:
        return pool, seen
    gpu_type = t.held_type[running]
    at = np.argmax(sizes[running] == t.workers[running, None], axis=1)
    speed = speeds[running, at]
    # The engine's own belief uses the figure of the placement; ours may be the slower of the two.
    together = t.throughput[running, gpu_type] * speed
    apart = t.throughput_spread[running, gpu_type] * speed
    rate = t.rate[running]
    differs = (np.abs(rate - together) > _SAME * rate) & (np.abs(rate - apart) > _SAME * rate)
    if not differs.any():
        return pool, seen
    seen = seen.copy()
    for row, ratio in zip(
        running[differs].tolist(), (rate / (base[running, gpu_type] * speed))[differs].tolist(), strict=True
    ):
        if not 0.0 < ratio < np.inf:
            continue
        if seen[row, 0] != t.generation[row]:
            pool = pool.record(ratio)
        seen[row] = t.generation[row], np.log(ratio)
    return pool, seen

"""ElasticFlow (Gu et al., ASPLOS'23): minimum satisfactory shares, admission control, greedy spare GPUs.

Every decision plans all admitted jobs anew, earliest deadline first, each at the smallest level j for which
running at min(j, free(t)) until its deadline covers its work (their Algorithm 1). A job is admitted when
every admitted job still fits beside it. Spare GPUs go where they save (or waste least) GPU time per GPU
added (their Algorithm 2). Costs of starting and resizing are not part of the plan. Reservations are exact
in time here, where the paper has slots; jobs without a deadline take part in the spare GPUs alone.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainmaster.core.arrays import Floats, Ints
from trainmaster.model.plan import Plan
from trainmaster.model.plan_builder import PlanBuilder
from trainmaster.model.policy import PolicyTraits
from trainmaster.model.policy_state import PolicyState
from trainmaster.model.reasons import Why
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import GPU_MILLI, NEVER_MS
from trainmaster.policies.deadline import reservation_layout as col
from trainmaster.policies.deadline import reservations as rs
from trainmaster.policies.deadline.execution import carry_out, changeable
from trainmaster.policies.deadline.sizes import size_tables
from trainmaster.policies.deadline.speed_corrections import believe
from trainmaster.policies.registry import register
from trainmaster.policies.shared.arrival_order import decide_by_arrival

_RETRY_MS = 10_000


@register("elasticflow")
@dataclass(frozen=True)
class ElasticFlow:
    """Admits jobs whose deadline can be met by elastic shares; spare GPUs by marginal saving."""

    traits = PolicyTraits(own_rounds=True)

    def decide(self, view: Snapshot) -> Plan:
        return decide_by_arrival(view, self._decide)

    def _decide(self, view: Snapshot) -> Plan:
        jobs = view.jobs
        builder = view.draft()
        tables = size_tables(view)
        arrays = believe(view, tables, jobs.work_total, 0.5, np.zeros(len(jobs), np.bool_)).jobs.replace(
            restart_ms=0.0, resize_ms=0.0
        )
        if len(view.cluster.types) > 1:
            # Who is still starting would seem better off on another type, where it starts in no time, and there again.
            arrays = arrays.replace(pending_ms=np.zeros(len(jobs)))
        usable = arrays.held_kind >= 0
        held = np.bincount(
            arrays.held_kind[usable],
            weights=(arrays.held * jobs.worker_gpu_milli)[usable],
            minlength=len(view.cluster.types),
        )
        capacity = np.round(view.free_gpus_by_type * GPU_MILLI + held).astype(np.int64)
        timed = (jobs.deadline_ms < NEVER_MS) & ~np.isnan(jobs.work_total)
        certs = np.zeros((len(jobs), col.WIDTH))
        profile = self._admit(builder, arrays, capacity, timed, certs)
        gpu_type, size = np.empty(len(jobs), np.int64), np.empty(len(jobs), np.int64)
        rs.present(float(view.now_ms), certs, gpu_type, size)
        spend_spare(builder, arrays, profile, gpu_type, size)
        unable = ~changeable(jobs.phase)
        size[unable], gpu_type[unable] = arrays.held[unable], arrays.held_kind[unable]
        for row in builder.rejections:
            size[row] = 0
        free_rows = certs[:, col.CLASS] == col.NONE
        rank = np.where(
            free_rows, 2**40 + np.arange(len(size)), np.argsort(np.argsort(jobs.deadline_ms, kind="stable"))
        )
        failed = carry_out(builder, gpu_type, size, rank, free_rows)
        wake = rs.next_break(float(view.now_ms), certs)
        if failed:
            wake = min(wake, float(view.now_ms + _RETRY_MS))
        memo = PolicyState(columns={"sizes": tables})
        return builder.plan(memo=memo, wake_at_ms=int(wake) if wake < col.FOREVER else None, default=Why.OUTRANKED)

    def _admit(
        self, builder: PlanBuilder, arrays: rs.JobArrays, capacity: Ints, timed: npt.NDArray[np.bool_], certs: Floats
    ) -> rs.Profile:
        """Shares of the admitted, then of each newcomer in order of arrival if all still fit."""
        view = builder.view
        jobs = view.jobs
        due = jobs.deadline_ms.astype(np.float64)
        now = float(view.now_ms)
        room = 6 * len(jobs) + 8 * col.MAX_SEGMENTS

        def empty() -> rs.Profile:
            return rs.Profile(now, capacity, np.zeros((0, col.WIDTH)), arrays.each, 1, room)

        def plan(order: Ints, out: Floats, strict: bool) -> rs.Profile | None:
            p = empty()
            while order.size:
                done = p.reserve_in_order(arrays, order, due, col.PROMISED, out)
                if done == order.size:
                    break
                if strict:
                    return None
                row = int(order[done])  # missed its share since admission: as soon as can be
                if p.soonest(arrays, row, out[row]) >= 0:
                    out[row, col.CLASS] = col.PROMISED
                    p.occupy(out[row], arrays.each[row], 1)
                order = order[done + 1 :]
            return p

        admitted = np.flatnonzero(timed & (jobs.admitted > 0))
        admitted = admitted[np.lexsort((admitted, due[admitted]))]
        newcomers = np.flatnonzero(timed & (jobs.admitted == 0) & jobs.waiting)
        # A newcomer with the latest deadline changes nobody's share: it is tried at the end of the same plan.
        profile = plan(admitted, certs, strict=False)
        assert profile is not None
        for row in newcomers.tolist():
            trial = np.zeros_like(certs)
            order = np.append(admitted, row)
            order = order[np.lexsort((order, due[order]))]
            found = plan(order, trial, strict=True) if due[row] > now else None
            if found is None:
                builder.reject(row, Why.DEADLINE, fault="no minimum satisfactory share", deadline_s=due[row] / 1000.0)
                continue
            certs[:] = trial
            profile, admitted = found, order
            builder.admit(row)
        return profile


def spend_spare(builder: PlanBuilder, jobs: rs.JobArrays, profile: rs.Profile, gpu_type: Ints, size: Ints) -> None:
    """GPUs that no share needs now, to the job that saves most GPU time per GPU added, level by level."""
    view = builder.view
    left = profile.free[:, 0].copy()
    if not (left > 0).any():
        return
    able = changeable(view.jobs.phase) & (view.jobs.not_before_ms <= view.now_ms)
    if builder.rejections:
        able[list(builder.rejections)] = False
    heap: list[tuple[float, int, int, int]] = []
    for row in np.flatnonzero(able).tolist():
        best = _next_step(jobs, row, int(gpu_type[row]), int(size[row]), left)
        if best is not None:
            heapq.heappush(heap, best)
    while heap:
        _, row, k, level = heapq.heappop(heap)
        extra = (int(jobs.sizes[row, level]) - int(size[row])) * int(jobs.each[row])
        if extra > left[k]:
            again = _next_step(jobs, row, int(gpu_type[row]), int(size[row]), left)
            if again is not None:
                heapq.heappush(heap, again)
            continue
        left[k] -= extra
        gpu_type[row], size[row] = k, int(jobs.sizes[row, level])
        more = _next_step(jobs, row, k, int(size[row]), left)
        if more is not None:
            heapq.heappush(heap, more)


def _next_step(
    jobs: rs.JobArrays, row: int, gpu_type: int, size: int, left: Ints
) -> tuple[float, int, int, int] | None:
    """(-saving per GPU, row, type, level) of the next larger size with room."""
    best: tuple[float, int, int, int] | None = None
    gpu_types = range(jobs.base.shape[1]) if gpu_type < 0 else (gpu_type,)
    for k in gpu_types:
        if jobs.base[row, k] <= 0:
            continue
        for level in range(int(jobs.levels[row])):
            if jobs.sizes[row, level] <= size:
                continue
            if (jobs.sizes[row, level] - size) * jobs.each[row] > left[k]:
                break
            saving = 0.0
            if size > 0:
                at = int(np.searchsorted(jobs.sizes[row, : jobs.levels[row]], size))
                before = size / jobs.speeds[row, at]
                after = jobs.sizes[row, level] / jobs.speeds[row, level]
                seconds = jobs.work[row] / jobs.base[row, k]
                saving = seconds * (before - after) / (jobs.sizes[row, level] - size)
            step = (-saving, row, k, level)
            if best is None or step < best:
                best = step
            break
    return best

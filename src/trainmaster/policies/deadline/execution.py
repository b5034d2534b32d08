"""From wanted types and sizes to a plan builder: stop and shrink first, then move, grow and start."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainmaster.core.arrays import Ints
from trainmaster.model.job import PhaseCode
from trainmaster.model.plan_builder import PlanBuilder


def changeable(phase: Ints) -> npt.NDArray[np.bool_]:
    """Which rows a plan may change now."""
    return (phase == PhaseCode.PENDING) | (phase == PhaseCode.RESERVED) | (phase == PhaseCode.RUNNING)


def carry_out(
    builder: PlanBuilder, gpu_type: Ints, size: Ints, rank: Ints, yielding: npt.NDArray[np.bool_]
) -> list[int]:
    """Bring every row to its wanted type and size; `rank` orders those that compete for places (low first).

    `yielding` rows may be stopped when a gang of a reservation fits by count but not by shape. Returns the
    rows that could not be placed.
    """
    jobs = builder.view.jobs
    holding = jobs.holding
    held = np.where(holding, jobs.workers, 0)
    held_kind = np.where(holding, jobs.held_type, -1)
    changes = (size != held) | ((size > 0) & (gpu_type != held_kind))
    phase = jobs.phase
    rows = np.flatnonzero(changes & changeable(phase))
    if rows.size == 0:
        return []
    rows = rows[np.lexsort((rows, rank[rows]))]
    pinned = (jobs.preemptible == 0) & (phase == PhaseCode.RUNNING)
    starts: list[int] = []
    for row in rows.tolist():
        if held[row] == 0:
            starts.append(row)
        elif size[row] == 0 or gpu_type[row] != held_kind[row]:
            if not pinned[row]:
                builder.release(row)
                if size[row] > 0:
                    starts.append(row)
        elif size[row] < held[row]:
            builder.resize(row, int(size[row]))
        else:
            starts.append(row)
    failed: list[int] = []
    backing_off = jobs.not_before_ms > builder.view.now_ms
    for row in starts:
        if backing_off[row] and held[row] == 0:
            continue
        if not _give(builder, row, int(gpu_type[row]), int(size[row])) and not (
            not yielding[row] and _make_room(builder, row, int(gpu_type[row]), int(size[row]), yielding)
        ):
            failed.append(row)
    return failed


def _give(builder: PlanBuilder, row: int, gpu_type: int, size: int) -> bool:
    if builder.allocation(row) is not None:
        return builder.resize(row, size)
    return builder.place(row, workers=size, accelerator=gpu_type)


def _make_room(builder: PlanBuilder, row: int, gpu_type: int, size: int, yielding: npt.NDArray[np.bool_]) -> bool:
    """Stop yielding jobs of the type, latest first, until the gang finds a place."""
    jobs = builder.view.jobs
    candidates = np.flatnonzero(
        yielding & (jobs.phase == PhaseCode.RUNNING) & (jobs.held_type == gpu_type) & (jobs.preemptible > 0)
    )
    for victim in candidates[::-1].tolist():
        if builder.allocation(victim) is None:
            continue
        builder.release(victim)
        if _give(builder, row, gpu_type, size):
            return True
    return False

"""From wanted types and sizes to a draft: stop and shrink first, then move, grow and start."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainmaster.model.draft import Draft
from trainmaster.model.job import P

Ints = npt.NDArray[np.int64]


def changeable(phase: Ints) -> npt.NDArray[np.bool_]:
    """Which rows a plan may change now."""
    return (phase == P.PENDING) | (phase == P.RESERVED) | (phase == P.RUNNING)


def carry_out(draft: Draft, kind: Ints, size: Ints, rank: Ints, yielding: npt.NDArray[np.bool_]) -> list[int]:
    """Bring every row to its wanted type and size; `rank` orders those that compete for places (low first).

    `yielding` rows may be stopped when a gang of a reservation fits by count but not by shape. Returns the
    rows that could not be placed.
    """
    jobs = draft.view.jobs
    holding = jobs.holding
    held = np.where(holding, jobs.workers, 0)
    held_kind = np.where(holding, jobs.held_type, -1)
    changes = (size != held) | ((size > 0) & (kind != held_kind))
    phase = jobs.phase
    rows = np.flatnonzero(changes & changeable(phase))
    if rows.size == 0:
        return []
    rows = rows[np.lexsort((rows, rank[rows]))]
    pinned = (jobs.preemptible == 0) & (phase == P.RUNNING)
    starts: list[int] = []
    for row in rows.tolist():
        if held[row] == 0:
            starts.append(row)
        elif size[row] == 0 or kind[row] != held_kind[row]:
            if not pinned[row]:
                draft.release(row)
                if size[row] > 0:
                    starts.append(row)
        elif size[row] < held[row]:
            draft.resize(row, int(size[row]))
        else:
            starts.append(row)
    failed: list[int] = []
    backing_off = jobs.not_before_ms > draft.view.now_ms
    for row in starts:
        if backing_off[row] and held[row] == 0:
            continue
        if not _give(draft, row, int(kind[row]), int(size[row])) and not (
            not yielding[row] and _make_room(draft, row, int(kind[row]), int(size[row]), yielding)
        ):
            failed.append(row)
    return failed


def _give(draft: Draft, row: int, kind: int, size: int) -> bool:
    if draft.allocation(row) is not None:
        return draft.resize(row, size)
    return draft.place(row, workers=size, accelerator=kind)


def _make_room(draft: Draft, row: int, kind: int, size: int, yielding: npt.NDArray[np.bool_]) -> bool:
    """Stop yielding jobs of the type, latest first, until the gang finds a place."""
    jobs = draft.view.jobs
    candidates = np.flatnonzero(
        yielding & (jobs.phase == P.RUNNING) & (jobs.held_type == kind) & (jobs.preemptible > 0)
    )
    for victim in candidates[::-1].tolist():
        if draft.allocation(victim) is None:
            continue
        draft.release(victim)
        if _give(draft, row, kind, size):
            return True
    return False

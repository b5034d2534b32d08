"""What users are told of deadlines, kept with the policy's state: noted, promised or not, in stages as more is known.

A promise stands in the job's reservation; what is not promised stands here, by job. `standing_answer` reads both and
needs no snapshot, so that a service can show the answer of every job at any time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainmaster.core.arrays import Bools, Floats
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import MS_PER_S
from trainmaster.policies.deadline import reservation_layout as col

ANSWERS, RESERVATIONS = "answers", "plan"
"""Where they are in the policy's state: a value, and a column."""
PROMISED, LATE, NOTED, UNKNOWN, REFUSED = "promised", "late", "noted", "unknown", "refused"


class Answers:
    """Those of one decision. Kept where more may be learned of a job: elsewhere nobody asks."""

    def __init__(self, view: Snapshot) -> None:
        self._view = view
        self._kept: dict[str, Any] = {}
        self._new: dict[int, dict[str, Any]] = {}
        if view.learns:
            self._kept = view.memo.values.get(ANSWERS, {})

    def noted(self, row: int, details: dict[str, Any]) -> None:
        """`details`: what is not known of it yet, or will not be."""
        self._new[row] = details

    def refused(self, row: int, details: dict[str, Any]) -> None:
        self._new[row] = {"answer": REFUSED, **details}

    def plain(self, unbooked: Bools) -> dict[str, Any]:
        """Of jobs that are still there and have no reservation, or a probe."""
        if not self._view.learns:
            return {}
        jobs = self._view.jobs
        new = {str(jobs.id(row)): details for row, details in self._new.items()}
        if self._kept:
            there = {str(jobs.id(row)) for row in np.flatnonzero(unbooked).tolist()}
            new = {**{job_id: kept for job_id, kept in self._kept.items() if job_id in there}, **new}
        return {ANSWERS: new}


def standing_answer(
    values: Mapping[str, Any], reservation: Floats | None, job_id: str, due_ms: int, types: Sequence[str]
) -> dict[str, Any] | None:
    """The answer to one job as JSON data; None: it has none. `values`, `reservation`: of the policy's state."""
    if reservation is not None and reservation[col.CLASS] == col.PROMISED:
        sizes = [int(reservation[col.FIRST + 3 * k + 2]) for k in range(int(reservation[col.COUNT]))]
        kept = reservation[col.DUE] < col.FOREVER
        return {
            "answer": PROMISED if kept else LATE,
            "spare_s": (due_ms - float(reservation[col.FINISH])) / MS_PER_S,
            "workers": max(sizes, default=0),
            "type": types[int(reservation[col.GPU_TYPE])],
        }
    return values.get(ANSWERS, {}).get(job_id)

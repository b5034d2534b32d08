"""What the round mechanism remembers of pairs: who, their speeds together, the share due and received."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainmaster.model.job import JobId
from trainmaster.model.snapshot import Snapshot
from trainmaster.policies.gavel.problem import AllocationResult, FloatArray, IntArray, Pairs

SHARE_MIN = 1e-4
"""Smaller shares of a pair are not worth a slice of time."""


@dataclass
class PairState:
    """Pairs by row of the present snapshot, in order of their jobs' arrival. Arrays have a row per pair."""

    rows: IntArray  # k x 2
    speed: FloatArray  # k x J x 2, steps/s
    share: FloatArray  # k x J
    received_s: FloatArray  # k x J

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def empty(cls, types: int) -> PairState:
        none = np.zeros((0, types))
        return cls(np.zeros((0, 2), np.int64), np.zeros((0, types, 2)), none, none.copy())

    @classmethod
    def of_result(
        cls, view: Snapshot, rows: IntArray, pairs: Pairs | None, result: AllocationResult, received_s: float
    ) -> PairState:
        """The pairs to which a solution gives time; `rows` are the rows of the problem's jobs."""
        types = len(view.cluster.types)
        if pairs is None or result.pair_share is None:
            return cls.empty(types)
        kept = np.flatnonzero((result.pair_share > SHARE_MIN).any(axis=1))
        share = np.where(result.pair_share[kept] > SHARE_MIN, result.pair_share[kept], 0.0)
        book = cls(rows[pairs.jobs[kept]], pairs.throughput[kept], share, np.full(share.shape, received_s))
        return book._only(book._by_arrival(view))

    @classmethod
    def recall(cls, view: Snapshot, values: Mapping[str, Any], share: FloatArray, received_s: FloatArray) -> PairState:
        """As it was written; when a job has left, the other inherits (in `share` and `received_s`, by row) what
        the pair had: it takes no more GPU time, and nobody else has a claim to that."""
        kept: Mapping[str, Any] = values.get("pairs") or {}
        types = len(view.cluster.types)
        if not kept:
            return cls.empty(types)
        job_index_of = view.jobs.columns.job_index_of
        row_of = {job_index: row for row, job_index in enumerate(view.jobs.job_indices.tolist())}
        rows = np.array(
            [[row_of.get(job_index_of.get(JobId(i), -1), -1) for i in ids] for ids in kept["ids"]], np.int64
        )
        book = cls(rows, np.array(kept["speed"]), np.array(kept["share"]), np.array(kept["received_s"]))
        for k in np.flatnonzero((rows < 0).any(axis=1)).tolist():
            for survivor in rows[k][rows[k] >= 0].tolist():
                share[survivor] += book.share[k]
                received_s[survivor] += book.received_s[k]
        return book._only(np.flatnonzero((rows >= 0).all(axis=1)))

    def write(self, view: Snapshot, values: dict[str, Any]) -> None:
        """Put it into memo values, by job id."""
        if len(self) == 0:
            values.pop("pairs", None)
            return
        ids = [[view.jobs.id(a), view.jobs.id(b)] for a, b in self.rows.tolist()]
        values["pairs"] = {
            "ids": ids,
            "speed": self.speed.tolist(),
            "share": self.share.tolist(),
            "received_s": self.received_s.tolist(),
        }

    def _only(self, kept: IntArray) -> PairState:
        return PairState(self.rows[kept], self.speed[kept], self.share[kept], self.received_s[kept])

    def _by_arrival(self, view: Snapshot) -> IntArray:
        arrival = view.jobs.arrival
        return np.lexsort((arrival[self.rows[:, 1]], arrival[self.rows[:, 0]]))

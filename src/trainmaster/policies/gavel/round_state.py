"""What the round mechanism remembers between decisions, and what it reads from a snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trainmaster.model.memo import Memo
from trainmaster.model.placement import Strategy
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import GPU_MILLI
from trainmaster.policies.gavel.pair_book import PairBook

Floats = npt.NDArray[np.float64]

DEFAULT_ROUND_MS = 360_000
_ISOLATED = frozenset({"gavel-ftf"})
"""Policies that count what a job would have had in isolation."""
_REMEMBERED = (
    "share", "received_s", "deficit_s", "known", "speeds", "isolated_s", "isolated_rate", "remaining_before",
)  # fmt: skip


@dataclass
class RoundState:
    """What the mechanism remembers, aligned with the rows of the present snapshot."""

    share: Floats
    received_s: Floats
    deficit_s: Floats
    known: Floats
    speeds: Floats
    """Steps per second by type for which the shares were computed."""
    isolated_s: Floats
    isolated_rate: Floats
    remaining_before: Floats
    values: dict[str, Any]
    pairs: PairBook

    @classmethod
    def recall(cls, view: Snapshot, allocation: str) -> RoundState:
        """As it was remembered. What the view holds is not to be written: `own` copies it first."""
        n, types = len(view.jobs), len(view.cluster.types)
        columns, values = view.memo.columns, dict(view.memo.values)

        def matrix(name: str) -> Floats:
            found = columns.get(name)
            return np.zeros((n, types)) if found is None or found.shape != (n, types) else found

        def vector(name: str, used: bool = True) -> Floats:
            found = columns.get(name) if used else None
            return np.zeros(n if used else 0) if found is None or found.ndim != 1 else found

        share, received_s, isolated = matrix("share"), matrix("received_s"), allocation in _ISOLATED
        if values.get("pairs"):
            share, received_s = share.copy(), received_s.copy()
        return cls(
            share, received_s, matrix("deficit_s"), vector("known"), matrix("speeds"),
            vector("isolated_s", isolated), vector("isolated_rate", isolated), vector("remaining_before", isolated),
            values, PairBook.recall(view, values, share, received_s),
        )  # fmt: skip

    def own(self) -> None:
        """Make everything this state's own, to be written."""
        for name in _REMEMBERED:
            setattr(self, name, getattr(self, name).copy())

    def memo(self) -> Memo:
        return Memo(self.values, {name: getattr(self, name) for name in _REMEMBERED if len(getattr(self, name))})


def round_ms(view: Snapshot) -> int:
    """At least twice the restart cost: in shorter rounds jobs that take turns would never get anywhere."""
    return max(view.round_ms or DEFAULT_ROUND_MS, 2 * view.restart_cost_ms)


def speeds_of(view: Snapshot) -> Floats:
    """What a job makes of each type: on one node, or spread where the gang is larger than any node of the type."""
    jobs = view.jobs
    speeds = np.where(jobs.allowed, jobs.throughput, 0.0)
    if view.placement == Strategy.COUNT:
        return speeds
    largest = np.zeros(len(view.cluster.types))
    np.maximum.at(largest, view.cluster.type_of, view.cluster.gpus)
    apart = asked_gpus(view)[:, None] > largest[None, :]
    return np.where(apart & jobs.allowed, jobs.throughput_spread, speeds) if apart.any() else speeds


def asked_gpus(view: Snapshot) -> Floats:
    return view.jobs.ask_gpu_milli / GPU_MILLI

"""What the round mechanism remembers between decisions, and what it reads from a snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trainmaster.core.int_list import IntList
from trainmaster.model.memo import Memo
from trainmaster.model.snapshot import Snapshot
from trainmaster.policies.gavel.codes import DEFAULT_ROUND_MS, type_order
from trainmaster.policies.gavel.pair_book import PairBook
from trainmaster.policies.gavel.rounds import Rounds

Floats = npt.NDArray[np.float64]

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
    def recall(cls, view: Snapshot, name: str) -> RoundState:
        """As it was remembered by the policy of this name; the view's own arrays are not written."""
        n, types = len(view.jobs), len(view.cluster.types)
        columns, values = view.memo.columns, dict(view.memo.values)

        def matrix(name: str) -> Floats:
            found = columns.get(name)
            return np.zeros((n, types)) if found is None or found.shape != (n, types) else found.copy()

        def vector(name: str, used: bool = True) -> Floats:
            found = columns.get(name) if used else None
            return np.zeros(n if used else 0) if found is None or found.ndim != 1 else found.copy()

        share, received_s, isolated = matrix("share"), matrix("received_s"), name in _ISOLATED
        return cls(
            share, received_s, matrix("deficit_s"), vector("known"), matrix("speeds"),
            vector("isolated_s", isolated), vector("isolated_rate", isolated), vector("remaining_before", isolated),
            values, PairBook.recall(view, values, share, received_s),
        )  # fmt: skip

    def bind(self, view: Snapshot, rounds: Rounds) -> None:
        """Let the rounds work on what is remembered here."""
        values = self.values
        rounds.round_ms = round_ms(view)
        rounds.round_end_ms = int(values.get("round_end_ms", 0))
        rounds.last_reset_ms = int(values.get("last_reset_ms", 0))
        rounds.computed_jobs, rounds.nodes_then = values.get("computed_jobs", 0), values.get("nodes_up", 0)
        rounds.worker_s = np.array(values.get("worker_s", [0.0] * len(view.cluster.types)))
        rounds.remember(self.share, self.received_s, self.deficit_s, self.known, self.speeds)
        if rounds.queueing:
            rounds.type_order = type_order(view.cluster.types)
        self.bind_pairs(rounds)

    def bind_pairs(self, rounds: Rounds) -> None:
        book = self.pairs
        rounds.set_pairs(book.rows, book.speed, book.share, book.received_s)

    def memo(self, view: Snapshot, rounds: Rounds) -> Memo:
        self.pairs.write(view, self.values)
        self.values.update(round_end_ms=rounds.round_end_ms, worker_s=np.asarray(rounds.worker_s).tolist())
        self.values.setdefault("last_reset_ms", 0)
        return Memo(self.values, {name: getattr(self, name) for name in _REMEMBERED if len(getattr(self, name))})


def rows_of(view: Snapshot) -> IntList:
    """The job indices of the rows of a snapshot."""
    which = IntList(len(view.jobs))
    which.values[:] = view.jobs.slots
    which.n = len(view.jobs)
    return which


def round_ms(view: Snapshot) -> int:
    """At least twice the restart cost: in shorter rounds jobs that take turns would never get anywhere."""
    return max(view.round_ms or DEFAULT_ROUND_MS, 2 * view.restart_cost_ms)

"""What the round mechanism remembers between decisions, and what it reads from a snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trainmaster.core.arrays import Floats
from trainmaster.core.int_list import IntList
from trainmaster.model.policy_state import PolicyState
from trainmaster.model.snapshot import Snapshot
from trainmaster.policies.gavel.codes import DEFAULT_ROUND_MS, type_order
from trainmaster.policies.gavel.pair_state import PairState
from trainmaster.policies.gavel.rounds import Rounds
from trainmaster.policies.gavel.shares import Isolated

REMEMBERED = ("share", "received_s", "deficit_s", "known", "speeds")
ISOLATED = ("isolated_s", "isolated_rate", "remaining_before")
"""Of finish-time fairness alone: what a job would have had in isolation."""


@dataclass
class RoundState:
    """What the mechanism remembers, aligned with the rows of the present snapshot."""

    share: Floats
    received_s: Floats
    deficit_s: Floats
    known: Floats
    speeds: Floats
    """Steps per second by type for which the shares were computed."""
    isolated: Isolated | None
    values: dict[str, Any]
    pairs: PairState

    @classmethod
    def recall(cls, view: Snapshot, name: str) -> RoundState:
        """As it was remembered by the policy of this name; the view's own arrays are not written."""
        n, types = len(view.jobs), len(view.cluster.types)
        columns, values = view.memo.columns, dict(view.memo.values)

        def matrix(name: str) -> Floats:
            found = columns.get(name)
            return np.zeros((n, types)) if found is None or found.shape != (n, types) else found.copy()

        def vector(name: str) -> Floats:
            found = columns.get(name)
            return np.zeros(n) if found is None or found.ndim != 1 else found.copy()

        share, received_s = matrix("share"), matrix("received_s")
        isolated = Isolated(*map(vector, ISOLATED)) if name == "gavel-ftf" else None
        pairs = PairState.recall(view, values, share, received_s)
        return cls(share, received_s, matrix("deficit_s"), vector("known"), matrix("speeds"), isolated, values, pairs)

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

    def memo(self, view: Snapshot, rounds: Rounds) -> PolicyState:
        self.pairs.write(view, self.values)
        self.values.update(values_of(rounds))
        columns = {name: getattr(self, name) for name in REMEMBERED}
        if self.isolated is not None:
            columns |= {name: getattr(self.isolated, name) for name in ISOLATED}
        return PolicyState(self.values, columns)


def values_of(rounds: Rounds) -> dict[str, Any]:
    """What is remembered beside the columns."""
    return {
        "round_end_ms": int(rounds.round_end_ms),
        "worker_s": np.asarray(rounds.worker_s).tolist(),
        "last_reset_ms": int(rounds.last_reset_ms),
        "computed_jobs": int(rounds.computed_jobs),
        "nodes_up": int(rounds.nodes_then),
    }


def teams_of(view: Snapshot) -> dict[str, Any] | None:
    """What the operator has said of teams; None: nothing."""
    books = {"weights": dict(view.entity_weights), "policies": dict(view.entity_policies)}
    return books if any(books.values()) else None


def rows_of(view: Snapshot) -> IntList:
    """The job indices of the rows of a snapshot."""
    which = IntList(len(view.jobs))
    which.values[:] = view.jobs.job_indices
    which.n = len(view.jobs)
    return which


def round_ms(view: Snapshot) -> int:
    """At least twice the restart cost: in shorter rounds jobs that take turns would never get anywhere."""
    return max(view.round_ms or DEFAULT_ROUND_MS, 2 * view.restart_cost_ms)

# cython: cdivision=True
"""One whole episode, compiled, with records of its slots and decisions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmaster.learn.sizing.world import SlotWorld
from trainmaster.policies.dl2.features import N_GLOBAL, N_JOB
from trainmaster.policies.dl2.incremental import IncrementalNetwork

if TYPE_CHECKING:
    from trainmaster.learn.sizing.batch import SlotState

MAX_SLOTS = 20_000
FIRST = np.zeros(1, np.int64)
LARGEST = float("inf")
BAD_RATIO = 10.0
"""Workers per server, or servers per worker, from which a size counts as badly matched (the paper's figure)."""


def grown(array: Any, needed: int) -> Any:
    """The array, with room for so many rows."""
    array = np.asarray(array)
    if needed <= array.shape[0]:
        return array
    bigger = np.zeros((max(needed, 2 * array.shape[0]), *array.shape[1:]), array.dtype)
    bigger[: array.shape[0]] = array
    return bigger


class Episode:
    """Records of slots (s_*) and of a part of the decisions (d_*): see `Samples` and `Slots` of `rollout`. Scores are
    those of the compiled `network`; without one, `scorer` is asked for each decision."""

    def __init__(
        self,
        world: SlotWorld,
        network: IncrementalNetwork | None,
        scorer: Any,
        b: int,
        state: SlotState,
        greedy: bool,
        kept: float,
        exploration: float,
    ) -> None:
        self.world, self.network, self.scorer, self.b = world, network, scorer, b
        self.greedy, self.kept, self.exploration = greedy, kept, exploration
        self.rows, self.features = state.rows[b], state.features[b]
        self.workers, self.servers, self.trained = state.workers[b], state.servers[b], state.trained[b]
        self.n_rows = state.n_rows
        self.first = b * state.work.shape[1]
        self.scores = np.zeros((int(state.n_jobs[b]), 3), np.float32)
        self.seen = np.zeros((1, N_GLOBAL), np.float32)
        self.s_rows, self.s_globals = np.zeros((1024, N_JOB), np.float32), np.zeros((256, N_GLOBAL), np.float32)
        self.s_numbers = np.zeros((256, 3))  # rows, present, progress
        self.d_rows, self.d_globals = np.zeros((1024, N_JOB), np.float32), np.zeros((256, N_GLOBAL), np.float32)
        self.d_allowed = np.zeros((1024, 3), np.bool_)
        self.d_numbers = np.zeros((256, 6))  # rows, chosen row, action, log p, slot, own progress
        self.n_s = self.n_srow = self.n_d = self.n_drow = 0

    def records(self) -> tuple[Any, ...]:
        return (
            np.asarray(self.s_rows)[: self.n_srow],
            np.asarray(self.s_globals)[: self.n_s],
            np.asarray(self.s_numbers)[: self.n_s],
            np.asarray(self.d_rows)[: self.n_drow],
            np.asarray(self.d_allowed)[: self.n_drow],
            np.asarray(self.d_globals)[: self.n_d],
            np.asarray(self.d_numbers)[: self.n_d],
        )

    def play(self, rng: np.random.Generator) -> None:
        """To the end; `rng` draws what is tried and what is recorded."""
        world, b = self.world, self.b
        alive = self.n_rows[b] > 0
        while alive and self.n_s < MAX_SLOTS:
            n = self.n_rows[b]
            first_decision = self.n_d
            self._begin(n)
            while world.any_legal(b):
                self._decide(n, rng)
                if self.row < 0:
                    break
                j = self.rows[self.row]
                world.grant(b, self.first + j, self.action)
                if self.network is not None:
                    self.network.changed(j, self.features, j, False)
            self._end(first_decision)
            alive = world.begin_slot(b)

    def _begin(self, n: int) -> None:
        if self.network is not None:
            self.network.clear()
            for i in range(n):
                self.network.changed(self.rows[i], self.features, self.rows[i], True)
        if self.greedy:
            return
        self.s_rows = grown(self.s_rows, self.n_srow + n)
        self.s_globals, self.s_numbers = grown(self.s_globals, self.n_s + 1), grown(self.s_numbers, self.n_s + 1)
        for i in range(n):
            self.s_rows[self.n_srow + i, :] = self.features[self.rows[i], :]
        self.world.write_globals(self.b, self.s_globals, self.n_s)
        self.s_numbers[self.n_s, 0] = n
        self.n_srow += n

    def _end(self, first_decision: int) -> None:
        """The slot passes; decisions of it get the progress of the job that they chose."""
        self.world.end_slot(self.b)
        if not self.greedy:
            self.s_numbers[self.n_s, 1], self.s_numbers[self.n_s, 2] = self.world.present, self.world.progress
            for k in range(first_decision, self.n_d):
                row = int(self.d_numbers[k, 1])
                if row >= 0:
                    self.d_numbers[k, 5] = self.trained[self.rows[row]]
        self.n_s += 1

    def _decide(self, n: int, rng: np.random.Generator) -> None:
        """Choose `row` and `action` (-1: stop)."""
        self.world.write_globals(self.b, self.seen, 0)
        void = self._score(n)
        best = -LARGEST
        self.row = self.action = -1
        for i in range(n):
            for a in range(3):
                if self.world.legal(self.b, self.first + self.rows[i], a):
                    if self.scores[i, a] > best:
                        best = self.scores[i, a]
                        self.row, self.action = i, a
                else:
                    self.scores[i, a] = -LARGEST
        top = max(best, void)
        total = math.exp(void - top)
        for i in range(n):
            for a in range(3):
                total += math.exp(self.scores[i, a] - top)
        if self.greedy:
            if math.exp(void - top) > 0.5 * total:
                self.row = self.action = -1
            return
        self._sample(n, void, top, rng.random() * total)
        if self.exploration > 0.0 and rng.random() < self.exploration:
            self._explore(n)
        if rng.random() < self.kept:
            self._record(n, void, top, total)

    def _score(self, n: int) -> float:
        """Write the scores; returns that of stopping."""
        if self.network is not None:
            return self.network.score(n, self.seen[0], self.rows, self.scores)
        rows = np.asarray(self.features)[np.asarray(self.rows)[:n]]
        scores, void = self.scorer.scores(rows, FIRST, np.asarray(self.seen))
        np.asarray(self.scores)[:n] = scores
        return float(void[0])

    def _sample(self, n: int, void: float, top: float, target: float) -> None:
        seen = math.exp(void - top)
        self.row = self.action = -1
        if seen <= target:
            for i in range(n):
                for a in range(3):
                    chance = math.exp(self.scores[i, a] - top)
                    if chance > 0.0 and seen <= target:
                        seen += chance
                        self.row, self.action = i, a

    def _explore(self, n: int) -> None:
        """Give the first job that has far too many of one role the other."""
        for i in range(n):
            j = self.rows[i]
            w, p = self.workers[j], self.servers[j]
            if w > 0 and w >= BAD_RATIO * p and self.scores[i, 1] > -LARGEST:
                self.row, self.action = i, 1
                return
            if p > 0 and p >= BAD_RATIO * w and self.scores[i, 0] > -LARGEST:
                self.row, self.action = i, 0
                return

    def _record(self, n: int, void: float, top: float, total: float) -> None:
        d, at = self.n_d, self.n_drow
        self.d_rows, self.d_allowed = grown(self.d_rows, at + n), grown(self.d_allowed, at + n)
        self.d_globals, self.d_numbers = grown(self.d_globals, d + 1), grown(self.d_numbers, d + 1)
        for i in range(n):
            self.d_rows[at + i, :] = self.features[self.rows[i], :]
            for a in range(3):
                self.d_allowed[at + i, a] = self.scores[i, a] > -LARGEST
        self.d_globals[d, :] = self.seen[0, :]
        chosen = void if self.row < 0 else self.scores[self.row, self.action]
        self.d_numbers[d, 0], self.d_numbers[d, 1], self.d_numbers[d, 2] = n, self.row, self.action
        self.d_numbers[d, 3] = chosen - top - math.log(total)
        self.d_numbers[d, 4] = self.n_s
        self.n_drow += n
        self.n_d += 1

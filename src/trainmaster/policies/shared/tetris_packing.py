# cython: cdivision=True
"""The order in which Tetris packs, compiled (see `tetris`)."""

from __future__ import annotations

import numpy as np

from trainmaster.core.int_list import Bools, Floats, Ints, new_floats, new_ints
from trainmaster.policies.shared.node_capacity import Room


class Packing:
    """Waiting jobs, best score first, each judged by what those before it leave free.

    score = alignment / mean alignment - mix * work / mean work, which is the paper's a - epsilon p with
    epsilon = mix * (mean a) / (mean p), section 3.3.2. A job is judged on its fastest type with room.
    """

    def __init__(
        self,
        room: Room,
        waiting: Ints,
        share: Floats,
        total: Floats,
        workers: Ints,
        servers: Ints,
        allowed: Bools,
        throughput: Floats,
    ) -> None:
        self.room, self.waiting, self.share, self.total = room, waiting, share, total
        self.workers, self.servers, self.allowed, self.throughput = workers, servers, allowed, throughput
        self.open = np.ones(len(waiting), np.bool_)
        self.alignment = new_floats(len(waiting))
        self.on = new_ints(len(waiting))
        self.free = np.zeros((allowed.shape[1], 3))

    def order(self, work: Floats, mean_work: float, mix: float, chosen: Ints) -> int:
        """Write the positions in `waiting` of those that fit by number; returns how many."""
        n_chosen = 0
        while True:
            mean_alignment = self._align()
            if mean_alignment < 0.0:
                return n_chosen
            top = -1
            top_score = 0.0
            for i in range(len(work)):
                if self.open[i]:
                    score = self.alignment[i] / mean_alignment - mix * work[i] / mean_work
                    if top < 0 or score > top_score:
                        top, top_score = i, score
            chosen[n_chosen] = top
            n_chosen += 1
            self.open[top] = False
            row: int = self.waiting[top]
            self.room.take(row, self.on[top], self.workers[row], self.servers[row])

    def _align(self) -> float:
        """Alignment of every open job with what is free; the mean, or -1 when none is open any more."""
        room = self.room
        for k in range(self.free.shape[0]):
            self.free[k, 0] = room.milli[k] / self.total[0]
            self.free[k, 1] = room.cpu[k] / self.total[1]
            self.free[k, 2] = room.mem[k] / self.total[2]
        total = 0.0
        n_open = 0
        for i in range(self.open.shape[0]):
            if not self.open[i]:
                continue
            row = self.waiting[i]
            best = self._fastest(row)
            if best < 0:  # what is free only shrinks
                self.open[i] = False
                continue
            self.on[i] = best
            self.alignment[i] = 0.0
            for resource in range(3):
                self.alignment[i] += self.share[row, resource] * self.free[best, resource]
            total += self.alignment[i]
            n_open += 1
        return max(total / n_open, 1e-300) if n_open else -1.0

    def _fastest(self, row: int) -> int:
        best = -1
        for k in range(self.allowed.shape[1]):
            if (
                self.allowed[row, k]
                and (best < 0 or self.throughput[row, k] > self.throughput[row, best])
                and self.room.fits(row, k, self.workers[row], self.servers[row])
            ):
                best = k
        return best

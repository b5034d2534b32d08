# cython: cdivision=True
"""One decision of DL2, compiled: grants of a worker, a server or both, one after the other, to the job that scores
highest (see `growth`)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from trainmaster.core.int_list import Floats, Ints, new_floats
from trainmaster.policies.dl2.features import N_GLOBAL, JobFeatures, LogTimes, global_features
from trainmaster.policies.dl2.incremental import IncrementalNetwork
from trainmaster.policies.dl2.outcomes import NOT_FINITE, STOPPED, STOPPED_AT_ONCE, USED_UP
from trainmaster.policies.shared.node_capacity import Room
from trainmaster.policies.shared.speed_curves import SpeedCurves

if TYPE_CHECKING:
    from trainmaster.policies.dl2.growth import Candidates

Singles = npt.NDArray[np.float32]

LARGEST = float("inf")


class Granting:
    """Candidates, what is free, and their sizes, which grow in place."""

    def __init__(
        self,
        jobs: Candidates,
        room: Room,
        features: Singles,
        workers: Ints,
        servers: Ints,
        total: Floats,
        stride: int,
        least_share: float,
    ) -> None:
        self.row, self.gpu_type, coefficients, self.work_slots, self.age_slots, self.done = jobs[:6]
        self.workers_least, self.servers_least, self.workers_max, self.servers_max = jobs[6:10]
        self.worker_cost, self.server_cost = jobs[10:]
        self.n = len(jobs.row)
        self.curves = SpeedCurves(np.ascontiguousarray(coefficients))
        self.rows = features
        self.features = JobFeatures(features, self.curves)
        self.room, self.workers, self.servers, self.total = room, workers, servers, total
        self.stride, self.least_share, self.inferences = stride, least_share, 0
        self.order = np.arange(self.n)
        self.allowed = np.zeros((self.n, 3), np.bool_)
        self.scores = np.zeros((self.n, 3), np.float32)
        self.seen = np.zeros(N_GLOBAL, np.float32)
        self._begin()

    def _begin(self) -> None:
        log_time = new_floats(self.n)
        for i in range(self.n):
            step = self.curves.step_time(i, max(self.workers_least[i], 1), self.servers_least[i])
            log_time[i] = math.log(max(self.work_slots[i] * step, 1e-6))
        self.log_times = LogTimes(log_time, self.n)
        for i in range(self.n):
            self.features.at_slot(
                i,
                log_time[i],
                self.age_slots[i],
                self.done[i],
                self.worker_cost[i],
                self.server_cost[i],
                self.log_times,
                i,
            )
            self._resized(i)

    def _resized(self, i: int) -> None:
        row: int = self.row[i]
        self.features.at_size(
            i,
            self.work_slots[i],
            self.workers[row],
            self.servers[row],
            self.workers_max[i],
            self.servers_max[i],
            self.worker_cost[i],
            self.server_cost[i],
        )

    def run(self, network: IncrementalNetwork) -> int:
        """Grant until the network says stop or nothing more fits; returns how it ended."""
        for i in range(self.n):
            network.changed(i, self.rows, i, True)
        while self.mark_legal():
            self.see()
            void = network.score(self.n, self.seen, self.order, self.scores)
            outcome = self.choose(self.scores, void)
            if outcome != USED_UP:
                return outcome
            self.grant()
            network.changed(self.chosen, self.rows, self.chosen, False)
        return USED_UP

    def see(self) -> Singles:
        """The global features now."""
        free = 0.0
        for k in range(self.room.milli.shape[0]):
            free += self.room.milli[k]
        global_features(
            self.seen,
            free / self.total[0],
            self.room.anywhere[0] / self.total[1],
            self.n,
            self.log_times,
            self.least_share,
        )
        return self.seen

    def choose(self, scores: Singles, void: float) -> int:
        """Take the possible action with the highest score (the earlier job in a tie), or say why there is none to
        take: stopping is likelier than all of them together."""
        self.inferences += 1
        if not math.isfinite(void):
            return NOT_FINITE
        self.chosen = self.action = -1
        best = -LARGEST
        gain = 0.0
        for i in range(self.n):
            for action in range(3):
                score = scores[i, action]
                if not math.isfinite(score):
                    return NOT_FINITE
                if self.allowed[i, action]:
                    gain = max(gain, self.rows[i, 6 + action])
                    if score > best:
                        self.chosen, self.action, best = i, action, score
        top = max(best, void)
        others = 0.0
        for i in range(self.n):
            for action in range(3):
                if self.allowed[i, action]:
                    others += math.exp(scores[i, action] - top)
        if math.exp(void - top) <= others:
            return USED_UP
        absurd = self.inferences == 1 and self.seen[0] > 0.5 and gain > 0.1
        return STOPPED_AT_ONCE if absurd else STOPPED

    def grant(self) -> None:
        """Carry out what was chosen, as often as the stride says."""
        i, action = self.chosen, self.action
        row = self.row[i]
        workers = 0 if action == 1 else 1
        servers = 0 if action == 0 or self.servers_max[i] == 0 else 1
        for _ in range(self.stride):
            self.room.take(row, self.gpu_type[i], workers, servers)
            self.workers[row] += workers
            self.servers[row] += servers
            if not self._may(i, action):
                break
        self._resized(i)

    def _may(self, i: int, action: int) -> bool:
        """Whether it has room and is within its limits. "Both" gives a worker alone to a job that takes no servers."""
        row = self.row[i]
        if self.servers_max[i] == 0 and action != 2:
            return False
        workers = 0 if action == 1 else 1
        servers = 0 if action == 0 or self.servers_max[i] == 0 else 1
        if self.workers[row] + workers > self.workers_max[i] or self.servers[row] + servers > self.servers_max[i]:
            return False
        return self.room.fits(row, self.gpu_type[i], workers, servers)

    def mark_legal(self) -> bool:
        """Mark what is possible for every candidate; whether anything is."""
        some = False
        for i in range(self.n):
            for action in range(3):
                possible = self._may(i, action)
                self.allowed[i, action] = possible
                some = some or possible
        return some

# cython: cdivision=True
"""Progressive filling by dominant share, compiled (see `drf`)."""

from __future__ import annotations

import numpy as np

from trainmaster.core.int_list import Bools, Floats, Ints
from trainmaster.policies.shared.node_capacity import JobSizes, Room


class DominantShares:
    """What teams and jobs use of the cluster, weighted; filled one gang or bundle at a time."""

    def __init__(
        self, room: Room, sizes: JobSizes, total: Floats, team: Ints, team_weight: Floats, weight: Floats, arrival: Ints
    ) -> None:
        self.room, self.sizes, self.total = room, sizes, total
        self.team, self.team_weight, self.weight, self.arrival = team, team_weight, weight, arrival
        self.team_use = np.zeros((len(team_weight), 3))
        self.job_share = np.zeros(len(team))
        self.head = np.zeros(len(team_weight), np.int64)
        self.open = np.zeros(len(team), np.bool_)
        self.closed = np.zeros(self.sizes.allowed.shape[1], np.bool_)

    def fill(self, may_start: Bools, may_grow: Bools, first: Ints) -> None:
        """Grant gangs and bundles one at a time, always to the smallest weighted dominant share.

        The team with the smallest share comes first, then its job with the smallest; the earlier arrival breaks
        ties. What does not fit is passed over, since what is left only shrinks. Jobs in `first` come before.
        """
        sizes = self.sizes
        for row in range(len(may_start)):
            self.open[row] = may_start[row] or may_grow[row]
            self._used_more(row, sizes.workers[row], sizes.servers[row])
        for k in range(len(first)):
            self._serve_first(first[k])
        for row in range(len(may_start)):
            self._update_share(row)
        while True:
            row = self._next()
            if row < 0:
                return
            self._grant(row)

    def _serve_first(self, row: int) -> None:
        sizes = self.sizes
        workers, servers = sizes.workers_min[row], sizes.servers_min[row]
        best = sizes.fastest_with_room(self.room, row, workers, servers, self.closed)
        sizes.workers[row], sizes.servers[row] = workers, servers
        if best < 0:
            # It keeps its place at the head; its target size says that it shall run as soon as it can.
            for k in range(self.closed.shape[0]):
                self.closed[k] = self.closed[k] or sizes.allowed[row, k]
            self.open[row] = False
            return
        self.room.take(row, best, workers, servers)
        sizes.gpu_type[row] = best
        self._used_more(row, workers, servers)

    def _used_more(self, row: int, workers: int, servers: int) -> None:
        for resource in range(3):
            self.team_use[self.team[row], resource] += self.room.use(row, workers, servers, resource)

    def _update_share(self, row: int) -> None:
        for resource in range(3):
            used = self.room.use(row, self.sizes.workers[row], self.sizes.servers[row], resource)
            self.job_share[row] = max(self.job_share[row], used / self.total[resource] / self.weight[row])

    def _next(self) -> int:
        """The best open job of the best team that has one; -1 when none is open."""
        for team in range(self.head.shape[0]):
            self.head[team] = -1
        for row in range(self.open.shape[0]):
            if self.open[row]:
                best = self.head[self.team[row]]
                if (
                    best < 0
                    or self.job_share[row] < self.job_share[best]
                    or (self.job_share[row] == self.job_share[best] and self.arrival[row] < self.arrival[best])
                ):
                    self.head[self.team[row]] = row
        chosen = -1
        chosen_share = 0.0
        for team in range(self.head.shape[0]):
            if self.head[team] < 0:
                continue
            share = 0.0
            for resource in range(3):
                share = max(share, self.team_use[team, resource] / self.total[resource])
            share /= self.team_weight[team]
            if (
                chosen < 0
                or share < chosen_share
                or (share == chosen_share and self.arrival[self.head[team]] < self.arrival[chosen])
            ):
                chosen, chosen_share = self.head[team], share
        return chosen

    def _grant(self, row: int) -> None:
        """A gang to a job that has nothing, else one more worker and, while it takes some, a server."""
        sizes = self.sizes
        if sizes.workers[row] == 0:
            workers, servers = sizes.workers_min[row], sizes.servers_min[row]
            gpu_type = sizes.fastest_with_room(self.room, row, workers, servers, self.closed)
            if gpu_type < 0:
                self.open[row] = False
                return
            sizes.gpu_type[row] = gpu_type
        else:
            gpu_type = sizes.gpu_type[row]
            workers, servers = 1, 1 if sizes.servers[row] < sizes.servers_max[row] else 0
            if (
                sizes.workers[row] >= sizes.workers_max[row]
                or self.closed[gpu_type]
                or not self.room.fits(row, gpu_type, workers, servers)
            ):
                self.open[row] = False
                return
        self.room.take(row, gpu_type, workers, servers)
        sizes.workers[row] += workers
        sizes.servers[row] += servers
        self._used_more(row, workers, servers)
        self._update_share(row)
        if sizes.workers[row] >= sizes.workers_max[row]:
            self.open[row] = False

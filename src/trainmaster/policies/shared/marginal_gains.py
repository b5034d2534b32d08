# cython: cdivision=True
"""Workers and servers to the job where they save most time for what they cost, compiled (see `optimus`)."""

from __future__ import annotations

import numpy as np

from trainmaster.core.int_list import Floats, Ints
from trainmaster.policies.shared.node_capacity import JobSizes, Room
from trainmaster.policies.shared.speed_curves import SpeedCurves

INFINITE_S = float("inf")


class MarginalGains:
    """What is believed of speed and work left: the curve by its coefficients, or as a row of `tables` (speed by
    workers) where `table` is not -1; `scale`, by type, such that units of work per second = scale / step time."""

    def __init__(
        self,
        room: Room,
        sizes: JobSizes,
        curves: SpeedCurves,
        remaining: Floats,
        table: Ints,
        tables: Floats,
        scale: Floats,
    ) -> None:
        self.room, self.sizes, self.curves = room, sizes, curves
        self.remaining, self.table, self.tables, self.scale = remaining, table, tables, scale

    def time_left(self, row: int, workers: int, servers: int, gpu_type: int) -> float:
        """Seconds to finish the remaining work with so many workers and servers on a type."""
        if self.table[row] >= 0:
            speed = self.tables[self.table[row], min(workers, self.tables.shape[1] - 1)]
            step = 1.0 / speed if speed > 0 else INFINITE_S
        else:
            step = self.curves.step_time(row, workers, servers)
        if self.scale[row, gpu_type] > 0:
            return self.remaining[row] * step / self.scale[row, gpu_type]
        return INFINITE_S

    def grow(self, rows: Ints, worker_cost: Floats, server_cost: Floats) -> None:
        """Repeatedly give one worker or one server to the job with the largest (time saved) / (dominant share),
        EuroSys'18 section 4.1, until nothing gains or fits. `rows` are in order of arrival, which breaks ties."""
        room, sizes = self.room, self.sizes
        self.gain = np.zeros((len(rows), 2))
        self.out_of_room = np.zeros((len(rows), 2), np.bool_)
        for i in range(len(rows)):
            self._judge(i, rows[i], worker_cost, server_cost)
        while True:
            best = -1
            best_gain = 0.0
            role = 0
            for i in range(len(rows)):
                for k in range(2):
                    if self.gain[i, k] > best_gain:
                        best, role, best_gain = i, k, self.gain[i, k]
            if best < 0:
                return
            row: int = rows[best]
            if room.fits(row, sizes.gpu_type[row], 1 - role, role):
                room.take(row, sizes.gpu_type[row], 1 - role, role)
                sizes.workers[row] += 1 - role
                sizes.servers[row] += role
            else:
                self.out_of_room[best, role] = True
            self._judge(best, row, worker_cost, server_cost)

    def _judge(self, i: int, row: int, worker_cost: Floats, server_cost: Floats) -> None:
        """Gain of one more worker and of one more server for the i-th job."""
        sizes = self.sizes
        workers, servers, gpu_type = sizes.workers[row], sizes.servers[row], sizes.gpu_type[row]
        now = self.time_left(row, workers, servers, gpu_type)
        self.gain[i, 0] = self.gain[i, 1] = 0.0
        if workers < sizes.workers_max[row] and not self.out_of_room[i, 0]:
            self.gain[i, 0] = (now - self.time_left(row, workers + 1, servers, gpu_type)) / worker_cost[row]
        if servers < sizes.servers_max[row] and not self.out_of_room[i, 1]:
            self.gain[i, 1] = (now - self.time_left(row, workers, servers + 1, gpu_type)) / server_cost[row]

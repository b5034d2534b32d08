"""DP(t, u): the least cost of u grains of work before slot t, for all end slots at once.

Compiled (`schedule_table.pxd`). A slot offers gangs; gang k does `gain[t, k]` whole grains in slot t for `cost[t, k]`.
The work ends in the slot in which its last grains are done; that slot is paid for as long as it is used (`part_paid`:
what is left returns to the commitments), or whole.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
INFINITY = float("inf")


class ScheduleTable:
    """The filled table. `finish[t]`: least cost of ending in slot t; `rows`: slots that were computed."""

    def __init__(self, cost: Floats, gain: Ints, units: int, part_paid: bool) -> None:
        self.cost, self.gain, self.units, self.part_paid = cost, gain, units, part_paid
        self.time_slots, self.gangs = cost.shape[0], cost.shape[1]
        self.table = np.empty((self.time_slots + 1, units))
        self.reach = np.zeros(self.time_slots + 1, np.int64)
        """The most grains in a row of the table; what lies beyond is never written."""
        self.finish = np.full(self.time_slots, np.inf)
        self.rows = 0

    def fill(self, values: Floats, stop_early: bool) -> None:
        """`values[t]`: worth of ending in slot t, non-increasing; with `stop_early`, rows end where no later end can
        beat the best payoff found."""
        self.table[0, 0] = 0.0
        best = -INFINITY
        for t in range(self.time_slots):
            if stop_early and values[t] <= best:
                break
            reach = self._next_row(t)
            for k in range(self.gangs):
                step, grains = self.cost[t, k], self.gain[t, k]
                if step == INFINITY or grains == 0:
                    continue
                for u in range(max(0, self.units - grains), min(reach, self.units - 1) + 1):
                    value = self.table[t, u] + self._last(step, grains, u)
                    if value < self.finish[t]:
                        self.finish[t] = value
                for u in range(min(reach, self.units - 1 - grains) + 1):
                    value = self.table[t, u] + step
                    if value < self.table[t + 1, u + grains]:
                        self.table[t + 1, u + grains] = value
            best = max(best, values[t] - self.finish[t])
            self.rows = t + 1

    def _next_row(self, t: int) -> int:
        """Begin row t + 1 as row t; returns the reach of row t."""
        most, reach = 0, self.reach[t]
        for k in range(self.gangs):
            if self.cost[t, k] < INFINITY:
                most = max(most, self.gain[t, k])
        self.reach[t + 1] = min(self.units - 1, reach + most)
        for u in range(reach + 1):
            self.table[t + 1, u] = self.table[t, u]
        for u in range(reach + 1, self.reach[t + 1] + 1):
            self.table[t + 1, u] = INFINITY
        return reach

    def _last(self, step: float, grains: int, u: int) -> float:
        """What the slot costs in which the work ends, after u grains."""
        return step * (self.units - u) / grains if self.part_paid else step

    def trace(self, end: int, chosen: Ints) -> None:
        """The gang of each slot 0 .. end (-1: idle) on a cheapest path that ends in slot `end`, into `chosen`."""
        left = -1
        for k in range(self.gangs):
            step, grains = self.cost[end, k], self.gain[end, k]
            if step == INFINITY or grains == 0:
                continue
            for u in range(max(0, self.units - grains), self.reach[end] + 1):
                if left < 0 and self.table[end, u] + self._last(step, grains, u) == self.finish[end]:
                    chosen[end] = k
                    left = u
        for back in range(end):
            t = end - 1 - back
            if left == 0 or (left <= self.reach[t] and self.table[t, left] == self.table[t + 1, left]):
                continue  # idle is preferred, and the sums are those of the forward pass
            for k in range(self.gangs):
                grains = self.gain[t, k]
                if grains == 0 or left < grains or left - grains > self.reach[t]:
                    continue
                if self.table[t, left - grains] + self.cost[t, k] == self.table[t + 1, left]:
                    chosen[t] = k
                    left -= grains
                    break

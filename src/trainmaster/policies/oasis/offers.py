"""What instances and the engine share in making an offer: the best path through slots, and what a refused job lacks.

DP(t, D) = min_d COST(t, d) + DP(t-1, D-d), in `schedule_table`; row t ends every schedule that completes by slot t, so
one table yields the least cost for each end slot, and worth - cost is maximised over them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainmaster.model.utility import FloatArray, Utility
from trainmaster.policies.oasis.instance.schedule_table import ScheduleTable

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Path:
    """`chosen[t]`: the gang of slot t (-1: idle) up to the last slot; empty: none fits. `costs[t]`: the least cost of
    ending in slot t; inf where it cannot end, or where no later end can win."""

    chosen: Ints
    costs: FloatArray

    @property
    def end(self) -> int:
        return len(self.chosen) - 1


def best_path(
    cost: FloatArray, gain: Ints, units: int, worths: FloatArray, *, part_paid: bool, all_ends: bool = False
) -> Path:
    """Gang k does `gain[t, k]` of `units` in slot t for `cost[t, k]`; `worths[t]` is that of ending in slot t."""
    table = ScheduleTable(cost, gain, units, part_paid)
    table.fill(worths, not all_ends)
    costs = np.array(table.finish)
    if not np.isfinite(costs).any():
        return Path(np.zeros(0, np.int64), costs)
    end = int(np.argmax(worths - costs))
    chosen = np.full(end + 1, -1, np.int64)
    table.trace(end, chosen)
    return Path(chosen, costs)


def lacking(
    utility: Utility, ages: FloatArray, costs: FloatArray, offered: tuple[float, float], step: float
) -> tuple[float, float | None]:
    """What would have let a job in: the factor on prices below which it would have been taken, and by how long its
    worth would have had to fall later, in whole `step`s (None: no delay helps).

    `ages` and `costs` by end slot; `offered`: worth and cost of the schedule found, which may be better than the DP's.
    """
    ages, costs = ages[np.isfinite(costs)], costs[np.isfinite(costs)]
    paid = costs > 0
    worths = utility.values(np.maximum(ages, 0.0))
    factor = float(np.max(worths[paid] / costs[paid])) if paid.any() else 0.0
    if offered[1] > 0:
        factor = max(factor, offered[0] / offered[1])

    def helps(steps: int) -> bool:
        return bool((utility.values(np.maximum(ages - steps * step, 0.0)) > costs).any())

    low, high = 1, max(1, math.ceil(float(ages.max()) / step))
    if not helps(high):
        return factor, None
    while low < high:  # a longer delay helps more
        middle = (low + high) // 2
        low, high = (low, middle) if helps(middle) else (middle + 1, high)
    return factor, low * step

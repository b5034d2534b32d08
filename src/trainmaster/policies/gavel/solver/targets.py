# cython: cdivision=True
"""Targets that rise with a level: the throughput that every job shall have at it, and how fast that grows.

`RationalTargets` serve max-min fairness, makespan and finish-time fairness. `TreeTargets` serve water filling: the root
raises every child by its weight per unit of level. An entity divides what it receives among its children: "fairness" in
proportion to their weights, "fifo" all to the first that can take it. What a saturated child (every job of it frozen or
at full speed) cannot take goes to its siblings. Each node's division depends only on what it has received so far and on
how much each child can still take, so a whole trajectory is one pass down the tree.
"""

from __future__ import annotations

import numpy as np

from trainmaster.core.int_list import Bools, Floats, Ints, new_floats


class RisingTargets:
    """r_m(level) of n jobs."""

    n: int

    def at(self, level: float, target: Floats, rate: Floats) -> None:
        """Write the targets at `level` and their derivatives."""


class RationalTargets(RisingTargets):
    """r_m(level) = numer_m level / (denom_m - delay_m level); without the last two, proportional to the level."""

    def __init__(self, numer: Floats, denom: Floats | None = None, delay: Floats | None = None) -> None:
        self.n = len(numer)
        self._numer = np.ascontiguousarray(numer)
        self._denom = np.ones(self.n) if denom is None else np.ascontiguousarray(denom)
        self._delay = np.zeros(self.n) if delay is None else np.ascontiguousarray(delay)

    def at(self, level: float, target: Floats, rate: Floats) -> None:
        numer, denom, delay = self._numer, self._denom, self._delay
        for m in range(self.n):
            left = denom[m] - delay[m] * level
            target[m] = numer[m] * level / left
            rate[m] = numer[m] * denom[m] / (left * left)


class TreeTargets(RisingTargets):
    """r_m(level) = base_m + unit_m * (what the tree has given to job m at the level).

    Node k of the tree (parents first, the root is 0) owns the children start[k] to start[k + 1]: job `child`, or node
    -1 - `child`. `room` is what a child can still take; the children of a fair node are in the order in which they fill
    up, `before` is the room of those that fill up earlier and `open_weight` the weight of this child and of those that
    fill up later.
    """

    def __init__(self, start: Ints, fifo: Bools, child: Ints, weight: Floats, room: Floats) -> None:
        self._start, self._fifo = start, fifo.view(np.uint8)
        self._nodes = len(fifo)
        self._child, self._weight, self._room = child, weight, room
        before, open_weight = np.zeros(len(child)), np.zeros(len(child))
        for k in range(len(fifo)):
            low, high = int(start[k]), int(start[k + 1])
            before[low + 1 : high] = np.cumsum(room[low : high - 1])
            open_weight[low:high] = np.flip(np.cumsum(np.flip(weight[low:high])))
        self._before, self._open_weight = before, open_weight
        self._amount, self._growth = new_floats(self._nodes), new_floats(self._nodes)
        self.rises_from(np.zeros(int((child >= 0).sum())), np.ones(int((child >= 0).sum())))

    def rises_from(self, base: Floats, unit: Floats) -> TreeTargets:
        """Set what each job has at level 0 and what one unit of the tree is worth to it (at first: 0 and 1)."""
        self._base, self._unit, self.n = np.ascontiguousarray(base), np.ascontiguousarray(unit), len(base)
        return self

    def saturation_level(self) -> float:
        """The level from which on every job is full: the root gives each child its weight per unit."""
        root = slice(int(self._start[0]), int(self._start[1]))
        return float(np.max(np.asarray(self._room)[root] / np.asarray(self._weight)[root], initial=0.0))

    def at(self, level: float, target: Floats, rate: Floats) -> None:
        self._divide(level, target, rate)
        for m in range(self.n):
            target[m] = self._base[m] + self._unit[m] * target[m]
            rate[m] *= self._unit[m]

    def _divide(self, level: float, received: Floats, rate: Floats) -> None:
        """What each job has received at `level` and at what rate per unit of level it receives more."""
        amount, growth = self._amount, self._growth
        for k in range(self._nodes):
            low, high = self._start[k], self._start[k + 1]
            self._common, self._per_weight = level, 1.0  # what a fair node has given per unit of weight
            fifo = self._fifo[k]
            if k > 0 and not fifo:
                self._find_common(low, high, amount[k], growth[k])
            served = False
            for i in range(low, high):
                room = self._room[i]
                if fifo:
                    got = min(max(amount[k] - self._before[i], 0.0), room)
                    growing = 0.0
                    if got < room and not served:
                        growing = growth[k]
                        served = True
                else:
                    wanted = self._weight[i] * self._common
                    got = min(wanted, room)
                    growing = self._weight[i] * self._per_weight if wanted < room else 0.0
                child = self._child[i]
                if child >= 0:
                    received[child] = got
                    rate[child] = growing
                else:
                    amount[-1 - child] = got
                    growth[-1 - child] = growing

    def _find_common(self, low: int, high: int, amount: float, growth: float) -> None:
        """sum_i min(room_i, w_i common) = amount, by binary search over the sorted children."""
        first, last = low, high
        while first < last:  # the first child that is not full
            middle = (first + last) // 2
            full_at = self._room[middle] / self._weight[middle]
            if self._before[middle] + self._open_weight[middle] * full_at <= amount:
                first = middle + 1
            else:
                last = middle
        if first == high:
            self._common, self._per_weight = float("inf"), 0.0
        else:
            self._common = (amount - self._before[first]) / self._open_weight[first]
            self._per_weight = growth / self._open_weight[first]

"""How a tree of entities divides a rising level among its jobs, as long as no GPU type runs out.

The root raises every child by its weight per unit of level. An entity divides what it receives among its
children: "fairness" in proportion to their weights, "fifo" all to the first that can take it. What a
saturated child (every job of it frozen or at full speed) cannot take goes to its siblings. Each node's
division depends only on what it has received so far and on how much each child can still take, so a whole
trajectory is one pass down the tree.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from trainmaster.policies.gavel.problem import BoolArray, Entity, FloatArray, IntArray


class Division(NamedTuple):
    """The tree laid out for one pass: node k (parents first, the root is 0) owns the slots start[k] to
    start[k + 1].

    A slot is a child: job `child`, or node -1 - `child`. `room` is what it can still take; the slots of a
    fair node are in the order in which they fill up, `before` is the room of those that fill up earlier and
    `open_weight` the weight of this child and of those that fill up later.
    """

    start: IntArray
    fifo: BoolArray
    child: IntArray
    weight: FloatArray
    room: FloatArray
    before: FloatArray
    open_weight: FloatArray


class FillTree:
    """The entities and jobs of a problem, and who divides what among whom."""

    def __init__(self, weight: FloatArray, entities: tuple[Entity, ...], entity_of: IntArray | None) -> None:
        n = len(weight)
        home = np.full(n, -1, dtype=np.int64) if entity_of is None else np.asarray(entity_of, dtype=np.int64)
        parents = [-1 if e.parent is None else e.parent for e in entities]
        depth = [_depth(parents, i) for i in range(len(entities))]
        # children after parents, so that one pass goes down and the reverse goes up; the root (-1)
        # comes first
        order = [-1, *sorted(range(len(entities)), key=lambda i: (depth[i], i))]
        position = np.zeros(len(entities) + 1, dtype=np.int64)
        position[np.array(order, dtype=np.int64)] = np.arange(len(order))  # position[-1] is the root's
        owner = np.concatenate([position[home], position[np.array(parents, dtype=np.int64)]])
        child = np.concatenate([np.arange(n), -1 - position[: len(entities)]])
        weights = np.concatenate([weight, np.array([e.weight for e in entities], dtype=np.float64)])
        slots = np.lexsort((np.arange(len(owner)), owner))
        self.job_count = n
        self.start: IntArray = np.searchsorted(owner[slots], np.arange(len(order) + 1)).astype(np.int64)
        self.fifo: BoolArray = np.array([e >= 0 and entities[e].policy == "fifo" for e in order])
        self.child: IntArray = child[slots]
        self.weight: FloatArray = weights[slots]

    def division(self, job_room: FloatArray) -> Division:
        """The layout when every job can still take `job_room` (0: frozen), in the unit of the level."""
        child, weight = self.child.copy(), self.weight.copy()
        room = np.empty(len(child))
        before, open_weight = np.empty(len(child)), np.empty(len(child))
        _lay_out(self.start, self.fifo, child, weight, room, before, open_weight, job_room)
        return Division(self.start, self.fifo, child, weight, room, before, open_weight)


def saturation_level(division: Division) -> float:
    """The level from which on every job is full: the root gives each child its weight per unit."""
    root = slice(int(division.start[0]), int(division.start[1]))
    return float(np.max(division.room[root] / division.weight[root], initial=0.0))


@njit(cache=True)
def _lay_out(start, fifo, child, weight, room, before, open_weight, job_room):
    """Fill in the room of every slot from the leaves up, and sort the slots of fair nodes."""
    nodes = len(fifo)
    total = np.zeros(nodes)
    for k in range(nodes - 1, -1, -1):
        low, high = start[k], start[k + 1]
        for i in range(low, high):
            room[i] = job_room[child[i]] if child[i] >= 0 else total[-1 - child[i]]
            total[k] += room[i]
        if not fifo[k] and high > low:
            order = np.argsort(room[low:high] / weight[low:high], kind="mergesort")
            child[low:high] = child[low:high][order]
            weight[low:high] = weight[low:high][order]
            room[low:high] = room[low:high][order]
        filled = 0.0
        for i in range(low, high):
            before[i] = filled
            filled += room[i]
        later = 0.0
        for i in range(high - 1, low - 1, -1):
            later += weight[i]
            open_weight[i] = later


@njit(cache=True)
def divide(division, level, received, rate):
    """Fill in what each job has received at `level` and at what rate per unit of level it receives more."""
    nodes = len(division.fifo)
    amount = np.zeros(nodes)
    growth = np.zeros(nodes)
    for k in range(nodes):
        low, high = division.start[k], division.start[k + 1]
        common = level  # what a fair node has given per unit of weight
        per_weight = 1.0
        if k > 0 and not division.fifo[k]:
            common, per_weight = _fair_level(division, low, high, amount[k], growth[k])
        served = False
        for i in range(low, high):
            room = division.room[i]
            if division.fifo[k]:
                got = min(max(amount[k] - division.before[i], 0.0), room)
                growing = 0.0
                if got < room and not served:
                    growing = growth[k]
                    served = True
            else:
                wanted = division.weight[i] * common
                got = min(wanted, room)
                growing = division.weight[i] * per_weight if wanted < room else 0.0
            child = division.child[i]
            if child >= 0:
                received[child] = got
                rate[child] = growing
            else:
                amount[-1 - child] = got
                growth[-1 - child] = growing


@njit(cache=True)
def _fair_level(division, low, high, amount, growth):
    """(common, its growth): sum_i min(room_i, w_i common) = amount, by binary search over the sorted
    slots."""
    first, last = low, high
    while first < last:  # the first slot that is not full
        middle = (first + last) // 2
        full_at = division.room[middle] / division.weight[middle]
        if division.before[middle] + division.open_weight[middle] * full_at <= amount:
            first = middle + 1
        else:
            last = middle
    if first == high:
        return np.inf, 0.0
    return (amount - division.before[first]) / division.open_weight[first], growth / division.open_weight[first]


def _depth(parents: list[int], node: int) -> int:
    steps = 0
    while parents[node] >= 0:
        node = parents[node]
        steps += 1
    return steps

"""How a tree of entities divides a rising level among its jobs, as long as no GPU type runs out.

The root raises every child by its weight per unit of level. An entity divides what it receives among its
children:
"fairness" in proportion to their weights, "fifo" all to the first that can take it. What a saturated child
(every job
of it frozen or at full speed) cannot take goes to its siblings. Each node's division depends only on what
it has
received so far and on how much each child can still take, so a whole trajectory is one pass down the tree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainmaster.policies.gavel.problem import BoolArray, Entity, FloatArray, IntArray


@dataclass(frozen=True)
class _Node:
    """An entity's children: jobs (row numbers) and entities (positions in the order of nodes)."""

    jobs: IntArray
    nodes: IntArray
    weight: FloatArray  # of the children, jobs first
    fifo: bool


class FillTree:
    """The division of a level among jobs. Quantities are in the units in which the level is measured."""

    def __init__(self, weight: FloatArray, entities: tuple[Entity, ...], entity_of: IntArray | None) -> None:
        n = len(weight)
        home = np.full(n, -1, dtype=np.int64) if entity_of is None else entity_of
        parents = [-1 if e.parent is None else e.parent for e in entities]
        depth = [_depth(parents, i) for i in range(len(entities))]
        # children after parents, so that one pass goes down and the reverse goes up; the root (-1) comes
        # first
        order = [-1, *sorted(range(len(entities)), key=lambda i: (depth[i], i))]
        position = {entity: k for k, entity in enumerate(order)}
        by_home = np.argsort(home, kind="stable")
        bounds = np.searchsorted(home[by_home], np.arange(-1, len(entities) + 1))
        self.nodes: list[_Node] = []
        for entity in order:
            jobs = by_home[bounds[entity + 1] : bounds[entity + 2]]
            below = [i for i in order[1:] if parents[i] == entity]
            weights = np.concatenate([weight[jobs], np.array([entities[i].weight for i in below])])
            fifo = entity >= 0 and entities[entity].policy == "fifo"
            self.nodes.append(
                _Node(jobs, np.array([position[i] for i in below], dtype=np.int64), weights, fifo)
            )
        self.job_count = n

    def room(self, job_room: FloatArray) -> list[FloatArray]:
        """What each child of each node can still take."""
        totals = np.zeros(len(self.nodes))
        rooms: list[FloatArray] = [np.zeros(0)] * len(self.nodes)
        for k in range(len(self.nodes) - 1, -1, -1):
            node = self.nodes[k]
            rooms[k] = np.concatenate([job_room[node.jobs], totals[node.nodes]])
            totals[k] = rooms[k].sum()
        return rooms

    def raise_level(self, rooms: list[FloatArray], level: float) -> tuple[FloatArray, FloatArray]:
        """(what each job has received at `level`, at what rate per unit of level it receives more)."""
        received = np.zeros(self.job_count)
        rate = np.zeros(self.job_count)
        node_received = np.zeros(len(self.nodes))
        node_rate = np.zeros(len(self.nodes))
        for k, node in enumerate(self.nodes):
            room = rooms[k]
            if k == 0:
                wanted = node.weight * level
                got = np.minimum(wanted, room)
                growing = np.where((wanted < room * (1.0 - 1e-12)) & (room > 0.0), node.weight, 0.0)
            elif node.fifo:
                got, growing = _in_order(room, node_received[k], node_rate[k])
            else:
                got, growing = _by_weight(room, node.weight, node_received[k], node_rate[k])
            jobs = len(node.jobs)
            received[node.jobs], rate[node.jobs] = got[:jobs], growing[:jobs]
            node_received[node.nodes], node_rate[node.nodes] = got[jobs:], growing[jobs:]
        return received, rate


def _depth(parents: list[int], node: int) -> int:
    steps = 0
    while parents[node] >= 0:
        node = parents[node]
        steps += 1
    return steps


def _in_order(room: FloatArray, amount: float, rate: float) -> tuple[FloatArray, FloatArray]:
    before = np.concatenate([[0.0], np.cumsum(room)])
    got = np.clip(amount - before[:-1], 0.0, room)
    growing = np.zeros(len(room))
    unfilled = np.flatnonzero((got < room * (1.0 - 1e-12)) & (room > 0.0))
    if len(unfilled):
        growing[unfilled[0]] = rate
    return got, growing


def _by_weight(
    room: FloatArray, weight: FloatArray, amount: float, rate: float
) -> tuple[FloatArray, FloatArray]:
    """sum_c min(room_c, w_c lambda) = amount: sort by the lambda at which a child is full."""
    full_at = room / weight
    order = np.argsort(full_at, kind="stable")
    filled = np.concatenate([[0.0], np.cumsum(room[order])[:-1]])
    open_weight = np.cumsum(weight[order][::-1])[::-1]  # of this child and those full later
    reach = filled + open_weight * full_at[order]  # amount at which this child is full
    first = int(np.searchsorted(reach, amount * (1.0 + 1e-13), side="right"))
    if first == len(room):
        return room.copy(), np.zeros(len(room))
    level = (amount - filled[first]) / open_weight[first]
    got = np.minimum(room, weight * level)
    growing = np.zeros(len(room))
    still = order[first:]
    growing[still] = rate * weight[still] / open_weight[first]
    return got, growing


def saturated(room: FloatArray, received: FloatArray) -> BoolArray:
    """Jobs that have all they could take."""
    return received >= room * (1.0 - 1e-12)

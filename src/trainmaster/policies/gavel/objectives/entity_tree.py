"""The tree of entities and their jobs, laid out for one pass: who divides what among whom."""

from __future__ import annotations

import numpy as np

from trainmaster.policies.gavel.problem import BoolArray, Entity, FloatArray, IntArray
from trainmaster.policies.gavel.solver.targets import TreeTargets


class EntityTree:
    """Nodes are the root and the entities, parents first; each owns a run of children (jobs and nodes)."""

    def __init__(self, weight: FloatArray, entities: tuple[Entity, ...], entity_of: IntArray | None) -> None:
        n = len(weight)
        home = np.full(n, -1, dtype=np.int64) if entity_of is None else np.asarray(entity_of, dtype=np.int64)
        parents = [-1 if e.parent is None else e.parent for e in entities]
        depth = [_depth(parents, i) for i in range(len(entities))]
        # children after parents, so that one pass goes down and the reverse goes up; the root (-1) comes first
        order = [-1, *sorted(range(len(entities)), key=lambda i: (depth[i], i))]
        position = np.zeros(len(entities) + 1, dtype=np.int64)
        position[np.array(order, dtype=np.int64)] = np.arange(len(order))  # position[-1] is the root's
        owner = np.concatenate([position[home], position[np.array(parents, dtype=np.int64)]])
        child = np.concatenate([np.arange(n), -1 - position[: len(entities)]])
        weights = np.concatenate([weight, np.array([e.weight for e in entities], dtype=np.float64)])
        by_owner = np.lexsort((np.arange(len(owner)), owner))
        self.start: IntArray = np.searchsorted(owner[by_owner], np.arange(len(order) + 1)).astype(np.int64)
        self.fifo: BoolArray = np.array([e >= 0 and entities[e].policy == "fifo" for e in order])
        self.child: IntArray = child[by_owner]
        self.weight: FloatArray = weights[by_owner]

    def targets(self, job_room: FloatArray) -> TreeTargets:
        """What each job receives at a level when it can still take `job_room` (0: frozen), in the unit of the level."""
        child, weight, room = self.child.copy(), self.weight.copy(), np.zeros(len(self.child))
        total = np.zeros(len(self.fifo))
        for k in range(len(self.fifo) - 1, -1, -1):  # from the leaves up
            own = slice(self.start[k], self.start[k + 1])
            if own.start == own.stop:
                continue
            is_job = child[own] >= 0
            room[own] = np.where(
                is_job, job_room[np.where(is_job, child[own], 0)], total[np.where(is_job, 0, ~child[own])]
            )
            total[k] = np.cumsum(room[own])[-1]
            if not self.fifo[k]:
                order = np.argsort(room[own] / weight[own], kind="stable")
                child[own], weight[own], room[own] = child[own][order], weight[own][order], room[own][order]
        return TreeTargets(self.start, self.fifo, child, weight, room)

    def unevenness(self, received: FloatArray, room: FloatArray, reached: FloatArray) -> float:
        """How far what jobs received is from the tree's division at any level, as a part of what they have reached.

        Among its children an entity gives w_i times one number, at most what each can take; a FIFO one serves them in
        order.
        """
        worst = 0.0
        totals = np.zeros((3, len(self.fifo)))  # received, room and reached below each node
        jobs = np.stack([received, room, reached])
        for k in range(len(self.fifo) - 1, -1, -1):
            own = slice(self.start[k], self.start[k + 1])
            child, weight = self.child[own], self.weight[own]
            if len(child) == 0:
                continue
            is_job = child >= 0
            got, most, have = np.where(
                is_job, jobs[:, np.where(is_job, child, 0)], totals[:, np.where(is_job, 0, ~child)]
            )
            totals[:, k] = got.sum(), most.sum(), have.sum()
            if self.fifo[k]:
                due = np.clip(got.sum() - (np.cumsum(most) - most), 0.0, most)
            else:
                due = np.minimum(most, weight * (got / weight).max())
            worst = np.maximum(worst, (np.abs(got - due) / np.maximum(np.maximum(have, due), 1e-300)).max())
        return float(worst)


def _depth(parents: list[int], node: int) -> int:
    steps = 0
    while parents[node] >= 0:
        node = parents[node]
        steps += 1
    return steps

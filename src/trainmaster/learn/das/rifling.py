"""RIFLING, adapted: jobs in groups by K-means, a table of values learned by Q-learning says which group goes next.

The published scheduler places deep-learning jobs on hosts by Q-learning over groups of alike jobs. Here the state is
how crowded the cluster is and which groups wait, the action is the group whose earliest job starts next, and hosts are
chosen by load balance. The reward is minus the hours that jobs spend in the system until the next start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainmaster.core.arrays import Floats, Ints
from trainmaster.learn.das import heuristics
from trainmaster.learn.das.heuristics import Start
from trainmaster.learn.das.jobs import JobPool, draw_stream, seeds_of
from trainmaster.learn.das.world import GPUS_ASKED, SITES, World

GROUPS = 5
SEEDS_AFTER = 50_000
"""Its training streams lie beyond those of DAS."""


def k_means(points: Floats, groups: int, rng: np.random.Generator, rounds: int = 25) -> Floats:
    """Centres of groups (Lloyd), beginning with points drawn at random."""
    centres = points[rng.choice(len(points), groups, replace=False)].copy()
    for _ in range(rounds):
        nearest = ((points[:, None, :] - centres[None, :, :]) ** 2).sum(axis=2).argmin(axis=1)
        for g in range(groups):
            if (nearest == g).any():
                centres[g] = points[nearest == g].mean(axis=0)
    return centres


@dataclass
class Rifling:
    """Call it with a world to get the next start. `table` holds the value of starting each group in each state."""

    centres: Floats
    table: Floats

    def groups(self, world: World, jobs: Ints) -> Ints:
        points = _points(world, jobs)
        return ((points[:, None, :] - self.centres[None, :, :]) ** 2).sum(axis=2).argmin(axis=1)

    def state(self, groups: Ints) -> int:
        """How many wait (4 steps) and which groups are among them."""
        crowd = min(int(np.log2(1 + len(groups)) / 2.0), 3)
        present = int(sum(1 << int(g) for g in np.unique(groups)))
        return crowd * (1 << GROUPS) + present

    def __call__(self, world: World) -> Start | None:
        could = world.startable()
        groups = self.groups(world, could)
        values = self.table[self.state(groups)]
        open_ = np.unique(groups)
        chosen = open_[int(np.argmax(values[open_]))]
        job = int(could[np.flatnonzero(groups == chosen)[0]])
        taken = heuristics.load_balance(world, job)
        return None if taken is None else (job, taken)


def _points(world: World, jobs: Ints) -> Floats:
    return np.stack([np.log2(world.stream.gpus[jobs]), world.expected(jobs)[0]], axis=1)


def train_rifling(pools: Sequence[JobPool], episodes: int = 60, seed: int = 0, jobs: int = 160) -> Rifling:
    """Tabular Q-learning on training streams, sites in turn; exploration and step size fall with the episodes."""
    rng = np.random.Generator(np.random.PCG64([seed, 21]))
    worlds = [_world(pools, k, jobs) for k in range(3)]
    points = np.concatenate([_points(world, np.arange(len(world.stream))) for world in worlds])
    learner = Rifling(k_means(points, GROUPS, rng), np.zeros((4 << GROUPS, GROUPS)))
    for episode in range(episodes):
        explore = 0.3 * (1.0 - episode / episodes)
        step = 0.3 / (1.0 + episode / 10.0)
        _learn(learner, _world(pools, episode, jobs), explore, step, rng)
    return learner


def _world(pools: Sequence[JobPool], episode: int, jobs: int) -> World:
    site = list(SITES.values())[episode % len(SITES)]
    first = seeds_of("train", 1, SEEDS_AFTER + episode)[0]
    return World(site, draw_stream(pools, "train", first, jobs, GPUS_ASKED))


def _learn(learner: Rifling, world: World, explore: float, step: float, rng: np.random.Generator) -> None:
    last: tuple[int, int] | None = None
    spent, discount = 0.0, 0.95
    while not world.over:
        could = world.startable()
        if len(could):
            groups = learner.groups(world, could)
            state, open_ = learner.state(groups), np.unique(groups)
            values = learner.table[state]
            if last is not None:
                target = -spent / 20.0 + discount * float(values[open_].max())
                learner.table[last] += step * (target - learner.table[last])
            greedy = open_[int(np.argmax(values[open_]))]
            chosen = int(rng.choice(open_)) if rng.random() < explore else int(greedy)
            job = int(could[np.flatnonzero(groups == chosen)[0]])
            taken = heuristics.load_balance(world, job)
            if taken is not None:
                world.start(job, taken)
                last, spent = (state, chosen), 0.0
                continue
        before, present = world.now_s, int((world.state <= 1).sum())
        world.advance()
        spent += present * (world.now_s - before) / 3600.0
    if last is not None:
        learner.table[last] += step * (-spent / 20.0 - learner.table[last])

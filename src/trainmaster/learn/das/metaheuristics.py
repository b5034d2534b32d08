"""Baselines that search: MALO (ant lion with differential evolution), MOSA (simulated annealing), one-step look-ahead.

Each looks for keys that order the pending jobs, judged by a compiled list schedule with expected durations. The first
two are the paper's; their published forms schedule other things, so only the search is theirs (docs/policies/das.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainmaster.core.arrays import Floats, Ints
from trainmaster.learn.das import heuristics
from trainmaster.learn.das.heuristics import Start
from trainmaster.learn.das.stream_passes import ListSchedule
from trainmaster.learn.das.world import World

CONSIDERED = 24
"""Pending jobs whose order is searched, the earliest; the rest follow by arrival."""
FEE_WEIGHT = 0.01
"""Job-hours that a dollar weighs in the two objectives taken together."""


@dataclass
class Outlook:
    """What an order of the first pending jobs would cost, as far as one can expect."""

    world: World

    def __post_init__(self) -> None:
        world = self.world
        self.pending = world.pending()
        self.first = self.pending[:CONSIDERED]
        running = world.running()
        expected = np.exp(world.expected(running)[0]) / world.type_speed[world.held_type[running]]
        elapsed = world.now_s - world.start_s[running]
        self.running_h = np.maximum(expected - elapsed, 0.2 * elapsed + 60.0) / 3600.0
        self.running_type, self.running_gpus = world.held_type[running], world.stream.gpus[running]
        self.run_h = np.exp(world.expected(self.first)[0]) / 3600.0
        self.free = world.free_by_type()

    def cost(self, keys: Floats) -> float:
        """Of the order by ascending keys."""
        world = self.world
        n, live = len(self.first), len(self.running_h)
        plan = ListSchedule(world.stream.gpus[self.first], self.run_h, world.type_speed, world.price)
        plan.play(
            np.argsort(keys, kind="stable"),
            self.free.copy(),
            np.append(self.running_type, np.zeros(n, np.int64)),
            np.append(self.running_gpus, np.zeros(n, np.int64)),
            np.append(self.running_h, np.zeros(n)),
            live,
        )
        return plan.hours + FEE_WEIGHT * plan.dollars

    def order(self, keys: Floats) -> Ints:
        return np.concatenate([self.first[np.argsort(keys, kind="stable")], self.pending[CONSIDERED:]])


def _start_first(world: World, order: Ints, place: heuristics.Placement) -> Start | None:
    most = int(world.free_by_type().max())
    for job in order.tolist():
        if world.stream.gpus[job] <= most:
            taken = place(world, job)
            if taken is not None:
                return job, taken
    return None


@dataclass
class Malo:
    """Ants walk around an ant lion chosen by its fitness and around the best; differential evolution mixes them."""

    ants: int = 8
    rounds: int = 8
    seed: int = 0

    def __call__(self, world: World) -> Start | None:
        outlook = Outlook(world)
        rng = np.random.Generator(np.random.PCG64([self.seed, int(world.now_s * 1000), len(outlook.pending)]))
        n = len(outlook.first)
        lions = rng.random((self.ants, n))
        lions[0] = np.arange(n) / n
        cost = np.array([outlook.cost(lion) for lion in lions])
        for step in range(self.rounds):
            reach = 0.5 * 10.0 ** (-2.0 * step / self.rounds)
            elite = lions[np.argmin(cost)]
            weight = cost.max() - cost + 1e-9
            for k in range(self.ants):
                chosen = lions[rng.choice(self.ants, p=weight / weight.sum())]
                ant = 0.5 * (chosen + elite) + reach * rng.uniform(-1.0, 1.0, n)
                one, other = lions[rng.integers(self.ants)], lions[rng.integers(self.ants)]
                mutant = np.where(rng.random(n) < 0.3, elite + 0.5 * (one - other), ant)
                value = outlook.cost(mutant)
                if value < cost[k]:
                    lions[k], cost[k] = mutant, value
        return _start_first(world, outlook.order(lions[np.argmin(cost)]), heuristics.load_balance)


@dataclass
class Mosa:
    """Annealing on completion time and fee together: swaps of two jobs, colder with every step."""

    steps: int = 60
    seed: int = 0

    def __call__(self, world: World) -> Start | None:
        outlook = Outlook(world)
        rng = np.random.Generator(np.random.PCG64([self.seed, int(world.now_s * 1000), len(outlook.pending), 1]))
        n = len(outlook.first)
        keys = np.arange(n, dtype=np.float64)
        cost = best_cost = outlook.cost(keys)
        best, heat = keys, 0.05 * cost
        for _ in range(self.steps if n > 1 else 0):
            i, j = rng.integers(n, size=2)
            tried = keys.copy()
            tried[i], tried[j] = keys[j], keys[i]
            value = outlook.cost(tried)
            if value < cost or rng.random() < np.exp((cost - value) / max(heat, 1e-9)):
                keys, cost = tried, value
                if cost < best_cost:
                    best, best_cost = keys, cost
            heat *= 0.93
        return _start_first(world, outlook.order(best), heuristics.load_balance)


@dataclass
class LookAhead:
    """Tries each job that could start now as the first, the others following shortest first; starts the cheapest."""

    def __call__(self, world: World) -> Start | None:
        outlook = Outlook(world)
        outlook.first = outlook.pending[np.argsort(world.expected(outlook.pending)[0], kind="stable")][:CONSIDERED]
        outlook.run_h = np.exp(world.expected(outlook.first)[0]) / 3600.0
        most = int(world.free_by_type().max())
        could = np.flatnonzero(world.stream.gpus[outlook.first] <= most)
        if not len(could):
            return _start_first(world, outlook.pending, heuristics.best_fit)
        base = np.arange(len(outlook.first), dtype=np.float64)
        costs = []
        for k in could.tolist():
            keys = base.copy()
            keys[k] = -1.0
            costs.append(outlook.cost(keys))
        job = int(outlook.first[could[int(np.argmin(costs))]])
        taken = heuristics.best_fit(world, job)
        return None if taken is None else (job, taken)

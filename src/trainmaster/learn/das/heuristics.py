"""Baselines that follow a rule: an order of the pending jobs and a rule of placement, each by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trainmaster.core.arrays import Ints
from trainmaster.learn.das.world import World

Start = tuple[int, Ints]
"""A job and the GPUs it takes on each machine."""
Placement = Callable[[World, int], "Ints | None"]
Order = Callable[[World], Ints]


def run(world: World, choose: Callable[[World], Start | None]) -> World:
    """Play an episode to its end: whenever something could start, ask until the answer is nothing."""
    while world.to_decision():
        while len(world.startable()):
            start = choose(world)
            if start is None:
                break
            world.start(*start)
    return world


# -- placement -----------------------------------------------------------------------------------------------


def fill(world: World, job: int, order: Ints) -> Ints | None:
    """The gang on the first machine of this order that takes it whole, else down the order; on one type, the first
    in the order that has room. None when it does not fit."""
    need = int(world.stream.gpus[job])
    order = order[world.free[order] > 0]
    taken = np.zeros(len(world.free), np.int64)
    whole = order[world.free[order] >= need]
    if len(whole):
        taken[whole[0]] = need
        return taken
    room = world.free_by_type()
    of_type = world.type_of[order]
    fitting = np.flatnonzero(room[of_type] >= need)
    if not len(fitting):
        return None
    gpu_type = of_type[fitting[0]]
    left = need
    for node in order[of_type == gpu_type].tolist():
        taken[node] = min(left, int(world.free[node]))
        left -= int(taken[node])
        if left == 0:
            return taken
    return None


def first_fit(world: World, job: int) -> Ints | None:
    return fill(world, job, np.arange(len(world.free)))


def load_balance(world: World, job: int) -> Ints | None:
    """The emptiest machine first."""
    return fill(world, job, np.argsort(-world.free / world.gpus, kind="stable"))


def best_fit(world: World, job: int) -> Ints | None:
    """The fastest type, there the machine with the least left over; a gang of several machines takes empty ones."""
    need = int(world.stream.gpus[job])
    speed = world.type_speed[world.type_of]
    over = world.free - need
    if (over >= 0).any():
        return fill(world, job, np.lexsort((np.where(over >= 0, over, 1 << 20), -speed)))
    return fill(world, job, np.lexsort((-world.free, -speed)))


def quiet_fit(world: World, job: int) -> Ints | None:
    """The machine on which others use least, the faster type on ties: as `best_fit`, wary of interference."""
    speed = world.type_speed[world.type_of]
    return fill(world, job, np.lexsort((-speed, (world.gpus - world.free) / world.gpus)))


# -- order ---------------------------------------------------------------------------------------------------


def by_arrival(world: World) -> Ints:
    return world.pending()


def by_dominant_share(world: World) -> Ints:
    """DRF: the team with the smallest share of the GPUs first, then by arrival."""
    stream, pending = world.stream, world.pending()
    running = world.running()
    used = np.bincount(stream.team[running], weights=stream.gpus[running], minlength=int(stream.team.max()) + 1)
    return pending[np.argsort(used[stream.team[pending]], kind="stable")]


def by_estimated_length(world: World) -> Ints:
    pending = world.pending()
    return pending[np.argsort(world.expected(pending)[0], kind="stable")]


def by_estimated_area(world: World) -> Ints:
    pending = world.pending()
    area = world.expected(pending)[0] + np.log(world.stream.gpus[pending])
    return pending[np.argsort(area, kind="stable")]


def by_true_length(world: World) -> Ints:
    """Perfect durations: nobody could know them; a bound."""
    pending = world.pending()
    return pending[np.argsort(world.stream.work_s[pending], kind="stable")]


def by_true_area(world: World) -> Ints:
    pending = world.pending()
    return pending[np.argsort((world.stream.work_s * world.stream.gpus)[pending], kind="stable")]


def by_alignment(world: World) -> Ints:
    """Tetris where durations are unknown: what aligns best with the free resources, which with one resource is the
    largest demand."""
    pending = world.pending()
    return pending[np.argsort(-world.stream.gpus[pending], kind="stable")]


def by_alignment_and_work(world: World) -> Ints:
    """Tetris with expected durations: alignment less the expected work, both relative to their means."""
    stream, pending = world.stream, world.pending()
    align = stream.gpus[pending].astype(np.float64)
    work = align * np.exp(world.expected(pending)[0])
    score = align / max(align.mean(), 1e-12) - work / max(work.mean(), 1e-12)
    return pending[np.argsort(-score, kind="stable")]


@dataclass(frozen=True)
class Rule:
    """Down the order, place what fits; a strict rule lets nobody pass the first that does not."""

    order: Order
    place: Placement
    strict: bool = False

    def __call__(self, world: World) -> Start | None:
        most = int(world.free_by_type().max())
        for job in self.order(world).tolist():
            if world.stream.gpus[job] <= most:
                taken = self.place(world, job)
                if taken is not None:
                    return job, taken
            if self.strict:
                return None
        return None


RULES: dict[str, Rule] = {
    "FIFO-FirstFit": Rule(by_arrival, first_fit),
    "FIFO-LoadBalance": Rule(by_arrival, load_balance),
    "DRF-FirstFit": Rule(by_dominant_share, first_fit),
    "DRF-LoadBalance": Rule(by_dominant_share, load_balance),
    "Tetris": Rule(by_alignment, best_fit),
    "FIFO-FirstFit, strict": Rule(by_arrival, first_fit, strict=True),
    "Tetris, expected durations": Rule(by_alignment_and_work, best_fit),
    "SJF-BestFit, expected durations": Rule(by_estimated_length, best_fit),
    "SAF-QuietFit, expected durations": Rule(by_estimated_area, quiet_fit),
    "SJF-BestFit, perfect": Rule(by_true_length, best_fit),
    "SAF-QuietFit, perfect": Rule(by_true_area, quiet_fit),
}

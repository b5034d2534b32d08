"""The best schedule of one job of the engine over a rolling horizon, at the prices of the moment.

As in `admission`, payoff = worth - cost is maximised over end slots (`offers`). What differs: gangs instead of single
workers, work in grains, the running slot counts only for what is left of it, and the last slot is paid for only as long
as it is used. The DP is exact for its grain (work is rounded up, what a slot does is rounded down); the schedule found
is then followed in exact time, so `finish_ms`, `utility` and `cost` of an offer are not rounded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainmaster.model.units import MS_PER_S
from trainmaster.model.utility import Utility
from trainmaster.policies.oasis.commitments import Run, merged
from trainmaster.policies.oasis.gang_options import Gangs, Pool
from trainmaster.policies.oasis.instance.cost import Gang, GangCosts
from trainmaster.policies.oasis.offers import best_path
from trainmaster.policies.oasis.prices import PriceTable

GRAINS_MAX = 64
"""Grains of a slot at the fastest gang's speed."""
GRAINS_MIN = 4
"""With several gangs; one gang alone needs no finer grain than the slot."""
RUNNING_SLOT_DISCOUNT = 0.9

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Clock:
    """Where the running slot begins and how long slots are."""

    now_ms: int
    slot_ms: int

    @property
    def time_slot(self) -> int:
        return self.now_ms // self.slot_ms

    def starts_ms(self, time_slots: int) -> NDArray[np.int64]:
        starts = (self.time_slot + np.arange(time_slots, dtype=np.int64)) * self.slot_ms
        starts[0] = self.now_ms
        return starts

    def ends_ms(self, time_slots: int) -> NDArray[np.int64]:
        return (self.time_slot + 1 + np.arange(time_slots, dtype=np.int64)) * self.slot_ms


@dataclass(frozen=True)
class Ask:
    """One job that wants a schedule. `now` is false when it cannot use the running slot (its last gang has
    not ended yet, or it pauses after a failure); `overhead_ms` is lost when it starts in it."""

    submit_ms: int
    steps_left: float
    utility: Utility
    worker: Floats
    server: Floats
    held: tuple[tuple[int, int, int], ...] = ()
    now: bool = True
    overhead_ms: int = 0
    urgency: float = 0.0
    """Added worth of ending at once, falling to nothing at the horizon: for jobs that were promised."""


@dataclass(frozen=True)
class RollingOffer:
    """The best schedule on one type. `costs` and `ages_s` are by end slot, for those who ask why not."""

    accelerator: int
    runs: tuple[Run, ...]
    finish_ms: int
    utility: float
    cost: float
    costs: Floats
    ages_s: Floats

    @property
    def payoff(self) -> float:
        return self.utility - self.cost


def best_rolling(
    ask: Ask,
    gangs: Gangs,
    clock: Clock,
    table: PriceTable,
    pool: Pool,
    used: Floats,
    hosts: NDArray[np.bool_],
    ps_hosts: NDArray[np.bool_],
    operations_max: int,
) -> RollingOffer | None:
    """Maximise worth - cost over schedules on the nodes `hosts` (servers: `ps_hosts`); None: none fits.

    `used` is slots x nodes x resources from the running slot on, without the job's own commitments.
    """
    time_slots = used.shape[0]
    starts, ends = clock.starts_ms(time_slots), clock.ends_ms(time_slots)
    open_ms = (ends - starts).astype(np.float64)
    open_ms[0] = max(0.0, open_ms[0] - ask.overhead_ms) if ask.now else 0.0
    slot_s = clock.slot_ms / MS_PER_S
    ideal_slots = ask.steps_left / (gangs.fastest * slot_s)
    grains = _grains(time_slots, len(gangs.workers), ideal_slots, operations_max)
    units = max(1, math.ceil(grains * ideal_slots - 1e-9))
    relative = gangs.steps_per_s / gangs.fastest
    gain = np.floor(np.outer(open_ms / clock.slot_ms, grains * relative) + 1e-9).astype(np.int64)
    costs = GangCosts(used, pool.capacity, ask.worker, ask.server, hosts, ps_hosts)
    costs.price(table.ln_low, table.ln_spread, int(gangs.workers.max()), max(1, int(gangs.servers.max())))
    options = [
        Gang(*gang)
        for gang in zip(gangs.workers.tolist(), gangs.servers.tolist(), gangs.one_node.tolist(), strict=True)
    ]
    cost = np.empty((time_slots, len(options)))
    costs.costs(options, cost, False)
    part_of_slot = (ends[0] - starts[0]) / clock.slot_ms
    # What of the running slot is not used is lost, so among nearly equal schedules it is preferred; the
    # payoff is reckoned at full price below.
    cost[0] *= part_of_slot * RUNNING_SLOT_DISCOUNT
    # Ending in slot t: as late as its end, but a job shorter than the slot needs only its own time there.
    run_ms = ask.steps_left / gangs.fastest * MS_PER_S
    ages_s = (starts + np.minimum(ends - starts, run_ms) - ask.submit_ms) / MS_PER_S
    values = ask.utility.values(np.maximum(ages_s, 0.0)) + ask.urgency * np.linspace(1.0, 0.0, time_slots)
    path = best_path(cost, gain, units, values, part_paid=True)
    if path.end < 0:
        return None
    chosen, end = path.chosen, path.end
    held_workers, held_ps = np.zeros((2, len(pool.capacity)), np.int64)
    for node, workers, servers in ask.held:
        held_workers[node], held_ps[node] = workers, servers
    on_workers, on_ps = np.zeros((2, end + 1, len(pool.capacity)), np.int64)
    slot_cost = np.zeros(end + 1)
    costs.place_path(options, chosen, on_workers, on_ps, (held_workers, held_ps), slot_cost)
    slot_cost[0] *= part_of_slot
    last, finish_ms, paid = _follow(ask, gangs, chosen, starts, ends, open_ms, slot_cost)
    runs = _runs(clock.time_slot, chosen[: last + 1], on_workers, on_ps, gangs.steps_per_s)
    utility = float(ask.utility.value((finish_ms - ask.submit_ms) / MS_PER_S))
    return RollingOffer(gangs.accelerator, runs, finish_ms, utility, paid, path.costs, ages_s)


def _runs(time_slot: int, chosen: Ints, on_workers: Ints, on_ps: Ints, steps_per_s: Floats) -> tuple[Run, ...]:
    """The path as runs; slots are counted from `time_slot`."""
    time_slots = len(chosen)
    moved = (on_workers[1:time_slots] != on_workers[: time_slots - 1]) | (
        on_ps[1:time_slots] != on_ps[: time_slots - 1]
    )
    changes = moved.any(axis=1) | (chosen[1:] != chosen[:-1])
    starts = [0, *(np.flatnonzero(changes) + 1).tolist()]
    return merged(
        Run.of(
            time_slot + start,
            time_slot + end,
            float(steps_per_s[chosen[start]]),
            tuple((n, int(on_workers[start, n]), int(on_ps[start, n])) for n in _members(on_workers, on_ps, start)),
        )
        for start, end in zip(starts, [*starts[1:], time_slots], strict=True)
        if chosen[start] >= 0
    )


def _members(on_workers: Ints, on_ps: Ints, time_slot: int) -> list[int]:
    return np.flatnonzero(on_workers[time_slot] + on_ps[time_slot]).tolist()


def _grains(time_slots: int, gangs: int, ideal_slots: float, operations_max: int) -> int:
    affordable = int(operations_max / (time_slots * gangs * max(ideal_slots, 1.0)))
    return max(GRAINS_MIN if gangs > 1 else 1, min(GRAINS_MAX, affordable))


def _follow(
    ask: Ask,
    gangs: Gangs,
    chosen: NDArray[np.int64],
    starts: Any,
    ends: Any,
    open_ms: Floats,
    cost: Floats,
) -> tuple[int, int, float]:
    """Go through the chosen slots in exact time: the last one needed, when the work ends, what is paid."""
    left, paid = ask.steps_left, 0.0
    last = 0
    for t in np.flatnonzero(chosen >= 0).tolist():
        last = t
        speed_per_ms = float(gangs.steps_per_s[chosen[t]]) / MS_PER_S
        if left <= speed_per_ms * open_ms[t] * (1 + 1e-12):
            took_ms = (ends[t] - starts[t] - open_ms[t]) + left / speed_per_ms
            paid += float(cost[t]) * min(1.0, took_ms / (ends[t] - starts[t]))
            return t, int(starts[t]) + math.ceil(took_ms - 1e-6), float(paid)
        left -= speed_per_ms * open_ms[t]
        paid += float(cost[t])
    return last, int(ends[last]), float(paid)

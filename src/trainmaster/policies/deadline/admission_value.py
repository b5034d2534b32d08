"""When room is short: is a job worth the room it takes? Promises are for many rather than for the largest.

Accepting whatever is feasible fills the reservations with the few largest jobs, and dozens of small ones are then
refused. So while refusals show that room is short, a newcomer is measured against the offers of late: to
keep the most (weighted) promises with the capacity that there was in that time, the offers with the
smallest area per weight are taken until it is used up (the fluid knapsack); a job with a larger area per
weight than the last of those is refused. Where no job was refused lately, or the offers fit, all pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from trainmaster.policies.deadline.reservation_book import ReservationBook

MEMORY = 512
"""Arrivals remembered."""
_ENOUGH = 32
EASY = 0.5
"""With less than this part booked until its deadline, a job of any size passes."""


@dataclass
class Offers:
    """Lately offered jobs (when, area per weight, area) and how many came since one was refused."""

    seen: list[list[float]] = field(default_factory=list)
    since_refusal: int = MEMORY

    @classmethod
    def read(cls, kept: Sequence[object] | None) -> Offers:
        if kept is None:
            return cls()
        seen, since = kept
        return cls(list(seen), int(since))  # type: ignore[call-overload, arg-type]

    def plain(self) -> list[object]:
        return [self.seen, self.since_refusal]

    def offered(self, reservations: ReservationBook, row: int) -> None:
        """Remember a newcomer."""
        now_ms, area = reservations.now, area_ms(reservations, row)
        price = area / max(float(reservations.view.jobs.weight[row]), 1e-9)
        window_ms = max(float(reservations.due[row]) - now_ms, 0.0)
        self.seen = [*self.seen[-(MEMORY - 1) :], [now_ms, price, area, window_ms]]
        self.since_refusal = min(self.since_refusal + 1, MEMORY)

    def refused(self) -> None:
        self.since_refusal = 0

    def highest_price(self, target: float) -> float:
        """The largest area per weight that the capacity of that time, times `target`, reaches to."""
        if self.since_refusal >= MEMORY or len(self.seen) < _ENOUGH:
            return math.inf
        when, price, area, window = np.array(self.seen).T
        # Work offered until now may be done until it is due.
        room_ms = when[-1] - when[0] + window.mean()
        order = np.argsort(price, kind="stable")
        used = np.cumsum(area[order])
        fitting = used <= target * room_ms
        if fitting.all():
            return math.inf
        return float(price[order][max(int(fitting.sum()) - 1, 0)])


def area_ms(reservations: ReservationBook, row: int) -> float:
    """Least area: milliseconds of the whole cluster's capacity of a type, over the types that would do."""
    jobs = reservations.jobs
    levels = int(jobs.levels[row])
    per_speed = float((jobs.sizes[row, :levels] / jobs.speeds[row, :levels]).min())
    areas = [
        jobs.work[row] * 1000.0 / jobs.base[row, k] * per_speed * jobs.each[row] / reservations.capacity[k]
        for k in range(len(reservations.capacity))
        if jobs.base[row, k] > 0 and reservations.capacity[k] > 0
    ]
    # Types share the load: a job takes its part of one of them.
    return min(areas, default=math.inf) / max(len(areas), 1)


def booked(reservations: ReservationBook, row: int) -> float:
    """The part that is booked of the window until the deadline, on the acceptable type with most room."""
    p, due = reservations.profile, float(reservations.due[row])
    parts = [
        1.0 - p.free_area(k, due) / (reservations.capacity[k] * max(due - reservations.now, 1.0))
        for k in range(len(reservations.capacity))
        if reservations.jobs.base[row, k] > 0 and reservations.capacity[k] > 0
    ]
    return min(max(min(parts, default=1.0), 0.0), 1.0)

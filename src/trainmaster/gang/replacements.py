"""When an empty seat of an elastic gang is filled again, and when that is given up. No I/O."""

from __future__ import annotations

import math

from trainmaster.gang.actions import Seat
from trainmaster.gang.timeouts import FIRST_PAUSE_S, LONGEST_PAUSE_S


class Replacements:
    """`max_deaths` deaths without progress in between are too many; each makes the next pause longer."""

    def __init__(self, max_deaths: int) -> None:
        self._max_deaths = max_deaths
        self._waiting: list[tuple[float, Seat]] = []
        self._deaths = 0
        self._work_at_death = -math.inf

    def died(self, seat: Seat, now_s: float, work_done: float, its_own: bool = True) -> bool:
        """False when there were too many. The seat is filled again after a pause. A member that was taken away
        (`its_own` False) does not count."""
        self._deaths += its_own
        self._work_at_death = work_done
        if self._deaths >= self._max_deaths:
            return False
        self._waiting.append((now_s + min(FIRST_PAUSE_S * 2 ** max(self._deaths - 1, 0), LONGEST_PAUSE_S), seat))
        return True

    def progressed(self, work_done: float) -> None:
        if work_done > self._work_at_death:
            self._deaths = 0

    def due(self, now_s: float) -> list[Seat]:
        """Seats to fill now, taken out."""
        ready = [seat for at_s, seat in self._waiting if at_s <= now_s]
        self._waiting = [(at_s, seat) for at_s, seat in self._waiting if at_s > now_s]
        return ready

    def clear(self) -> None:
        self._waiting = []

    @property
    def next_due_s(self) -> float:
        return min((at_s for at_s, _ in self._waiting), default=math.inf)

"""When an empty slot of an elastic gang is filled again, and when that is given up. No I/O."""

from __future__ import annotations

import math

from trainmaster.backends.local.slots import Slot

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0


class Replacements:
    """`max_deaths` deaths without progress in between are too many; each makes the next pause longer."""

    def __init__(self, max_deaths: int) -> None:
        self._max_deaths = max_deaths
        self._waiting: list[tuple[float, Slot]] = []
        self._deaths = 0
        self._work_at_death = -math.inf

    def add(self, slot: Slot, at_s: float) -> None:
        self._waiting.append((at_s, slot))

    def died(self, slot: Slot, now_s: float, work_done: float) -> bool:
        """False when there were too many. The slot is filled again after a pause."""
        self._deaths += 1
        self._work_at_death = work_done
        if self._deaths >= self._max_deaths:
            return False
        self.add(slot, now_s + min(FIRST_PAUSE_S * 2 ** (self._deaths - 1), LONGEST_PAUSE_S))
        return True

    def progressed(self, work_done: float) -> None:
        if work_done > self._work_at_death:
            self._deaths = 0

    def due(self, now_s: float) -> list[Slot]:
        """Slots to fill now, taken out."""
        ready = [slot for at_s, slot in self._waiting if at_s <= now_s]
        self._waiting = [(at_s, slot) for at_s, slot in self._waiting if at_s > now_s]
        return ready

    def clear(self) -> None:
        self._waiting = []

    @property
    def next_due_s(self) -> float:
        return min((at_s for at_s, _ in self._waiting), default=math.inf)

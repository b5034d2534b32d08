"""Time as the engine counts it: milliseconds since the store was new, never backwards, whatever the wall clock does.

The machine's sleep counts. A wall clock that is set, forwards or backwards, changes how instants are shown from then
on, and nothing else: no job and no history grows older by it. A large jump is remembered until an operator has
confirmed the clock, or somebody has set it back; meanwhile no history is deleted for its age.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from trainmaster.gang.linux import boot_clock_ms
from trainmaster.model.units import MS_PER_S


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        ...

    def elapsed_ms(self) -> int:
        """Milliseconds since some moment; never less than before."""
        ...


class SystemClock:
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def elapsed_ms(self) -> int:
        return boot_clock_ms()


FOLLOW_MS = 7 * 86_400_000
"""A service is believed to have been away for so long at most; a wall clock that says more may be wrong."""
UNSEEN_MS = 3_600_000
"""Absences above that do not age the history: nothing is forgotten because a clock was set. Jumps above that are to be
confirmed."""
JUMP_MS = 60_000
"""A wall clock that is further from ours than that has been set; less is drift."""


class EngineTime:
    """The engine's time. It goes on over a restart by as much as the wall clock did, within `FOLLOW_MS`, and never
    backwards. `epochs` says what the wall clock showed: (from which engine time, wall time of engine time 0).
    `doubt_ms`: by how much the wall clock has jumped, as far as no operator has confirmed it."""

    def __init__(
        self, clock: Clock, epochs: Sequence[tuple[int, int]], last_ms: int, unseen_ms: int = 0, doubt_ms: int = 0
    ) -> None:
        self._clock = clock
        self.epochs = [*epochs]
        self.doubt_ms = doubt_ms
        stated_ms = clock.wall_ms() - self.epoch_ms - last_ms
        if not -UNSEEN_MS <= stated_ms <= FOLLOW_MS:
            self._doubt(stated_ms)
        away_ms = min(max(stated_ms, 0), FOLLOW_MS)
        self._offset_ms = last_ms + away_ms - clock.elapsed_ms()
        self.unseen_ms = unseen_ms + (away_ms if away_ms > UNSEEN_MS else 0)
        self._follow()

    def _doubt(self, jump_ms: int) -> None:
        jumps_ms = self.doubt_ms + jump_ms
        self.doubt_ms = jumps_ms if abs(jumps_ms) > UNSEEN_MS else 0

    @property
    def epoch_ms(self) -> int:
        """What the present wall clock showed, or would have, at engine time 0."""
        return self.epochs[-1][1]

    def now_ms(self) -> int:
        return self._clock.elapsed_ms() + self._offset_ms

    def follow_wall_clock(self) -> int:
        """By how much somebody has set the wall clock since we last looked; instants from now on are by the new one."""
        jump_ms = self._follow()
        if jump_ms:
            self._doubt(jump_ms)
        return jump_ms

    def _follow(self) -> int:
        now_ms = self.now_ms()
        jump_ms = self._clock.wall_ms() - self.epoch_ms - now_ms
        if abs(jump_ms) <= JUMP_MS:
            return 0
        self.epochs.append((now_ms, self.epoch_ms + jump_ms))
        return jump_ms

    def instant_s(self, ms: int) -> float:
        """Seconds since 1970, for people and clients, by the clock of that time."""
        epoch_ms = next((epoch for since_ms, epoch in reversed(self.epochs) if since_ms <= ms), self.epochs[0][1])
        return (epoch_ms + ms) / MS_PER_S

"""Time as the engine counts it: milliseconds since the store was new, never backwards, whatever the wall clock does."""

from __future__ import annotations

import time
from typing import Protocol

from trainmaster.model.units import MS_PER_S


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since 1970; asked once, when the control plane opens its store."""
        ...

    def elapsed_ms(self) -> int:
        """Milliseconds since some moment; never less than before."""
        ...


class SystemClock:
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def elapsed_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


class EngineTime:
    """The engine's time. It goes on over a restart by as much as the wall clock did, and not backwards."""

    def __init__(self, clock: Clock, epoch_ms: int, last_ms: int) -> None:
        self._clock = clock
        self.epoch_ms = epoch_ms
        self._offset_ms = max(last_ms, clock.wall_ms() - epoch_ms) - clock.elapsed_ms()

    def now_ms(self) -> int:
        return self._clock.elapsed_ms() + self._offset_ms

    def instant_s(self, ms: int) -> float:
        """Seconds since 1970, for people and clients."""
        return (self.epoch_ms + ms) / MS_PER_S

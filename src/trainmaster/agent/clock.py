"""The clock that leases are counted on, by launcher and runtime."""

from __future__ import annotations

import time


def boot_clock_ms() -> int:
    """Milliseconds that also count while the machine sleeps: a lease must not outlive a closed lid."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    return time.monotonic_ns() // 1_000_000

"""Units: time is integer milliseconds, GPUs are integer thousandths, memory is MiB."""

from __future__ import annotations

MS_PER_S = 1000
GPU_MILLI = 1000
"""One whole GPU."""
SERVER_CPU_MILLI = 1000
"""CPU of a parameter server of which nobody says what it needs."""
NEVER_MS = 2**62
"""A time that does not come: no deadline, no wake-up."""
UNLIMITED = 2**50
"""Capacity of a resource that the cluster description does not mention."""


def ms_from_s(seconds: float) -> int:
    """Nearest integer millisecond."""
    return round(seconds * MS_PER_S)

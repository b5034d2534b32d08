"""The lease rule, shared by engine, backends and runtime.

A worker counts from the moment it *sent* the renewal that succeeded, on its own clock, and ends itself
`lease_ms` later. The other side counts from the moment it *answered*, which is not earlier, and allows
for the drift of two clocks and a margin. So when `certainly_over_ms` has come, the worker has ended.

A part of the launcher's bundle: Python 3.8 or newer.
"""

from __future__ import annotations

from dataclasses import dataclass

RENEWALS_PER_LEASE = 4
"""So that three renewals may be lost before the lease is."""


@dataclass(frozen=True)
class LeaseRule:
    lease_ms: int = 30_000
    drift: float = 0.001
    """Largest relative difference of two clocks' speeds."""
    margin_ms: int = 1_000

    @property
    def renew_every_ms(self) -> int:
        return self.lease_ms // RENEWALS_PER_LEASE

    def worker_ends_ms(self, sent_ms: int) -> int:
        """When a worker must have ended itself, on its own clock."""
        return sent_ms + self.lease_ms

    def certainly_over_ms(self, answered_ms: int) -> int:
        """When the other side may rely on it."""
        return answered_ms + int(self.lease_ms * (1.0 + self.drift)) + self.margin_ms

"""Jobs that have not come yet: futures in which arrivals go on as they did.

A queue rolled forward without newcomers is too hopeful under policies that let them overtake. So in some futures
jobs like the recent ones go on arriving, at the recent pace, for about as long again as they have been coming. How
many futures are of this kind falls with the time since the last arrival, counted in usual gaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from trainmaster.model.job import JobId, JobSpec
from trainmaster.model.units import NEVER_MS

LEAST = 5
"""Arrivals below which there is no pace to speak of."""
RECENT_MS = 3_600_000
MAX_NEWCOMERS = 200
PATIENCE_GAPS = 4.0
"""After so many gaps without an arrival it is as likely as not that no more come."""


@dataclass(frozen=True)
class Arrivals:
    """Recent jobs, by time of submission."""

    specs: tuple[JobSpec, ...] = ()

    @classmethod
    def recent(cls, specs: Sequence[JobSpec], now_ms: int) -> Arrivals:
        found = [spec for spec in specs if now_ms - RECENT_MS <= spec.submit_ms <= now_ms]
        return cls(tuple(sorted(found, key=lambda spec: (spec.submit_ms, spec.id))))

    def likelihood(self, now_ms: int) -> float:
        """That more come."""
        if len(self.specs) < LEAST:
            return 0.0
        idle_ms = now_ms - self.specs[-1].submit_ms
        return 0.5 ** (idle_ms / (PATIENCE_GAPS * self._gap_ms))

    @property
    def _gap_ms(self) -> float:
        span_ms = self.specs[-1].submit_ms - self.specs[0].submit_ms
        return max(span_ms / (len(self.specs) - 1), 1.0)

    def draw(self, now_ms: int, seed: int) -> list[JobSpec]:
        """Newcomers of one future, in order; none in the future of seed 0."""
        if seed == 0 or len(self.specs) < LEAST:
            return []
        rng = np.random.Generator(np.random.PCG64([seed, 31]))
        if rng.random() >= self.likelihood(now_ms):
            return []
        span_ms = float(self.specs[-1].submit_ms - self.specs[0].submit_ms)
        until_ms = now_ms + rng.exponential(max(span_ms, self._gap_ms))
        newcomers: list[JobSpec] = []
        at_ms = float(now_ms)
        while len(newcomers) < MAX_NEWCOMERS:
            at_ms += rng.exponential(self._gap_ms)
            if at_ms > until_ms:
                break
            model = self.specs[int(rng.integers(len(self.specs)))]
            moved_ms = round(at_ms) - model.submit_ms
            deadline_ms = model.deadline_ms if model.deadline_ms >= NEVER_MS else model.deadline_ms + moved_ms
            name = JobId(f"newcomer-{len(newcomers)}")
            newcomers.append(replace(model, id=name, submit_ms=round(at_ms), deadline_ms=deadline_ms, after=()))
        return newcomers

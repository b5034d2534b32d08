"""How much work a job is expected to have that does not say."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import NamedTuple

from trainmaster.model.job import JobSpec


class ExpectedWork(NamedTuple):
    """In steps, log-normal. `timed`: it rests on run times, so it counts whatever is known of the speed. `basis`: the
    jobs that say so, in words."""

    median: float
    sigma: float
    timed: bool = False
    basis: str = ""

    def at_most(self, probability: float) -> float:
        """Steps that are not exceeded with this probability."""
        return self.median * math.exp(NormalDist().inv_cdf(probability) * self.sigma)


WorkSource = Callable[[JobSpec, Sequence[str]], ExpectedWork | None]

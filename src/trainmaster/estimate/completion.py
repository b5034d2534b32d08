"""How far jobs' speeds were from what they declared: what a job of which nothing is measured is presumed to do.

Kept beside the estimator of speeds because policies that promise deadlines decide by it where nothing is learned (in
simulation with declared speeds); it is plain numbers, for a policy's memo.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist


def quantile_z(probability: float) -> float:
    """Standard normal quantile; `probability` strictly between 0 and 1."""
    return NormalDist().inv_cdf(probability)


@dataclass(frozen=True)
class RatioPool:
    """How measured speed compares with the declared one, over similar jobs: mean and spread of the log ratio.

    Serves as the prior of a job of which nothing has been measured. Sums fit into a memo as plain numbers.
    """

    count: float = 0.0
    total: float = 0.0
    squares: float = 0.0

    def record(self, ratio: float) -> RatioPool:
        """One job's measured speed over its declared speed."""
        value = math.log(ratio)
        return RatioPool(self.count + 1.0, self.total + value, self.squares + value * value)

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    @property
    def sigma(self) -> float:
        """0 while nothing has been measured: declared speeds are then taken at their word."""
        if self.count == 0.0:
            return 0.0
        # One pseudo-observation at the declared figure keeps a first lucky measurement from closing the band.
        return math.sqrt(max(self.squares / self.count - self.mean**2, self.squares / (self.count + 1.0) ** 2))

    def factor(self, probability: float) -> float:
        """Speed relative to the declared one that is exceeded with this probability."""
        return math.exp(self.mean - quantile_z(probability) * self.sigma) if self.count else 1.0

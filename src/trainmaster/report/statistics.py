"""Means with confidence intervals over seeds, and comparisons paired by seed (Student's t)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean and the ends of its confidence interval; no ends (None) when one sample is all there is."""

    mean: float
    low: float | None
    high: float | None
    samples: int

    def excludes(self, value: float) -> bool:
        return self.low is not None and self.high is not None and not self.low <= value <= self.high


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean of independent samples, with mean +- t s / sqrt(n)."""
    sample = np.asarray(values, dtype=np.float64)
    mean = float(sample.mean())
    if len(sample) < 2:
        return Interval(mean, None, None, len(sample))
    half = t_quantile((1 + LEVEL) / 2, len(sample) - 1) * float(sample.std(ddof=1)) / math.sqrt(len(sample))
    return Interval(mean, mean - half, mean + half, len(sample))


def geometric_interval(values: Sequence[float]) -> Interval:
    """The geometric mean, with the interval of the mean logarithm taken back."""
    logs = mean_interval([math.log(value) for value in values])
    ends = [None if end is None else math.exp(end) for end in (logs.low, logs.high)]
    return Interval(math.exp(logs.mean), ends[0], ends[1], logs.samples)


def paired_ratio(values: Sequence[float], baseline: Sequence[float]) -> Interval | None:
    """Geometric mean of values[k] / baseline[k]: the interval of the mean log ratio, taken back. Two policies
    that met the same workload are compared on it, so that what varies between workloads drops out. None when
    a ratio does not exist."""
    if min(*values, *baseline) <= 0:
        return None
    return geometric_interval([a / b for a, b in zip(values, baseline, strict=True)])


def paired_difference(values: Sequence[float], baseline: Sequence[float]) -> Interval:
    return mean_interval([a - b for a, b in zip(values, baseline, strict=True)])


@cache
def t_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's t, by bisection on its distribution function."""
    if not 0.5 <= probability < 1 or degrees < 1:
        raise ValueError(f"quantile {probability} of t with {degrees} degrees of freedom")
    low, high = 0.0, 1.0
    while _t_cdf(high, degrees) < probability:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_cdf(middle, degrees) < probability else (low, middle)
    return (low + high) / 2


def _t_cdf(t: float, degrees: int) -> float:
    """The finite sums for whole degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(degrees))
    cosine = math.cos(angle)
    if degrees == 1:
        return 0.5 + angle / math.pi
    odd = degrees % 2 == 1
    term = cosine if odd else 1.0
    total = term
    for k in range(3 if odd else 2, degrees, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    inside = math.sin(angle) * total
    return 0.5 + ((angle + inside) / math.pi if odd else inside / 2)

"""Floor division as Python does it; random numbers that hang on key and counter alone, with the right distribution."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.core.arithmetic import floor_div, lucky, normal, uniform

FINITE = st.floats(min_value=-1e12, max_value=1e12, allow_nan=False)


@given(FINITE, st.floats(min_value=1e-6, max_value=1e6))
def test_floor_division_is_pythons(a: float, b: float) -> None:
    assert floor_div(a, b) == a // b
    assert floor_div(a, -b) == a // -b


def test_where_the_rounded_quotient_would_mislead() -> None:
    assert floor_div(1.0, 0.1) == 9.0 == 1.0 // 0.1
    assert math.floor(1.0 / 0.1) == 10


def _ks_distance(values: np.ndarray) -> float:
    """Largest distance between the empirical and the normal distribution function."""
    expected = np.array([NormalDist().cdf(v) for v in np.sort(values)])
    steps = np.arange(len(values) + 1) / len(values)
    return float(max((steps[1:] - expected).max(), (expected - steps[:-1]).max()))


def test_normal_numbers_are_distributed_as_those_of_the_former_generator() -> None:
    n = 20_000
    ours = np.array([normal(7919 * key, counter) for key in range(200) for counter in range(n // 200)])
    before = np.array([np.random.Generator(np.random.PCG64([3, k, 1])).normal() for k in range(2_000)])
    assert _ks_distance(ours) < 1.63 / math.sqrt(n)  # 1 % level
    assert _ks_distance(before) < 1.63 / math.sqrt(len(before))
    assert abs(ours.mean()) < 3 / math.sqrt(n)
    assert abs(ours.std() - 1.0) < 3 / math.sqrt(2 * n)
    neighbours = np.corrcoef(ours[:-1], ours[1:])[0, 1]
    assert abs(neighbours) < 3 / math.sqrt(n)


def test_same_key_same_number_whenever_it_is_asked_for() -> None:
    asked = [(key, counter) for key in (0, 1, 2**63 - 1) for counter in (0, 1, 2**32)]
    first = [uniform(*which) for which in asked]
    assert [uniform(*which) for which in reversed(asked)] == first[::-1]
    assert len(set(first)) == len(asked)
    assert all(0.0 < value < 1.0 for value in first)


def test_factors_have_median_one() -> None:
    factors = np.array([lucky(12345, k, 0.3) for k in range(5_000)])
    assert abs(np.median(factors) - 1.0) < 0.03
    assert abs(np.log(factors).std() - 0.3) < 0.01

"""How far jobs were from what they declared."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trainmaster.estimate.completion import RatioPool


def test_pool_of_similar_jobs() -> None:
    pool = RatioPool()
    assert pool.factor(0.9) == 1.0
    rng = np.random.Generator(np.random.PCG64(1))
    for _ in range(400):
        pool = pool.record(math.exp(rng.normal(-0.2, 0.1)))
    assert pool.mean == pytest.approx(-0.2, abs=0.02)
    assert pool.sigma == pytest.approx(0.1, abs=0.02)
    assert pool.factor(0.9) == pytest.approx(math.exp(-0.2 - 1.2816 * 0.1), rel=0.03)

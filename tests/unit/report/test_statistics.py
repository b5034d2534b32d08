"""Intervals against scipy; pairing; who is best."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from trainmaster.report.statistics import mean_interval, paired_difference, paired_ratio, t_quantile
from trainmaster.report.verdicts import verdicts
from trainmaster.report.wording import lead

positive = st.floats(0.1, 1e6)


@given(st.floats(0.55, 0.999), st.integers(1, 200))
def test_t_quantile_agrees_with_scipy(probability: float, degrees: int) -> None:
    assert t_quantile(probability, degrees) == pytest.approx(stats.t.ppf(probability, degrees), rel=1e-9)


@given(st.lists(st.tuples(positive, positive), min_size=2, max_size=12))
def test_paired_intervals_agree_with_scipy(pairs: list[tuple[float, float]]) -> None:
    own, other = [a for a, _ in pairs], [b for _, b in pairs]
    logs = np.log(np.array(own) / np.array(other))
    made = paired_ratio(own, other)
    assert made is not None
    assert made.low is not None
    assert made.high is not None
    spread = stats.sem(logs)
    if spread > 1e-9:
        low, high = stats.t.interval(0.95, len(logs) - 1, loc=logs.mean(), scale=spread)
        assert math.log(made.low) == pytest.approx(low, rel=1e-6, abs=1e-6)
        assert math.log(made.high) == pytest.approx(high, rel=1e-6, abs=1e-6)
    difference = paired_difference(own, other)
    assert difference.mean == pytest.approx(np.mean(own) - np.mean(other), abs=1e-6, rel=1e-6)


def test_one_sample_has_no_interval_and_zero_has_no_ratio() -> None:
    assert mean_interval([3.0]).low is None
    assert not mean_interval([3.0]).excludes(0.0)
    assert paired_ratio([1.0, 0.0], [1.0, 1.0]) is None


def results(**jcts: list[float]) -> pl.DataFrame:
    return pl.DataFrame(
        [
            {"policy": policy, "seed": seed, "average_jct_s": value, "utilization": 0.5}
            for policy, values in jcts.items()
            for seed, value in enumerate(values)
        ]
    )


def test_pairing_finds_a_small_lead_among_large_differences_between_seeds() -> None:
    base = [100.0, 1000.0, 10_000.0, 50_000.0]
    found = {v.metric.column: v for v in verdicts(results(a=base, b=[0.9 * x for x in base], c=[2 * x for x in base]))}
    jct = found["average_jct_s"]
    assert (jct.best, jct.next_best) == ("b", "a")
    assert jct.lead is not None
    assert jct.lead.mean == pytest.approx(0.9)
    assert jct.clear
    assert "b by 10.0 %" in lead(jct)
    assert found["utilization"].tied


def test_the_best_always_leads_and_chance_is_called_chance() -> None:
    found = verdicts(results(a=[1.0, 100.0, 4.0], b=[2.0, 60.0, 5.0]))[0]
    assert found.lead is not None
    assert found.lead.mean <= 1
    assert not found.clear
    assert "could be chance" in lead(found)
    single = verdicts(results(a=[1.0], b=[2.0]))[0]
    assert "one seed" in lead(single)

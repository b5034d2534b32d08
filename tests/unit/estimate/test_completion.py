"""Completion prediction: the fit, the band's coverage, and the error over a job's life."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trainmaster.estimate.completion import CompletionModel, IterationFit, RatioPool, prior_of_scaling
from trainmaster.model.scaling import amdahl


def test_one_size_without_prior_divides_all() -> None:
    fit = IterationFit().observe(4, 0.5)
    assert fit.coefficients() == pytest.approx((0.0, 2.0))
    assert fit.step_s(8)[0] == pytest.approx(0.25)


def test_two_sizes_separate_the_parts() -> None:
    fit = IterationFit()
    for size in (2, 8):
        fit = fit.observe(size, 0.1 + 1.6 / size)
    assert fit.coefficients() == pytest.approx((0.1, 1.6), rel=1e-6)


def test_prior_of_a_curve_is_the_curve() -> None:
    fit = prior_of_scaling(5.0, 2, amdahl(0.1))
    for size in (1, 2, 4, 16):
        expected = 1.0 / (5.0 * float(amdahl(0.1).speed(size)) / float(amdahl(0.1).speed(2)))
        assert fit.step_s(size)[0] == pytest.approx(expected, rel=1e-9)


def test_measurements_narrow_the_band_and_implausible_ones_are_left_out() -> None:
    fit = prior_of_scaling(1.0, 1, amdahl(0.05))
    narrower = fit.observe(1, 1.3)
    assert narrower.step_s(1)[1] < fit.step_s(1)[1] / 3
    assert narrower.step_s(1)[0] == pytest.approx(1.3, rel=0.05)
    for bad in (0.0, -1.0, math.inf, math.nan):
        assert fit.observe(1, bad) is fit


def test_types_and_spread_are_restated() -> None:
    model = CompletionModel(prior_of_scaling(1.0, 1, amdahl(0.0)), {"v100": 1.0, "k80": 4.0}, spread_factor=1.25)
    for _ in range(20):
        model = model.measured(1, 1.0 / (4.0 * 1.25 * 2.0), "k80", spread=True)
    assert model.step_s(1, "v100")[0] == pytest.approx(2.0, rel=0.02)


def test_the_time_left_is_not_exceeded_with_the_asked_probability() -> None:
    model = CompletionModel(prior_of_scaling(1.0, 1, amdahl(0.0), sigma=0.1))
    assert model.remaining_s(100.0, 1, probability=0.5) > 51.0 >= model.remaining_s(100.0, 2, probability=0.5)
    assert model.remaining_s(100.0, 2, probability=0.9) > 51.0 >= model.remaining_s(100.0, 4, probability=0.9)
    assert model.remaining_s(100.0, 4, probability=0.9) > 5.0


def _lives(seed: int, jobs: int) -> tuple[list[list[bool]], list[list[float]]]:
    """Noisy worlds: declared speed wrong by 25 %, each report by 10 %; five points of each life."""
    rng = np.random.Generator(np.random.PCG64(seed))
    inside: list[list[bool]] = [[] for _ in range(5)]
    errors: list[list[float]] = [[] for _ in range(5)]
    for _ in range(jobs):
        serial, size = float(rng.uniform(0.0, 0.2)), int(rng.choice([1, 2, 4, 8]))
        declared = prior_of_scaling(1.0, 1, amdahl(serial))
        step_s = declared.step_s(size)[0] * math.exp(rng.normal(0.0, 0.25))
        model = CompletionModel(declared)
        steps = 1000.0
        for point in range(5):
            left = steps * (1.0 - point / 5)
            truth_ms = left * step_s * 1000.0
            eta = model.eta(0, left, size)
            inside[point].append(eta.p10_ms <= truth_ms <= eta.p90_ms)
            errors[point].append(abs(eta.p50_ms - truth_ms) / truth_ms)
            for _ in range(4):
                model = model.measured(size, 1.0 / (step_s * math.exp(rng.normal(0.0, 0.1))))
    return inside, errors


def test_the_band_covers_what_it_says_and_the_error_falls() -> None:
    """The 10-90 % band holds 80 % of the finishes, early and late; the error shrinks."""
    inside, errors = _lives(3, 600)
    coverage = [float(np.mean(point)) for point in inside]
    assert all(0.70 <= c <= 0.92 for c in coverage), coverage
    medians = [float(np.median(point)) for point in errors]
    assert medians[-1] < medians[0] / 3, medians


def test_pool_of_similar_jobs() -> None:
    pool = RatioPool()
    assert pool.factor(0.9) == 1.0
    rng = np.random.Generator(np.random.PCG64(1))
    for _ in range(400):
        pool = pool.record(math.exp(rng.normal(-0.2, 0.1)))
    assert pool.mean == pytest.approx(-0.2, abs=0.02)
    assert pool.sigma == pytest.approx(0.1, abs=0.02)
    assert pool.factor(0.9) == pytest.approx(math.exp(-0.2 - 1.2816 * 0.1), rel=0.03)
    moved = pool.prior(prior_of_scaling(1.0, 1, amdahl(0.0)), 1)
    assert moved.step_s(1)[0] == pytest.approx(math.exp(0.2), rel=0.03)

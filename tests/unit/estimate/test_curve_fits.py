"""Fits recover known curves; least squares agrees with an independent solver."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from trainmaster.estimate.loss_fit import LossCurve, fit_loss
from trainmaster.estimate.nonnegative import nonnegative_least_squares
from trainmaster.estimate.speed_fit import fit_speed, profile_sizes
from trainmaster.model.scaling import Scaling, amdahl


@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 20))
@settings(max_examples=150, deadline=None)
def test_least_squares_agrees_with_scipy(seed: int, columns: int, extra: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(columns + extra, columns)) * rng.choice([1e-3, 1.0, 1e3], size=columns)
    wanted = rng.normal(size=columns + extra)
    mine = nonnegative_least_squares(matrix, wanted)
    _, residual = nnls(matrix, wanted)
    assert (mine >= 0).all()
    assert np.linalg.norm(matrix @ mine - wanted) == pytest.approx(residual, rel=1e-7, abs=1e-9)


@pytest.mark.parametrize(
    "truth",
    [
        Scaling(a=12.0, b=0.4, c=0.7, d=0.05, e=0.03),
        Scaling(a=3.0, b=0.2, f=0.9, g=0.05),
        Scaling(a=5.0, b=0.0, c=1.5),
    ],
)
def test_exact_profiles_give_the_curve_back_everywhere(truth: Scaling) -> None:
    sizes = profile_sizes((1, 16), (1, 16), 12)
    fit = fit_speed([(w, p, float(truth.speed(w, p))) for w, p in sizes])
    assert fit.error < 1e-6
    w, p = np.meshgrid(np.arange(1, 17), np.arange(1, 17))
    assert fit.scaling.speed(w, p) == pytest.approx(truth.speed(w, p), rel=1e-4)


def test_noisy_profiles_come_close() -> None:
    truth = Scaling(a=12.0, b=0.4, c=0.7, d=0.05, e=0.03)
    w, p = np.meshgrid(np.arange(1, 13), np.arange(1, 13))
    worst = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        sizes = profile_sizes((1, 16), (1, 16), 10)
        fit = fit_speed([(w, p, float(truth.speed(w, p)) * (1 + 0.05 * rng.standard_normal())) for w, p in sizes])
        worst.append(float(np.abs(fit.scaling.speed(w, p) / truth.speed(w, p) - 1).mean()))
    assert np.mean(worst) < 0.08


def test_the_diagonal_does_not_identify_the_curve() -> None:
    """The reason for profiling with p != w: equal fits on the diagonal, wrong away from it."""
    truth = Scaling(a=12.0, b=0.1, c=2.0, d=0.0, e=0.05)
    diagonal = fit_speed([(k, k, float(truth.speed(k, k))) for k in (1, 2, 4, 8, 16)])
    assert diagonal.error < 1e-3
    off = fit_speed([(w, p, float(truth.speed(w, p))) for w, p in profile_sizes((1, 16), (1, 16), 8)])
    there = float(truth.speed(16, 1))
    assert abs(float(off.scaling.speed(16, 1)) / there - 1) < 0.01
    assert abs(float(diagonal.scaling.speed(16, 1)) / there - 1) > 0.2


def test_jobs_without_servers() -> None:
    truth = amdahl(0.15)
    fit = fit_speed([(w, 0, 7.0 * float(truth.speed(w))) for w, _ in profile_sizes((1, 8), (0, 0), 4)])
    assert fit.scaling.speed(np.arange(1, 9)) == pytest.approx(7.0 * truth.speed(np.arange(1, 9)), rel=1e-6)


def test_one_point_is_enough_and_none_is_refused() -> None:
    assert float(fit_speed([(2, 0, 5.0)]).scaling.speed(2)) == pytest.approx(5.0)
    with pytest.raises(ValueError, match="no profiled point"):
        fit_speed([(1, 1, 0.0)])


@given(st.integers(1, 20), st.integers(0, 20), st.integers(0, 8), st.integers(0, 8), st.integers(1, 12))
@settings(max_examples=100)
def test_profiles_stay_in_range_and_off_the_diagonal(low: int, more: int, s_low: int, s_more: int, count: int) -> None:
    sizes = profile_sizes((low, low + more), (s_low, s_low + s_more), count)
    assert 1 <= len(sizes) <= count or len(sizes) == 1
    assert len(set(sizes)) == len(sizes)
    for w, p in sizes:
        assert low <= w <= low + more
        assert s_low <= p <= s_low + s_more
    if s_low + s_more > 0 and more > 0 and s_more > 0:
        assert all(w != p for w, p in sizes)


@given(st.floats(1e-4, 1.0), st.floats(0.05, 5.0), st.floats(0.0, 3.0), st.sampled_from([20.0, 100.0, 1000.0]))
@settings(max_examples=80, deadline=None)
def test_exact_losses_give_the_curve_back(b0: float, b1: float, b2: float, length: float) -> None:
    truth = LossCurve(b0 / length * 50, b1, b2)
    steps = np.linspace(0, length, 25)
    fit = fit_loss(list(zip(steps.tolist(), truth.at(steps).tolist(), strict=True)))
    assert fit is not None
    assert fit.error < 1e-3
    assert fit.at(steps) == pytest.approx(truth.at(steps), rel=2e-3)


def test_noisy_losses_predict_the_end() -> None:
    truth = LossCurve(0.01, 0.25, 0.3)
    per_epoch, tolerance = 100.0, 0.01 * float(truth.at(0))
    end = truth.converged_step(per_epoch, tolerance)
    steps = np.linspace(0, 0.6 * end, 30)
    ratios = []
    for seed in range(20):
        noise = 1 + 0.01 * np.random.default_rng(seed).standard_normal(len(steps))
        fit = fit_loss(list(zip(steps.tolist(), (truth.at(steps) * noise).tolist(), strict=True)))
        assert fit is not None
        ratios.append(fit.converged_step(per_epoch, tolerance) / end)
    assert 0.8 < np.median(ratios) < 1.25


def test_convergence_is_where_an_epoch_gains_exactly_the_tolerance() -> None:
    curve = LossCurve(0.02, 0.5, 0.1)
    k = curve.converged_step(50.0, 0.004)
    assert float(curve.at(k) - curve.at(k + 50.0)) == pytest.approx(0.004)
    assert LossCurve(0.0, 1.0, 0.0).converged_step(10.0, 0.1) == 0.0


def test_too_few_or_rising_losses_fit_nothing() -> None:
    assert fit_loss([(0, 1.0), (1, 0.5), (2, 0.4)]) is None
    assert fit_loss([(float(k), 1.0 + k) for k in range(10)]) is None
    assert fit_loss([(float(k), float("nan")) for k in range(10)]) is None

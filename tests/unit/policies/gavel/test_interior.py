"""Where an interior-point solver stops: optimal, feasible, and off the corners."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trainmaster.policies.gavel.artifact.interior_point import stop_of_feasibility, stop_of_level, stop_of_total
from trainmaster.policies.gavel.artifact.tie_breaks import _bisected_makespan_s, linear_share, spread_over_types
from trainmaster.policies.gavel.objectives import allocate
from trainmaster.policies.gavel.problem import make_problem


def _instance(seed: int) -> tuple[Any, Any, Any]:
    rng = np.random.Generator(np.random.PCG64(seed))
    n = int(rng.integers(1, 60))
    speeds = np.sort(rng.uniform(0.3, 10.0, (n, 3)), axis=1) * rng.uniform(0.1, 40.0, (n, 1))
    speeds[rng.random(n) < 0.2, 0] = 0.0
    return speeds, rng.choice([1.0, 2.0, 4.0, 8.0], n), rng.integers(1, 20, 3).astype(float)


def _feasible(x: Any, gpus: Any, counts: Any) -> None:
    assert (x >= -1e-7).all()
    assert (x.sum(axis=1) <= 1.0 + 1e-6).all()
    assert (gpus @ x <= counts * (1.0 + 1e-6)).all()


@pytest.mark.parametrize("seed", range(12))
def test_it_stops_at_an_optimum(seed: int) -> None:
    speeds, gpus, counts = _instance(seed)
    problem = make_problem(speeds, counts, gpus=gpus)
    prop = speeds @ counts / counts.sum()
    level = stop_of_level(speeds, prop / gpus, gpus, counts)
    assert level is not None
    _feasible(level, gpus, counts)
    reached = float(((speeds * level).sum(axis=1) * gpus / prop).min())
    assert reached == pytest.approx(allocate(problem, "gavel-max-min").objective, rel=1e-5)
    total = stop_of_total(speeds, gpus, counts)
    assert total is not None
    _feasible(total, gpus, counts)
    assert float((speeds * total).sum()) == pytest.approx(allocate(problem, "gavel-throughput").objective, rel=1e-5)
    need = 0.95 * reached * prop / gpus
    some = stop_of_feasibility(speeds, need, gpus, counts)
    assert some is not None
    _feasible(some, gpus, counts)
    assert ((speeds * some).sum(axis=1) >= need * (1.0 - 1e-5)).all()


def test_jobs_alike_get_alike_shares() -> None:
    """A corner would treat them differently; the path cannot tell them apart."""
    problem = make_problem([[1.0, 2.0, 4.0]] * 6, [2.0, 2.0, 2.0])
    share = linear_share(problem, "gavel-max-min", True)
    assert share is not None
    assert np.allclose(share, share[0], atol=1e-6)


def test_types_without_gpus_and_jobs_without_speed_get_nothing() -> None:
    problem = make_problem([[1.0, 2.0], [0.0, 0.0], [3.0, 1.0]], [2.0, 0.0])
    share = linear_share(problem, "gavel-max-min", True)
    assert share is not None
    assert not share[1].any()
    assert not share[:, 1].any()
    assert (share[[0, 2], 0] > 0.9).all()


@pytest.mark.parametrize("optimum_s", [50.0, 101.0, 4321.0, 999_999.0, 3e6])
def test_the_bisection_ends_above_the_optimum_by_at_most_a_twentieth(optimum_s: float) -> None:
    found = _bisected_makespan_s(optimum_s)
    assert found >= optimum_s
    assert found <= 1.06 * max(optimum_s, 100.0)


def test_blind_shares_keep_their_time_and_spread_it() -> None:
    problem = make_problem([[1.0, 2.0, 9.0]] * 4, [4.0, 4.0, 4.0])
    exact = allocate(problem, "gavel-max-min", {"aware": False})
    share = spread_over_types(problem, exact)
    assert np.allclose(share.sum(axis=1), 1.0, atol=1e-5)
    assert (share > 0.2).all()


@pytest.mark.parametrize("seed", range(20))
def test_degenerate_programs_end_with_an_allocation_or_none(seed: int) -> None:
    """Levels that leave no room at all, jobs alike, types alike: rounding may end the path, never with an error."""
    rng = np.random.Generator(np.random.PCG64(seed))
    n = int(rng.integers(2, 150))
    gpus = rng.choice([1.0, 2.0, 4.0, 8.0], n)
    counts = rng.integers(1, 13, 3).astype(float)
    problem = make_problem(np.ones((n, 3)), counts, gpus=gpus, weight=rng.choice([1.0, 1e-4, 1e4], n))
    share = spread_over_types(problem, allocate(problem, "gavel-max-min", {"aware": False}))
    _feasible(share, gpus, counts)

"""Random instances against independent formulations: cvxpy for objectives, progressive filling for levels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainmaster.policies.gavel.objectives import allocate
from trainmaster.policies.gavel.problem import AllocationProblem, Pairs, make_problem

SETTINGS = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def problems(draw: st.DrawFn, jobs_max: int = 40, types_max: int = 8, with_pairs: bool = False) -> AllocationProblem:
    """Gangs, weights, forbidden types, zero speeds, ties (few distinct values), fewer jobs than GPUs and
    more."""
    rng = np.random.Generator(np.random.PCG64(draw(st.integers(0, 2**32 - 1))))
    n, types = draw(st.integers(1, jobs_max)), draw(st.integers(1, types_max))
    style = draw(st.sampled_from(["random", "ties", "clones"]))
    if style == "random":
        throughput = rng.uniform(0.1, 10.0, (n, types))
    elif style == "ties":
        throughput = rng.choice([1.0, 2.0, 4.0], (n, types))
    else:
        throughput = rng.uniform(0.1, 10.0, (3, types))[rng.integers(0, 3, n)]
    if draw(st.booleans()):
        throughput = np.where(rng.random((n, types)) < 0.3, 0.0, throughput)
    allowed = rng.random((n, types)) > (0.2 if draw(st.booleans()) else -1.0)
    keep = rng.integers(0, types, n)
    allowed[np.arange(n), keep] = True
    throughput[np.arange(n), keep] = np.maximum(throughput[np.arange(n), keep], 0.5)
    gpus = rng.choice([1.0, 2.0, 4.0, 8.0], n) if draw(st.booleans()) else np.ones(n)
    counts = rng.integers(1, draw(st.sampled_from([2, 8, 60])), types, endpoint=True)
    pairs = None
    if with_pairs and n > 1:
        rows = [(a, b) for a in range(n) for b in range(a + 1, n) if gpus[a] == gpus[b] and rng.random() < 0.7]
        if rows:
            index = np.array(rows)
            part = rng.uniform(0.3, 0.9, (len(rows), types, 2))
            pairs = Pairs(index, part * np.stack([throughput[index[:, 0]], throughput[index[:, 1]]], axis=2))
    return make_problem(
        throughput,
        counts.astype(float),
        gpus=gpus,
        weight=rng.choice([1.0, 2.0, 5.0], n),
        steps_remaining=rng.uniform(1.0, 1e6, n),
        elapsed_s=rng.uniform(0.0, 1e5, n) * draw(st.sampled_from([0.0, 1.0])),
        cost_per_hour=rng.uniform(0.2, 3.0, types),
        slo_s=np.where(rng.random(n) < 0.4, rng.uniform(1e5, 1e8, n), np.nan),
        allowed=allowed,
        pairs=pairs,
    )


def check_feasible(problem: AllocationProblem, share: np.ndarray, pair_share: np.ndarray | None) -> None:
    assert np.all(share >= 0.0)
    assert not np.any(share[~problem.allowed] > 0.0)
    time = share.sum(axis=1)
    used = problem.gpus @ share
    if pair_share is not None and problem.pairs is not None:
        assert np.all(pair_share >= 0.0)
        for side in (0, 1):
            np.add.at(time, problem.pairs.jobs[:, side], pair_share.sum(axis=1))
        used = used + problem.gpus[problem.pairs.jobs[:, 0]] @ pair_share
    assert np.all(time <= 1.0 + 1e-9)
    assert np.all(used <= problem.counts * (1.0 + 1e-9))


class Oracle:  # cvxpy's own annotations are too wide to follow: its values are typed Any here
    """The feasible set of an allocation problem as a cvxpy model, written from the definition."""

    def __init__(self, problem: AllocationProblem, pairs: Pairs | None = None) -> None:
        n, types = problem.throughput.shape
        self.x = cp.Variable((n, types), nonneg=True)
        time, used = cp.sum(self.x, axis=1), self.x.T @ problem.gpus
        self.thr: Any = cp.sum(cp.multiply(problem.throughput, self.x), axis=1)
        self.constraints: list[Any] = [cp.multiply(self.x, (~problem.usable).astype(float)) == 0]
        if pairs is not None:
            z = cp.Variable((len(pairs), types), nonneg=True)
            member = [np.zeros((n, len(pairs))), np.zeros((n, len(pairs)))]
            usable = problem.usable[pairs.jobs[:, 0]] & problem.usable[pairs.jobs[:, 1]]
            self.constraints.append(cp.multiply(z, (~usable).astype(float)) == 0)
            for side in (0, 1):
                member[side][pairs.jobs[:, side], np.arange(len(pairs))] = 1.0
                time = time + member[side] @ cp.sum(z, axis=1)
                self.thr = self.thr + member[side] @ cp.sum(cp.multiply(pairs.throughput[:, :, side], z), axis=1)
            used = used + z.T @ problem.gpus[pairs.jobs[:, 0]]
        self.constraints += [time <= 1, used <= problem.counts]

    def level(self, rate: np.ndarray) -> float:
        t = cp.Variable()
        scale = 1.0 / rate
        model = cp.Problem(cp.Maximize(t), [*self.constraints, cp.multiply(scale, self.thr) >= t])
        model.solve(solver=cp.HIGHS)
        return float(np.asarray(model.value))


def prop_of(problem: AllocationProblem) -> np.ndarray:
    return np.where(problem.usable, problem.throughput, 0.0) @ problem.counts / problem.counts.sum()


@SETTINGS
@given(problems())
def test_max_min_matches_cvxpy(problem: AllocationProblem) -> None:
    result = allocate(problem, "gavel-max-min")
    expected = Oracle(problem).level(problem.weight * prop_of(problem) / problem.gpus)
    assert result.status.value == "optimal"
    assert result.objective == pytest.approx(expected, rel=1e-6)
    check_feasible(problem, result.share, None)


@SETTINGS
@given(problems())
def test_makespan_matches_cvxpy(problem: AllocationProblem) -> None:
    result = allocate(problem, "gavel-makespan")
    unit = problem.steps_remaining.max()
    expected = unit / Oracle(problem).level(problem.steps_remaining / unit)
    assert result.objective == pytest.approx(expected, rel=1e-6)
    check_feasible(problem, result.share, None)


@SETTINGS
@given(problems())
def test_finish_time_fairness_is_optimal(problem: AllocationProblem) -> None:
    """The reached ratio is what the shares give, and no allocation meets a ratio smaller by one part in
    10^6."""
    result = allocate(problem, "gavel-ftf")
    share = problem.counts[None, :] / (problem.job_count * problem.gpus[:, None])
    share /= np.maximum(share.sum(axis=1), 1.0)[:, None]
    due = problem.steps_remaining / (np.where(problem.usable, problem.throughput, 0.0) * share).sum(axis=1)
    reached = np.max((problem.elapsed_s + problem.steps_remaining / result.throughput) / due)
    assert reached == pytest.approx(result.objective, rel=1e-7)
    left = result.objective * (1 - 1e-6) * due - problem.elapsed_s
    if np.all(left > 0.0):
        assert Oracle(problem).level(problem.steps_remaining / left) < 1.0
    check_feasible(problem, result.share, None)


@SETTINGS
@given(problems(), st.sampled_from(["gavel-throughput", "gavel-cost", "gavel-cost-slo"]))
def test_sums_match_cvxpy(problem: AllocationProblem, policy: str) -> None:
    result = allocate(problem, policy)
    oracle = Oracle(problem)
    price = np.ones(len(problem.counts)) if policy == "gavel-throughput" else problem.cost_per_hour
    objective = cp.Maximize(cp.sum(cp.multiply(problem.throughput / price[None, :], oracle.x)))
    needs = []
    if policy == "gavel-cost-slo" and result.status.value == "optimal":
        bound = np.flatnonzero(np.isfinite(problem.slo_s))
        needs = [oracle.thr[m] >= problem.steps_remaining[m] / problem.slo_s[m] for m in bound]
        for m in bound:
            assert result.throughput[m] >= problem.steps_remaining[m] / problem.slo_s[m] * (1 - 1e-8)
    expected = cp.Problem(objective, [*oracle.constraints, *needs]).solve(solver=cp.HIGHS)
    assert result.objective == pytest.approx(expected, rel=1e-6)
    check_feasible(problem, result.share, None)


@SETTINGS
@given(problems(jobs_max=12, types_max=4, with_pairs=True))
def test_space_sharing_matches_cvxpy(problem: AllocationProblem) -> None:
    result = allocate(problem, "gavel-max-min", {"space_sharing": True})
    expected = Oracle(problem, problem.pairs).level(problem.weight * prop_of(problem) / problem.gpus)
    assert result.objective == pytest.approx(expected, rel=1e-6)
    assert result.status.value == "optimal"
    check_feasible(problem, result.share, result.pair_share)


def progressive_filling(problem: AllocationProblem) -> np.ndarray:
    """Raise all, freeze every job that cannot be raised alone, one test program per job: slow and plain."""
    n = problem.job_count
    rate = problem.weight * prop_of(problem) / problem.gpus
    fixed = np.full(n, np.nan)
    while np.isnan(fixed).any():
        live = np.isnan(fixed)

        def solve(objective: Callable[[Oracle], cp.Expression], floor: np.ndarray, live: np.ndarray = live) -> float:
            oracle = Oracle(problem)
            t = cp.Variable()
            oracle.level_variable = t  # type: ignore[attr-defined]
            rows: list[Any] = [cp.multiply(1.0 / rate, oracle.thr) >= floor]
            rows += [oracle.thr[m] / rate[m] >= t for m in np.flatnonzero(live)]
            model = cp.Problem(cp.Maximize(objective(oracle)), oracle.constraints + rows)
            model.solve(solver=cp.HIGHS)
            return float(np.asarray(model.value))

        level = solve(lambda o: o.level_variable, np.where(live, 0.0, fixed) * (1 - 1e-9))  # type: ignore[attr-defined]
        floor = np.where(live, level, fixed) * (1 - 1e-9)
        for m in np.flatnonzero(live):
            best = solve(lambda o, m=m: o.thr[m] / rate[m], floor)
            if best <= level * (1 + 1e-6):
                fixed[m] = level
        if np.isnan(fixed[live]).all():
            raise AssertionError("no job was frozen")
    return fixed * rate / prop_of(problem)


@settings(SETTINGS, max_examples=12)
@given(problems(jobs_max=6, types_max=3))
def test_water_filling_matches_progressive_filling(problem: AllocationProblem) -> None:
    result = allocate(problem, "gavel-water-filling")
    assert result.normalized is not None
    assert result.status.value == "optimal"
    np.testing.assert_allclose(result.normalized, progressive_filling(problem), rtol=2e-6)
    check_feasible(problem, result.share, None)


@SETTINGS
@given(problems(jobs_max=20, types_max=4))
def test_solvers_agree_on_every_level(problem: AllocationProblem) -> None:
    """The search over prices and the simplex method freeze in different orders and must end alike."""
    first = allocate(problem, "gavel-water-filling")
    second = allocate(problem, "gavel-water-filling", {"solver": "highs"})
    assert first.normalized is not None
    assert second.normalized is not None
    np.testing.assert_allclose(first.normalized, second.normalized, rtol=1e-6)

"""Optima found by prices or by matching: proven by arithmetic outside the search, refused when the search is wrong."""

from __future__ import annotations

import importlib
import itertools

import numpy as np
import pytest

from trainmaster.policies.gavel.objectives import allocate, finish_time
from trainmaster.policies.gavel.objectives.allox import least_total
from trainmaster.policies.gavel.objectives.water_filling import Filling
from trainmaster.policies.gavel.problem import AllocationProblem, Status, make_problem
from trainmaster.policies.gavel.solver.cutting_plane import Replies
from trainmaster.policies.gavel.solver.least_cost import least_cost


def problem(seed: int, jobs: int = 14, gang: int = 2) -> AllocationProblem:
    rng = np.random.default_rng(seed)
    return make_problem(
        rng.uniform(0.1, 10.0, (jobs, 3)), [2.0, 3.0, 1.0], gpus=rng.integers(1, gang + 1, jobs).astype(float),
        steps_remaining=rng.uniform(10.0, 1e4, jobs),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_least_cost_equals_that_of_the_search(seed: int) -> None:
    rng = np.random.default_rng(seed)
    speed, gpus = rng.uniform(0.1, 10.0, (9, 4)), rng.integers(1, 4, 9).astype(float)
    speed[rng.random((9, 4)) < 0.2] = 0.0
    target, price = speed.max(axis=1) * rng.uniform(0.0, 1.0, 9), rng.uniform(0.0, 1.0, 4)
    assert least_cost(speed, gpus, target, price) == pytest.approx(Replies(speed, gpus).answer(target, price))
    assert least_cost(speed, gpus, speed.max(axis=1) * 1.01 + 0.01, price) == np.inf


@pytest.mark.parametrize("factor", [0.5, 0.999, 1.001])
def test_finish_time_fairness_refuses_a_wrong_level(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """A search that stops at another level and says that it has converged."""
    climb = finish_time.climb_to

    def elsewhere(*arguments):
        ascent, share, slope = climb(*arguments)
        return ascent._replace(level=ascent.level * factor, converged=True), share * min(factor, 1 / factor), slope

    assert allocate(problem(1), "gavel-ftf", {"solver": "prices"}).status is Status.OPTIMAL
    monkeypatch.setattr(finish_time, "climb_to", elsewhere)
    assert allocate(problem(1), "gavel-ftf", {"solver": "prices"}).status is Status.UNCERTIFIED


def test_finish_time_fairness_refuses_other_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    climb = finish_time.climb_to

    def other_prices(*arguments):
        ascent, share, slope = climb(*arguments)
        return ascent._replace(tangent=np.roll(ascent.tangent, 1)), share, slope

    monkeypatch.setattr(finish_time, "climb_to", other_prices)
    result = allocate(problem(1), "gavel-ftf", {"solver": "prices"})
    assert (result.status, bool(result.fallback)) == (Status.UNCERTIFIED, True)


@pytest.mark.parametrize("name", ["gavel-water-filling", "gavel-hierarchical"])
@pytest.mark.parametrize("fault", ["targets", "prices"])
def test_water_filling_refuses_a_stage_that_proves_nothing(
    monkeypatch: pytest.MonkeyPatch, name: str, fault: str
) -> None:
    run = Filling.run

    def spoiled(filling: Filling) -> None:
        run(filling)
        if fault == "targets":
            filling.targets = filling.targets * 0.999
        else:
            filling.proofs = [(price * 1.001, speed) for price, speed in filling.proofs]

    assert allocate(problem(2), name, {"solver": "prices"}).status is Status.OPTIMAL
    monkeypatch.setattr(Filling, "run", spoiled)
    assert allocate(problem(2), name, {"solver": "prices"}).status is Status.UNCERTIFIED


@pytest.mark.parametrize("seed", range(10))
def test_the_bound_of_a_matching_holds_and_is_reached(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cost = rng.uniform(0.0, 10.0, (4, 4 + seed % 3))
    totals = {p: cost[np.arange(4), p].sum() for p in itertools.permutations(range(cost.shape[1]), 4)}
    best = min(totals, key=totals.__getitem__)
    for columns in totals:
        assert least_total(cost, np.array(columns)) <= totals[best] + 1e-9
    assert least_total(cost, np.array(best)) == pytest.approx(totals[best])


def test_allox_refuses_a_matching_that_is_not_the_cheapest(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("trainmaster.policies.gavel.objectives.allox")  # the package exports the function
    assign = module.assign

    def swapped(cost):
        column = assign(cost)
        column[[0, 1]] = column[[1, 0]]
        return column

    assert allocate(problem(3, gang=1), "allox", {}).status is Status.OPTIMAL
    monkeypatch.setattr(module, "assign", swapped)
    result = allocate(problem(3, gang=1), "allox", {})
    assert result.status is Status.UNCERTIFIED
    assert result.gap > 1e-8

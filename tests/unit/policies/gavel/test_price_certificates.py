"""Optima found by prices or by matching: proven by arithmetic outside the search, refused when the search is wrong."""

from __future__ import annotations

import dataclasses
import importlib
import itertools

import numpy as np
import pytest

from trainmaster.policies.gavel.objectives import allocate, finish_time
from trainmaster.policies.gavel.objectives.allox import least_total
from trainmaster.policies.gavel.objectives.entity_tree import EntityTree
from trainmaster.policies.gavel.objectives.filling_proof import Stage, proof_gap, shares_gap
from trainmaster.policies.gavel.objectives.water_filling import Filling
from trainmaster.policies.gavel.problem import AllocationProblem, Entity, Status, make_problem
from trainmaster.policies.gavel.solver.cutting_plane import Replies
from trainmaster.policies.gavel.solver.least_cost import least_cost
from trainmaster.policies.gavel.solver.program import CERTIFIED_GAP


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


def teams(seed: int) -> AllocationProblem:
    """`problem` with a fair team, a FIFO team below it, and jobs of no team. Half of the jobs can use one type only,
    so that one type after the other is used up."""
    entities = (Entity("a", 2.0, "fairness", None), Entity("b", 1.0, "fifo", 0))
    plain = problem(seed)
    allowed = np.ones_like(plain.allowed)
    allowed[:7, 1:], allowed[7:, 0] = False, False
    return dataclasses.replace(plain, allowed=allowed, entities=entities, entity_of=np.arange(14) % 3 - 1)


def spoil(fault: str, first: Stage, last: Stage) -> tuple[Stage, Stage]:
    """The first and the last stage with a fault."""
    if fault == "targets":
        return first, last._replace(targets=last.targets * 0.999)
    if fault == "prices":
        return first._replace(price=first.price * 1.001), last
    if fault == "negative":
        return first._replace(price=first.price * [-1.0, 1.0, 1.0]), last
    if fault == "no prices":
        return first._replace(price=first.price * 0.0), last
    if fault == "stuck":
        return first._replace(stuck=~first.stuck), last
    if fault == "speeds":
        return first._replace(speed=first.speed * [1.0, 1.0, 0.0]), last
    if fault == "uneven":  # one job has more, another one less
        return first._replace(targets=first.targets * np.repeat([1.01, 0.99], 7)), last
    return first, last._replace(targets=last.targets * np.nan)


FAULTS = ("targets", "prices", "negative", "no prices", "stuck", "speeds", "uneven", "not a number")


@pytest.mark.parametrize("name", ["gavel-water-filling", "gavel-hierarchical"])
@pytest.mark.parametrize("fault", FAULTS)
def test_water_filling_refuses_a_stage_that_proves_nothing(
    monkeypatch: pytest.MonkeyPatch, name: str, fault: str
) -> None:
    run = Filling.run

    def spoiled(filling: Filling) -> None:
        run(filling)
        assert len(filling.stages) > 1
        filling.stages[0], filling.stages[-1] = spoil(fault, filling.stages[0], filling.stages[-1])

    assert allocate(teams(2), name, {"solver": "prices"}).status is Status.OPTIMAL
    monkeypatch.setattr(Filling, "run", spoiled)
    assert allocate(teams(2), name, {"solver": "prices"}).status is Status.UNCERTIFIED


@pytest.mark.parametrize("factor", [1.001, 0.999, -1.0, np.nan])
def test_water_filling_refuses_shares_that_do_not_fit(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    share = Filling.share
    monkeypatch.setattr(Filling, "share", lambda filling: share(filling) * factor)
    assert allocate(problem(2), "gavel-water-filling", {"solver": "prices"}).status is Status.UNCERTIFIED


@pytest.mark.parametrize("when", ["before", "after"])
def test_water_filling_refuses_a_job_that_stops_rising_too_early(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """The others take what it leaves, so that all GPUs are paid for; but it could have risen with them."""
    stage = Filling._stage

    def last_job_stops(filling: Filling, rising: np.ndarray) -> bool:
        if when == "before":
            filling.full_speed[13] = min(filling.full_speed[13], 0.05 * filling.open_speed[13].max())
        going_on = stage(filling, rising)
        if when == "after":
            filling.full_speed[13] = filling.targets[13]
            filling.stages[-1].stuck[13] = True
        return going_on

    monkeypatch.setattr(Filling, "_stage", last_job_stops)
    assert allocate(teams(2), "gavel-water-filling", {"solver": "prices"}).status is Status.UNCERTIFIED


def two_jobs() -> tuple[AllocationProblem, Stage]:
    """Both at speed 1 on the first of three types, which has one GPU; nobody may use the others. They share it."""
    allowed = np.array([[True, False, False]] * 2)
    problem = make_problem(np.ones((2, 3)), [1.0, 1.0, 1.0], allowed=allowed)
    held = Stage(np.array([1.0, 0.0, 0.0]), allowed.astype(float), np.full(2, 0.5), np.ones(2, dtype=bool))
    return problem, held


def gap_of(problem: AllocationProblem, stage: Stage) -> float:
    return proof_gap(problem, problem.throughput, EntityTree(problem.weight, (), None), np.ones(2), [stage])


def test_every_part_of_the_proof_of_a_filling_counts() -> None:
    problem, held = two_jobs()
    assert gap_of(problem, held) == 0.0
    wrong = {
        "GPUs that are not all paid for": held._replace(price=np.array([0.5, 0.5, 0.0])),
        "prices of more than all GPUs": held._replace(price=np.array([1.0, 0.5, 0.0])),
        "a price below 0": held._replace(price=np.array([1.0, 0.5, -0.5])),
        "a level a little too low": held._replace(targets=np.full(2, 0.5 - 1e-6)),
        "different levels": held._replace(targets=np.array([0.6, 0.4])),
        "nobody is held, and nobody is at full speed": held._replace(price=np.zeros(3), stuck=np.zeros(2, dtype=bool)),
        "jobs that stop without a price": held._replace(price=np.zeros(3)),
    }
    for fault, stage in wrong.items():
        assert gap_of(problem, stage) > CERTIFIED_GAP, fault


def test_shares_below_0_or_where_a_job_cannot_run_are_no_shares() -> None:
    problem, held = two_jobs()
    share = np.array([[0.5, 0.0, 0.0]] * 2)
    got = np.full(2, 0.5)
    assert shares_gap(problem, share, got, [held]) == 0.0
    assert shares_gap(problem, share + [[0.0, 0.1, 0.0]] * 2, got, [held]) == np.inf
    assert shares_gap(problem, share * [[-1.0], [1.0]], got, [held]) == np.inf


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
    monkeypatch.setattr(module, "assign", lambda cost: np.zeros(len(cost), np.int64))  # all in one place
    assert allocate(make_problem(np.ones((2, 1)), [2.0]), "allox", {}).status is Status.UNCERTIFIED
    monkeypatch.setattr(module, "assign", swapped)
    result = allocate(problem(3, gang=1), "allox", {})
    assert result.status is Status.UNCERTIFIED
    assert result.gap > 1e-8

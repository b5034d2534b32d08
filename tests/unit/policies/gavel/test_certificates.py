"""What a solver claims is believed only as far as our own arithmetic proves it: a feasible point and a bound."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from trainmaster.policies.gavel.objectives import allocate
from trainmaster.policies.gavel.objectives.entity_tree import EntityTree
from trainmaster.policies.gavel.problem import AllocationProblem, Pairs, Status, make_problem
from trainmaster.policies.gavel.solver import highs
from trainmaster.policies.gavel.solver.program import (
    CERTIFIED_GAP,
    LinearProgram,
    Solution,
    certify,
    proven_gap,
    repair,
)

OBJECTIVES = ("gavel-max-min", "gavel-makespan", "gavel-ftf", "gavel-throughput", "gavel-cost", "gavel-water-filling")


def random_problem(seed: int, jobs: int = 12, types: int = 3) -> AllocationProblem:
    rng = np.random.default_rng(seed)
    speeds = rng.uniform(0.1, 10.0, (jobs, types))
    gpus = rng.choice([1.0, 2.0], jobs)
    members = [(a, b) for a in range(jobs) for b in range(a + 1, jobs) if gpus[a] == gpus[b]]
    rows = np.array(members, np.int64)
    together = np.stack([speeds[rows[:, 0]], speeds[rows[:, 1]]], axis=2) * rng.uniform(0.3, 0.9, (len(rows), types, 2))
    steps = rng.uniform(10.0, 1e4, jobs)
    pairs = Pairs(rows, np.ascontiguousarray(together))
    return make_problem(speeds, rng.integers(1, 6, types).astype(float), gpus=gpus, steps_remaining=steps, pairs=pairs)


def solve(problem: AllocationProblem, objective: str) -> tuple[Status, float]:
    result = allocate(problem, objective, {"space_sharing": True, "solver": "highs"})
    return result.status, result.objective


def test_a_loose_tolerance_is_never_called_optimal_unless_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = {(seed, name): solve(random_problem(seed), name) for seed in range(8) for name in OBJECTIVES}
    assert {status for status, _ in exact.values()} == {Status.OPTIMAL}
    monkeypatch.setattr(highs, "ATTEMPTS", ((1e-2, "choose"),))
    found_out = 0
    for (seed, name), (_, best) in exact.items():
        status, objective = solve(random_problem(seed), name)
        if status is Status.OPTIMAL:
            assert objective == pytest.approx(best, rel=10 * CERTIFIED_GAP), (seed, name)
        found_out += status is Status.UNCERTIFIED
    assert found_out > 0, "the tolerance did no harm: this test shows nothing"


def test_a_solve_that_cannot_be_certified_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = {name: solve(random_problem(3), name) for name in OBJECTIVES}
    monkeypatch.setattr(highs, "ATTEMPTS", ((1e-2, "choose"), *highs.ATTEMPTS))
    for name, (_, best) in exact.items():
        status, objective = solve(random_problem(3), name)
        assert status is Status.OPTIMAL
        assert objective == pytest.approx(best, rel=10 * CERTIFIED_GAP)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_solver_that_stops_short_of_the_optimum_is_found_out(monkeypatch: pytest.MonkeyPatch, objective: str) -> None:
    """As with OASiS, where presolve cut the optimum off and the status said `optimal`."""
    shares = highs._Columns.shares

    def half_of_them(columns: highs._Columns) -> tuple[np.ndarray, np.ndarray | None]:
        alone, together = shares(columns)
        return 0.5 * alone, None if together is None else 0.5 * together

    monkeypatch.setattr(highs._Columns, "shares", half_of_them)
    status, _ = solve(random_problem(5), objective)
    assert status is Status.UNCERTIFIED


def certified_program(level: bool) -> tuple[LinearProgram, Solution]:
    problem = random_problem(6)
    zeros = np.zeros(problem.job_count)
    program = LinearProgram(
        problem.throughput, problem.usable, problem.gpus, problem.counts, zeros + 1.0 if level else zeros, zeros,
        gain=None if level else problem.throughput,
    )  # fmt: skip
    return program, highs.solve_by_highs(program)


def certified_again(program: LinearProgram, solution: Solution) -> bool:
    return certify(program, solution.share, None, solution.multiplier, solution.price, 0, "test").is_certified


COUNTS = float(random_problem(6).counts.sum())
FAULTS: dict[str, Callable[[Solution], dict[str, np.ndarray]]] = {
    "duals of nothing": lambda s: {"multiplier": s.multiplier * 0.0, "price": s.price * 0.0},
    "prices alone": lambda s: {"multiplier": s.multiplier * 0.0, "price": s.price * 0.0 + s.value / COUNTS},
    "other prices": lambda s: {"price": np.roll(s.price, 1)},
    "prices that are no numbers": lambda s: {"price": s.price * np.nan},
    "multipliers that are no numbers": lambda s: {"multiplier": s.multiplier + np.nan},
    "infinite prices": lambda s: {"price": s.price + np.inf},
    "shares that are no numbers": lambda s: {"share": s.share * np.nan},
    "shares of others": lambda s: {"share": np.roll(s.share, 1, axis=0)},
    "no shares": lambda s: {"share": s.share * 0.0},
}


@pytest.mark.parametrize("level", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_is_wrong_with_a_solution_it_is_not_certified(level: bool, fault: str) -> None:
    program, good = certified_program(level)
    assert certified_again(program, good)
    assert not certified_again(program, dataclasses.replace(good, **FAULTS[fault](good)))


def test_a_value_beyond_its_bound_proves_neither() -> None:
    assert proven_gap(1.0, 1.0) == 0.0
    assert proven_gap(2.0, 1.0) == 0.5
    assert proven_gap(1.0, np.inf) == proven_gap(np.nan, 1.0) == proven_gap(1.0, np.nan) == np.inf


def test_shares_of_pairs_where_they_cannot_run_count_nothing() -> None:
    problem = random_problem(6)
    assert problem.pairs is not None
    allowed = problem.usable.copy()
    allowed[:, 0] = False
    zeros = np.zeros(problem.job_count)
    program = LinearProgram(
        problem.throughput, allowed, problem.gpus, problem.counts, zeros + 1.0, zeros, pairs=problem.pairs
    )
    everywhere = np.full((len(problem.pairs), 3), 0.01)
    _, together = repair(program, np.zeros_like(problem.throughput), everywhere)
    assert together is not None
    assert not together[:, 0].any() and together[:, 1:].all()


@pytest.mark.parametrize("options", [{"space_sharing": True}, {"solver": "highs"}])
def test_water_filling_refuses_jobs_that_stop_rising_too_early(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, bool | str]
) -> None:
    """Whoever could rise when the first jobs are stuck is frozen with them; every single program is solved well."""
    allowed = np.array([[True, False, False]] * 6 + [[False, True, True]] * 6)
    problem = dataclasses.replace(random_problem(7), allowed=allowed)
    assert allocate(problem, "gavel-water-filling", options).status is Status.OPTIMAL
    monkeypatch.setattr("trainmaster.policies.gavel.objectives.water_filling_pairs.BINDING", -1.0)
    assert allocate(problem, "gavel-water-filling", options).status is Status.UNCERTIFIED


@pytest.mark.parametrize("options", [{"space_sharing": True}, {"solver": "highs"}, {"solver": "prices"}])
def test_water_filling_refuses_another_division_than_that_of_the_tree(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, bool | str]
) -> None:
    targets = EntityTree.targets

    def other_weights(tree: EntityTree, room: np.ndarray):
        other = copy.copy(tree)
        other.weight = tree.weight * np.linspace(1.0, 1.1, len(tree.weight))
        return targets(other, room)

    monkeypatch.setattr(EntityTree, "targets", other_weights)
    assert allocate(random_problem(7), "gavel-water-filling", options).status is Status.UNCERTIFIED


def test_water_filling_of_a_blind_policy_with_pairs_is_certified() -> None:
    """Its targets are those of the speeds it sees, not of the true ones."""
    options = {"space_sharing": True, "aware": False}
    for name in ("gavel-water-filling", "gavel-hierarchical"):
        assert allocate(random_problem(0), name, options).status is Status.OPTIMAL


def test_pairs_on_a_type_without_gpus_promise_nothing() -> None:
    problem = random_problem(1)
    pairs = problem.pairs
    assert pairs is not None
    fast = pairs.throughput.copy()
    fast[:, 2] *= 1000.0
    gone = make_problem(
        problem.throughput, [2.0, 3.0, 0.0], gpus=problem.gpus, steps_remaining=problem.steps_remaining,
        pairs=Pairs(pairs.jobs, fast),
    )  # fmt: skip
    for name in OBJECTIVES:
        assert solve(gone, name)[0] is Status.OPTIMAL

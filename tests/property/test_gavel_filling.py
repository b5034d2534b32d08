"""Water filling and hierarchical fairness against progressive filling written from the definition.

The oracle knows nothing of prices: it raises all jobs along the tree's current rates by a linear program
(HiGHS through scipy), asks by further programs which jobs can be raised at all, freezes the others and goes
on.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import linprog

from trainmaster.policies.gavel.objectives import allocate
from trainmaster.policies.gavel.problem import AllocationProblem, Entity, make_problem

RAISABLE = 1e-6  # of a job's own unit: more than the solver's tolerance, less than any level of interest
SLACKS = (1e-11, 1e-10, 1e-9)  # tried in turn: targets already reached may be infeasible by a rounding


def random_problem(
    rng: np.random.Generator, jobs: int, types: int, entities: int = 0, fifo: float = 0.5, nested: bool = True
) -> AllocationProblem:
    """Gangs, weights, useless and forbidden types, ties, spare and scarce clusters; a random tree of
    entities."""
    throughput = (
        rng.choice([1.0, 2.0, 4.0], (jobs, types)) if rng.random() < 0.3 else rng.uniform(0.3, 10.0, (jobs, types))
    )
    throughput[rng.random((jobs, types)) < 0.25] = 0.0
    keep = rng.integers(0, types, jobs)
    throughput[np.arange(jobs), keep] = np.maximum(throughput[np.arange(jobs), keep], 0.5)
    tree = []
    for i in range(entities):
        parent = int(rng.integers(0, i)) if nested and i and rng.random() < 0.5 else None
        tree.append(
            Entity(
                str(i),
                float(rng.choice([1.0, 2.0, 3.0])),
                "fifo" if rng.random() < fifo else "fairness",
                parent,
            )
        )
    gpus = rng.choice([1.0, 2.0, 4.0], jobs, p=[0.6, 0.3, 0.1])
    load = rng.choice([0.5, 1.5, 4.0])
    counts = np.maximum(1.0, np.round(rng.dirichlet(np.ones(types)) * gpus.sum() / load))
    return make_problem(
        throughput,
        counts,
        gpus=gpus,
        weight=rng.choice([1.0, 2.0, 5.0], jobs),
        entities=tuple(tree),
        entity_of=rng.integers(-1, entities, jobs) if entities else None,
    )


class Oracle:
    """Variables: shares x (n x J), then a step d, then raises s (n). Units: normalised throughput times
    gang."""

    def __init__(self, problem: AllocationProblem, hierarchical: bool) -> None:
        self.problem = problem
        n, types = problem.throughput.shape
        usable = np.where(problem.usable, problem.throughput, 0.0)
        prop = usable @ problem.counts / problem.counts.sum()
        self.unit = prop / problem.gpus
        self.per_unit = usable / self.unit[:, None]
        self.entities = problem.entities if hierarchical else ()
        home = problem.entity_of if hierarchical and problem.entity_of is not None else np.full(n, -1)
        self.jobs_in = {e: [m for m in range(n) if home[m] == e] for e in range(-1, len(self.entities))}
        self.below = {
            e: [i for i, child in enumerate(self.entities) if (child.parent if child.parent is not None else -1) == e]
            for e in range(-1, len(self.entities))
        }
        rows = np.repeat(np.arange(n), types)
        cols = np.arange(n * types)
        self.speed = sparse.csr_matrix((self.per_unit.ravel(), (rows, cols)), shape=(n, n * types))
        time = sparse.csr_matrix((np.ones(n * types), (rows, cols)), shape=(n, n * types))
        kind = np.tile(np.arange(types), n)
        used = sparse.csr_matrix(
            (np.repeat(problem.gpus, types) / problem.counts[kind], (kind, cols)), shape=(types, n * types)
        )
        self.limits = sparse.hstack([sparse.vstack([time, used]), sparse.csr_matrix((n + types, 1 + n))], format="csr")

    def alive(self, node: int, frozen: np.ndarray) -> bool:
        return any(not frozen[m] for m in self.jobs_in[node]) or any(self.alive(i, frozen) for i in self.below[node])

    def rates(self, frozen: np.ndarray) -> np.ndarray:
        """How fast each job rises per unit of level, from the root down."""
        rate = np.zeros(len(frozen))

        def spread(node: int, amount: float | None) -> None:
            jobs = [(self.problem.weight[m], ("job", m)) for m in self.jobs_in[node] if not frozen[m]]
            alive = [i for i in self.below[node] if self.alive(i, frozen)]
            children = jobs + [(self.entities[i].weight, ("node", i)) for i in alive]
            if node >= 0 and self.entities[node].policy == "fifo":
                children = children[:1]
            total = sum(weight for weight, _ in children)
            for weight, (kind, child) in children:
                if amount is None:
                    part = weight  # the root
                elif node >= 0 and self.entities[node].policy == "fifo":
                    part = amount
                else:
                    part = amount * weight / total
                if kind == "job":
                    rate[child] = part
                else:
                    spread(child, part)

        spread(-1, None)
        return rate

    def program(self, base: np.ndarray, rate: np.ndarray, cost: np.ndarray, ceiling: np.ndarray) -> np.ndarray:
        """max cost . (d, s)  s.t. speed_m >= base_m + rate_m d + s_m; 0 <= s <= ceiling. Returns (d, s)."""
        n = len(base)
        shares = self.speed.shape[1]  # pyright: ignore[reportOptionalSubscript]
        levels = sparse.hstack([-self.speed, sparse.csr_matrix(rate[:, None]), sparse.eye(n)], format="csr")
        for slack in SLACKS:
            found = linprog(
                np.concatenate([np.zeros(shares), -cost]),
                A_ub=sparse.vstack([levels, self.limits], format="csr"),
                b_ub=np.concatenate([-base * (1.0 - slack), np.ones(self.limits.shape[0])]),  # pyright: ignore[reportOptionalSubscript]
                bounds=[(0, None)] * (shares + 1) + [(0, float(c)) for c in ceiling],
                method="highs-ds",
                options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
            )
            if found.status == 0:
                return found.x[shares:]
        raise AssertionError("the targets reached are infeasible")

    def levels(self) -> np.ndarray:
        """The normalised throughput of every job."""
        n = self.problem.job_count
        frozen, base = np.zeros(n, dtype=bool), np.zeros(n)
        while not frozen.all():
            rate = self.rates(frozen)
            only_step = np.concatenate([[1.0], np.zeros(n)])
            step = self.program(base, rate, only_step, np.zeros(n))[0]
            base = base + rate * step
            frozen = frozen | ~self.raisable(base, ~frozen)
        return base / self.problem.gpus

    def raisable(self, floor: np.ndarray, asked: np.ndarray) -> np.ndarray:
        n = len(floor)
        scale = np.maximum(floor, 1e-3 * max(float(floor.max()), 1.0))
        raised = self.program(
            floor, np.zeros(n), np.concatenate([[0.0], 1.0 / scale]), np.where(asked, 0.01 * scale, 0.0)
        )
        can = asked & (raised[1:] > RAISABLE * scale)
        for m in np.flatnonzero(asked & ~can):
            only = np.zeros(n + 1)
            only[1 + m] = 1.0
            ceiling = np.zeros(n)
            ceiling[m] = 0.01 * scale[m]
            can[m] = self.program(floor, np.zeros(n), only, ceiling)[1 + m] > RAISABLE * scale[m]
        return can


def check(problem: AllocationProblem, policy: str, rtol: float = 2e-6) -> None:
    result = allocate(problem, policy)
    assert result.status.value == "optimal", result.gap
    assert result.normalized is not None
    assert np.all(result.share >= 0.0)
    assert np.all(result.share.sum(axis=1) <= 1.0 + 1e-9)
    assert np.all(problem.gpus @ result.share <= problem.counts * (1.0 + 1e-9))
    expected = Oracle(problem, policy == "gavel-hierarchical").levels()
    np.testing.assert_allclose(result.normalized, expected, rtol=rtol, atol=1e-7 * expected.max())


@pytest.mark.parametrize("seed", range(12))
def test_water_filling(seed: int) -> None:
    rng = np.random.Generator(np.random.PCG64(seed))
    check(random_problem(rng, int(rng.integers(1, 41)), 1 + seed % 5), "gavel-water-filling")


@pytest.mark.parametrize("seed", range(8))
def test_fair_entities(seed: int) -> None:
    rng = np.random.Generator(np.random.PCG64(100 + seed))
    problem = random_problem(rng, int(rng.integers(2, 41)), 1 + seed % 5, 4, fifo=0.0)
    check(problem, "gavel-hierarchical")


@pytest.mark.parametrize("seed", range(12))
def test_nested_entities_with_fifo(seed: int) -> None:
    rng = np.random.Generator(np.random.PCG64(200 + seed))
    check(random_problem(rng, int(rng.integers(2, 41)), 1 + seed % 5, 5), "gavel-hierarchical")


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [300])
def test_water_filling_of_hundreds(jobs: int) -> None:
    check(random_problem(np.random.Generator(np.random.PCG64(jobs)), jobs, 3), "gavel-water-filling")


@pytest.mark.slow
def test_a_larger_nest() -> None:
    rng = np.random.Generator(np.random.PCG64(7))
    check(random_problem(rng, 80, 4, 8), "gavel-hierarchical", rtol=1e-5)


def test_order_of_a_fifo_entity() -> None:
    """One GPU per job and one GPU: the first job takes it all, and the second what the first cannot use."""
    entity = (Entity("team", 1.0, "fifo"),)
    home = np.zeros(2, dtype=np.int64)
    one = make_problem([[2.0], [3.0]], [1.0], entities=entity, entity_of=home)
    np.testing.assert_allclose(allocate(one, "gavel-hierarchical").share, [[1.0], [0.0]], atol=1e-12)
    two = dataclasses.replace(one, counts=np.array([2.0]))
    np.testing.assert_allclose(allocate(two, "gavel-hierarchical").share, [[1.0], [1.0]], atol=1e-12)


def test_jobs_that_reach_full_speed_on_what_is_left() -> None:
    """Jobs stop at the speed of the types that are left; that takes no stage of its own, however many
    there are."""
    rng = np.random.Generator(np.random.PCG64(3))
    jobs = 60
    slow = rng.uniform(0.5, 1.0, jobs)
    problem = make_problem(np.stack([4.0 * slow, slow], axis=1), [3.0, 300.0])
    result = allocate(problem, "gavel-water-filling")
    assert result.status.value == "optimal"
    assert result.solves <= 3
    check(problem, "gavel-water-filling")

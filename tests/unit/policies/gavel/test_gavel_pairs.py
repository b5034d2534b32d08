"""Pairs in Gavel's policies: which are offered, which are chosen, how a round brings them about."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.engine.verify import verify
from trainmaster.model.allocation import Allocation, Part
from trainmaster.model.job import JobSpec
from trainmaster.model.plan_builder import HALF_MILLI
from trainmaster.model.policy_state import PolicyState
from trainmaster.model.snapshot import Snapshot
from trainmaster.policies.gavel.objectives import allocate
from trainmaster.policies.gavel.pair_state import PairState
from trainmaster.policies.gavel.pairing import possible_pairs
from trainmaster.policies.gavel.problem import Pairs, make_problem
from trainmaster.policies.gavel.round_state import rows_of
from trainmaster.policies.gavel.rounds import Rounds
from trainmaster.policies.registry import create
from trainmaster.testing.builders import Held, a_job, a_view
from trainmaster.testing.policy_contract import by_job, check_policy
from trainmaster.testing.recount import recount

KEPT = {"big": 0.55, "mid": 0.7, "small": 0.9}
"""What a job of a model keeps of its speed beside another, whatever that is, in the made-up world below."""


def made_up(a: JobSpec, b: JobSpec, types: Sequence[str]) -> np.ndarray | None:
    if not a.model or not b.model:
        return None
    rows = [[s.steps_per_s.get(t, 0.0) * KEPT[s.model] for s in (a, b)] for t in types]
    return np.array(rows) * np.array([[1.0], [0.8]])[: len(types)]  # the second type: worse to share


def kept(a: JobSpec, b: JobSpec, types: Sequence[str]) -> np.ndarray | None:
    speeds = made_up(a, b, types)
    return None if speeds is None else speeds / np.array([[s.steps_per_s[t] for s in (a, b)] for t in types])


def jobs_of(models: Sequence[str], gpus: Sequence[int] | None = None) -> list[JobSpec]:
    sizes = gpus or [1] * len(models)
    return [
        a_job(f"{m}-{k}", model=m, gpus=sizes[k], seconds=1e5, speeds={"k80": 1.0 + k % 3, "v100": 4.0 + k % 2})
        for k, m in enumerate(models)
    ]


def shared_view(models: Sequence[str], cluster: str = "v100=1,k80=1", **rest) -> Snapshot:
    jobs = rest.pop("jobs", None) or jobs_of(models, rest.pop("gpus", None))
    return a_view(jobs, cluster, pair_source=kept, round_ms=360_000, **rest)


def test_only_pairs_that_beat_turns_are_offered_with_equal_gangs() -> None:
    view = shared_view(["big", "mid", "small", "mid"], gpus=[1, 1, 1, 2], cluster="v100=4,k80=4")
    speeds = view.jobs.throughput
    pairs, known = possible_pairs(view, np.arange(4), speeds)
    assert known
    assert pairs is not None
    offered = {tuple(sorted(p)): t for p, t in zip(pairs.jobs.tolist(), pairs.throughput, strict=True)}
    expected = {}
    for a, b in combinations(range(4), 2):
        speed = made_up(view.jobs.spec(a), view.jobs.spec(b), view.cluster.types)
        assert speed is not None
        gain = speed[:, 0] / speeds[a] + speed[:, 1] / speeds[b]
        if view.jobs.workers_ask[a] == view.jobs.workers_ask[b] and (gain > 1).any():
            expected[a, b] = np.where((gain > 1)[:, None], speed, 0.0)
    assert offered.keys() == expected.keys()
    for key, speed in expected.items():
        assert np.allclose(offered[key], speed)


def test_pairs_without_gain_would_not_have_helped() -> None:
    """The optimum over the pairs offered is the optimum over all pairs (the claim of `GAIN_MIN`)."""
    rng = np.random.Generator(np.random.PCG64(5))
    for _ in range(10):
        n = int(rng.integers(2, 6))
        alone = rng.uniform(1, 10, (n, 2))
        both = np.array(list(combinations(range(n), 2)), np.int64)
        kept = rng.uniform(0.1, 1.0, (len(both), 2, 2))
        speed = np.stack([alone[both[:, s]] * kept[:, :, s] for s in (0, 1)], axis=2)
        worth = np.where((kept.sum(axis=2) > 1)[:, :, None], speed, 0.0)
        problem = make_problem(alone, [1.0, 2.0], pairs=Pairs(both, speed))
        fewer = replace(problem, pairs=Pairs(both, worth))
        for policy in ("gavel-max-min", "gavel-throughput", "gavel-makespan"):
            full = allocate(problem, policy, {"space_sharing": True}).objective
            assert allocate(fewer, policy, {"space_sharing": True}).objective == pytest.approx(full, rel=1e-6)


def test_nothing_known_is_said_once_and_each_runs_alone() -> None:
    view = replace(shared_view(["big", "mid"]), pair_source=None)
    plan = create("gavel-max-min:space_sharing=true").decide(view)
    assert len(plan.notes) == 1
    assert "known" in plan.notes[0]
    assert all(given and given.share_milli == 1000 for given in plan.changes.values())


@pytest.mark.parametrize("options", ["", ",mechanism=original", ",aware=false", ",aware=false,mechanism=original"])
def test_a_round_runs_pairs_when_jobs_are_many(options: str) -> None:
    placement = "count" if "original" in options else "pack"
    view = shared_view(["small"] * 6, placement=placement)
    plan = create("gavel-max-min:space_sharing=true" + options).decide(view)
    verify(view, plan)
    assert not recount(view, plan)
    together: dict[object, list[int]] = {}
    for row, given_ in plan.changes.items():
        assert given_ is not None
        together.setdefault((given_.accelerator, given_.parts), []).append(row)
    assert sorted(len(rows) for rows in together.values()) == [2, 2]
    assert all(given_.share_milli == HALF_MILLI for given_ in plan.changes.values() if given_)
    PolicyState.from_json(plan.memo.to_json())


def test_pairs_are_taken_apart_when_there_is_room() -> None:
    view = shared_view(["small"] * 3, cluster="v100=8,k80=8")
    plan = create("gavel-max-min:space_sharing=true").decide(view)
    assert all(given_ and given_.share_milli == 1000 for given_ in plan.changes.values())
    assert len(plan.changes) == 3


def _half(device: int, kind: int, node: int) -> Held:
    return Held(allocation=Allocation(kind, (Part(node, 1, 0, (device,)),), HALF_MILLI))


def test_two_that_share_without_a_book_do_not_both_stay() -> None:
    """As after a change of policy: the plan must not leave two jobs on one GPU that it counts as two."""
    jobs = jobs_of(["big", "big"])
    first = a_view(jobs, "v100=2", running={"big-0": _half(0, 0, 0), "big-1": _half(0, 0, 0)})
    plan = create("gavel-max-min").decide(first)
    verify(first, plan)
    after = [plan.changes.get(row, first.jobs.allocation(row)) for row in range(2)]
    assert all(given_ is not None and given_.share_milli == 1000 for given_ in after)
    assert after[0] != after[1]


def test_a_survivor_inherits_the_pairs_share() -> None:
    view = shared_view(["small", "mid"])
    book = PairState(np.array([[0, 1]]), np.ones((1, 2, 2)), np.array([[0.0, 0.7]]), np.array([[5.0, 9.0]]))
    values: dict = {}
    book.write(view, values)
    left = shared_view([], jobs=[view.jobs.spec(1)])
    share, received_s = np.zeros((1, 2)), np.ones((1, 2))
    assert len(PairState.recall(left, values, share, received_s)) == 0
    assert share.tolist() == [[0.0, 0.7]]
    assert received_s.tolist() == [[6.0, 10.0]]
    same = PairState.recall(view, values, np.zeros((2, 2)), np.zeros((2, 2)))
    assert same.rows.tolist() == [[0, 1]]
    assert same.share.tolist() == book.share.tolist()


@given(st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_a_job_is_never_chosen_twice_nor_a_type_overdrawn(seed: int) -> None:
    rng = np.random.Generator(np.random.PCG64(seed))
    n, types = int(rng.integers(2, 9)), 2
    free = rng.integers(1, 5, types)
    gpus = rng.choice([1, 2], n)
    jobs = [a_job(f"j{m}", gpus=int(gpus[m]), seconds=1e5, speeds={"k80": 1.0, "v100": 4.0}) for m in range(n)]
    view = a_view(jobs, f"k80={free[0]}x4,v100={free[1]}x4")
    both = np.array([p for p in combinations(range(n), 2) if gpus[p[0]] == gpus[p[1]]], np.int64).reshape(-1, 2)
    both = both[rng.random(len(both)) < 0.7]
    share = rng.random((len(both), types)) * (rng.random((len(both), types)) < 0.6)
    rounds, which = Rounds(False, False, 0, 0.0, 0), rows_of(view)
    rounds.worker_s = np.ones(types)
    alone, zeros = rng.random((n, types)), np.zeros((n, types))
    rounds.remember(alone, np.ones((n, types)), zeros, np.ones(n), zeros)
    rounds.set_pairs(both, np.ones((len(both), types, 2)), share, np.ones_like(share))
    rounds.survey(view.jobs.columns, which, view.now_ms)
    rounds.choose(view.jobs.columns, which, view.now_ms, False, view.nodes, view.free_capacity, int(view.placement))
    kind, pair_of = np.asarray(rounds.gpu_type_of)[:n], np.asarray(rounds.pair_of)[:n]
    used = np.zeros(types)
    for pair in np.unique(pair_of[pair_of >= 0]):
        a, b = both[pair]
        assert pair_of[a] == pair_of[b] == pair
        assert kind[a] == kind[b]
        assert share[pair, kind[a]] > 0
        used[kind[a]] += gpus[a]
    for m in np.flatnonzero((kind >= 0) & (pair_of < 0)):
        used[kind[m]] += gpus[m]
    assert (used <= view.free_gpus_by_type).all()


@pytest.mark.parametrize("options", ["", ",mechanism=original", ",aware=false"])
def test_decisions_do_not_depend_on_the_order_of_rows_of_the_pairs(options: str) -> None:
    policy = create("gavel-max-min:space_sharing=true" + options)
    jobs = jobs_of(["small", "mid", "small", "big", "mid", "small"])
    one, other = shared_view([], jobs=jobs), shared_view([], jobs=jobs, row_order=[3, 0, 5, 1, 4, 2])
    first, second = by_job(one, policy.decide(one)), by_job(other, policy.decide(other))
    assert first["values"] == second["values"]
    assert first["changes"] == second["changes"]


@pytest.mark.parametrize("mechanism", ["backfill", "original"])
def test_a_pair_that_runs_stays_as_it_is_in_the_next_round(mechanism: str) -> None:
    policy = create(f"gavel-max-min:space_sharing=true,mechanism={mechanism}")
    view = shared_view(["small"] * 2, "v100=1")
    plan = policy.decide(view)
    assert [given_ and given_.share_milli for given_ in plan.changes.values()] == [HALF_MILLI] * 2
    running = {view.jobs.id(row): Held(allocation=given_) for row, given_ in plan.changes.items()}
    later = shared_view(["small"] * 2, "v100=1", running=running, memo=plan.memo, now_s=400.0)
    again = policy.decide(later)
    assert again.changes == {}
    assert again.wake_at_ms is not None


def test_a_job_comes_to_the_one_that_runs() -> None:
    alone = Held(allocation=Allocation(0, (Part(0, 1, 0, (0,)),)))
    view = shared_view(["small"] * 2, "v100=1", running={"small-1": alone})
    plan = create("gavel-max-min:space_sharing=true").decide(view)
    verify(view, plan)
    assert plan.changes == {row: Allocation(0, (Part(0, 1, 0, (0,)),), HALF_MILLI) for row in (0, 1)}


@pytest.mark.parametrize(
    "name",
    ["gavel-max-min:space_sharing=true", "gavel-max-min:aware=false,space_sharing=true,mechanism=original",
     "gavel-ftf:space_sharing=true"],
)  # fmt: skip
def test_the_contract_holds_with_sharing(name: str) -> None:
    # The original mechanism, kept for comparison, promises nobody that it will not starve.
    check_policy(create(name), seeds=range(12), fair="original" not in name, other_process=False)

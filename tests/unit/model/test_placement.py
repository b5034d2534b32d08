"""Placement strategies: each on hand-made cases, then all of them against brute force."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.model.errors import InputError
from trainmaster.model.job import JobSpec
from trainmaster.model.placement import STRATEGY_NAMES, Strategy, parse_strategy, strategy_name
from trainmaster.model.plan_builder import PlanBuilder
from trainmaster.model.reasons import Why
from trainmaster.testing.builders import Held, a_cluster, a_job, a_node, a_view, row_of


def _placed(job: JobSpec, nodes: list, strategy: str, fill: dict[str, int] | None = None) -> dict[int, int] | None:
    """Devices by node that a job gets, with `fill` GPUs of some nodes in use."""
    others = [a_job(f"other-{name}", gpus=n, types=(name,)) for name, n in (fill or {}).items()]
    view = a_view([*others, job], nodes, placement=strategy, running=[other.id for other in others])
    builder = view.draft()
    row = row_of(view, job.id)
    if not builder.place(row):
        return None
    allocation = builder.changes[row]
    assert allocation is not None
    return {part.node: len(part.devices) for part in allocation.parts if part.devices}


def _nodes(*gpus: int, racks: str = "") -> list:
    return [a_node(f"n{i}", n, rack=racks[i] if racks else "") for i, n in enumerate(gpus)]


def test_names_go_both_ways() -> None:
    assert [strategy_name(parse_strategy(name)) for name in STRATEGY_NAMES] == list(STRATEGY_NAMES)
    with pytest.raises(InputError, match="pack, spread, first-fit, best-fit, count"):
        parse_strategy("tight")


def test_pack_takes_the_tightest_node_that_suffices() -> None:
    assert _placed(a_job("a", gpus=2), _nodes(8, 2, 4), "pack") == {1: 2}


def test_pack_uses_the_fewest_nodes() -> None:
    assert _placed(a_job("a", gpus=6), _nodes(2, 4, 2, 4), "pack") == {1: 4, 3: 2}


def test_pack_stays_in_one_rack_if_it_can() -> None:
    assert _placed(a_job("a", gpus=6), _nodes(4, 2, 4, 4, racks="abab"), "pack") == {1: 2, 3: 4}


def test_spread_goes_round_the_emptiest_nodes() -> None:
    assert _placed(a_job("a", gpus=5), _nodes(4, 4, 2), "spread") == {0: 2, 1: 2, 2: 1}


def test_first_fit_fills_in_order() -> None:
    assert _placed(a_job("a", gpus=5), _nodes(1, 4, 4), "first-fit") == {0: 1, 1: 4}


def test_best_fit_breaks_ties_by_what_is_left_of_cpu() -> None:
    nodes = [a_node("n0", 4, cpu=64), a_node("n1", 4, cpu=16)]
    assert _placed(a_job("a", gpus=2, cpu=1), nodes, "best-fit") == {1: 2}


def test_count_splits_workers_over_nodes() -> None:
    assert _placed(a_job("a", gpus=8, gpus_each=8), _nodes(3, 3, 3), "count") == {0: 3, 1: 3, 2: 2}
    assert _placed(a_job("a", gpus=8, gpus_each=8), _nodes(3, 3, 3), "pack") is None


def test_wide_workers_do_not_straddle_nodes() -> None:
    assert _placed(a_job("a", gpus=8, gpus_each=4), _nodes(6, 2, 4), "pack") == {0: 4, 2: 4}
    assert _placed(a_job("a", gpus=8, gpus_each=4), _nodes(6, 2, 2), "pack") is None


def test_a_gang_never_mixes_types_and_takes_its_fastest_with_room() -> None:
    nodes = [a_node("k", 2, "k80"), a_node("v", 2, "v100")]
    speeds = {"k80": 1.0, "v100": 3.0}
    assert _placed(a_job("a", gpus=2, speeds=speeds), nodes, "pack") == {1: 2}
    assert _placed(a_job("a", gpus=2, speeds=speeds), nodes, "pack", fill={"v100": 1}) == {0: 2}
    assert _placed(a_job("a", gpus=3, speeds=speeds), nodes, "pack") is None


def test_servers_sit_beside_workers_first() -> None:
    job = a_job("a", gpus=2, servers=(3, 3), cpu=1, server_cpu=2)
    view = a_view([job], [a_node("n0", 2, cpu=6), a_node("n1", 4, cpu=64)], placement="pack")
    builder = view.draft()
    assert builder.place(0)
    allocation = builder.changes[0]
    assert allocation is not None
    assert [(part.node, part.workers, part.servers) for part in allocation.parts] == [(0, 2, 2), (1, 0, 1)]


def test_fractions_share_the_fullest_device_with_room() -> None:
    jobs = [a_job("a", gpus=0.5), a_job("b", gpus=0.25), a_job("c", gpus=0.5)]
    view = a_view(jobs, "v100=2x2")
    builder = view.draft()
    assert [builder.place(row) for row in range(3)] == [True, True, True]
    assert [builder.changes[row].parts[0].devices for row in range(3)] == [(0,), (0,), (1,)]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (a_job("x", gpus=4), Why.CAPACITY),
        (a_job("x", gpus=2, gpus_each=2), Why.SHAPE),
        (a_job("x", gpus=1, types=("a100",)), Why.NO_NODE),
    ],
)
def test_a_failure_leaves_a_reason(job: JobSpec, why: Why) -> None:
    others = [a_job("o0"), a_job("o1")]
    view = a_view([*others, job], _nodes(2, 2), placement="spread", running=["o0", "o1"])
    builder = view.draft()
    row = row_of(view, "x")
    assert not builder.place(row)
    assert builder.plan().why[row] == why


# -- against brute force -----------------------------------------------------------------------------------

MACHINES = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(0, 4)), min_size=1, max_size=3)
GANGS = st.tuples(st.integers(1, 4), st.sampled_from([1, 1, 2]), st.integers(0, 3), st.integers(0, 2))


def _exists(free: list[tuple[int, int]], workers: int, each: int, cpu: int, servers: int, counting: bool) -> bool:
    """Whether any assignment of workers (and then servers) to nodes fits, by trying them all."""
    if counting:
        return sum(gpus for gpus, _ in free) >= workers * each
    options = [range(min(gpus // each, workers) + 1) for gpus, _ in free]
    for chosen in product(*options):
        if sum(chosen) != workers:
            continue
        left = [room - w * cpu for (_, room), w in zip(free, chosen, strict=True)]
        if min(left) >= 0 and sum(left) >= servers:
            return True
    return False


@pytest.mark.parametrize("strategy", STRATEGY_NAMES)
@given(machines=MACHINES, gang=GANGS)
@settings(max_examples=60, deadline=None)
def test_place_fails_only_when_the_gang_cannot_fit(
    strategy: str, machines: list[tuple[int, int, int]], gang: tuple[int, int, int, int]
) -> None:
    counting = strategy == "count"
    workers, each, cpu, servers = gang
    if counting:
        cpu = servers = 0
    # Without servers the workers' CPU is all that matters; with them, any choice of workers' nodes leaves the
    # same CPU in all, so servers of one CPU each fit exactly when the total suffices.
    nodes = [a_node(f"n{i}", gpus, cpu=room) for i, (gpus, room, _) in enumerate(machines)]
    fill = {f"f{i}": min(used, gpus) for i, (gpus, _, used) in enumerate(machines) if min(used, gpus)}
    jobs = [a_job(name, gpus=n) for name, n in fill.items()]
    job = a_job("x", gpus=workers * each, gpus_each=each, cpu=cpu, servers=(servers, servers), server_cpu=1)
    view = a_view([*jobs, job], nodes, placement=strategy)
    builder = view.draft()
    for name in fill:  # put the fillers on their own nodes
        only = np.zeros(len(nodes), np.bool_)
        only[int(name[1:])] = True
        assert builder.place(row_of(view, name), nodes=only)
    free = [(gpus - min(used, gpus), room) for gpus, room, used in machines]
    before = [
        builder.free_capacity.device_milli.copy(),
        builder.free_capacity.whole.copy(),
        builder.free_capacity.cpu_milli.copy(),
    ]
    row = row_of(view, "x")
    fitted = builder.place(row)
    assert fitted == _exists(free, workers, each, cpu, servers, counting)
    after = [builder.free_capacity.device_milli, builder.free_capacity.whole, builder.free_capacity.cpu_milli]
    if not fitted:
        assert all((a == b).all() for a, b in zip(before, after, strict=True)), "a failed gang is undone"
        return
    allocation = builder.changes[row]
    assert allocation is not None
    assert (allocation.workers, allocation.servers) == (workers, servers)
    assert sum(len(part.devices) for part in allocation.parts) == workers * each
    assert all((column >= 0).all() for column in after)


@pytest.mark.parametrize("strategy", STRATEGY_NAMES)
@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=12), stop=st.booleans())
@settings(max_examples=40, deadline=None)
def test_placing_many_is_placing_one_after_the_other(strategy: str, sizes: list[int], stop: bool) -> None:
    jobs = [a_job(f"j{i}", gpus=n) for i, n in enumerate(sizes)]
    view = a_view(jobs, "k80=6x3,v100=8x4", placement=strategy)
    rows = np.arange(len(jobs))
    together, alone = view.draft(), view.draft()
    first = together.place_rows(rows, stop_at_first_failure=stop)
    expected = -1
    for row in rows.tolist():
        if not alone.place(row):
            expected = row if expected < 0 else expected
            if stop:
                break
    assert together.changes == alone.changes
    assert first == expected


@given(
    start=st.integers(1, 6),
    steps=st.lists(st.integers(1, 8), min_size=1, max_size=6),
    strategy=st.sampled_from(STRATEGY_NAMES),
)
@settings(max_examples=80, deadline=None)
def test_resizing_keeps_devices_and_books(start: int, steps: list[int], strategy: str) -> None:
    view = a_view(
        [a_job("a", elastic=(1, 8)), a_job("b", gpus=2)],
        "v100=8x4",
        placement=strategy,
        running={"b": 2, "a": start},
    )
    row = row_of(view, "a")
    builder = view.draft()
    for workers in steps:
        before = builder.allocation(row)
        assert before is not None
        fitted = builder.resize(row, workers)
        after = builder.allocation(row)
        assert after is not None
        assert fitted == (workers <= 6)
        assert after.workers == (workers if fitted else before.workers)
        devices = {(part.node, d) for part in before.parts for d in part.devices}
        new = {(part.node, d) for part in after.parts for d in part.devices}
        assert devices <= new or new <= devices, "what it can keep it keeps"
        assert len(new) == after.workers
        assert int(builder.free_capacity.whole.sum()) == 8 - 2 - after.workers


def test_restore_undoes_a_shrink_while_the_room_is_there() -> None:
    jobs = [a_job("a", elastic=(1, 4)), a_job("b", gpus=2), a_job("c", gpus=1)]
    view = a_view(jobs, "v100=4", running={"a": Held(4)})
    for taker, restored in (("c", False), (None, True)):
        builder: PlanBuilder = view.draft()
        assert builder.resize(0, 2)
        if taker:
            assert builder.place(row_of(view, taker))
        assert builder.restore(0) is restored
        assert builder.allocation(0) == (view.jobs.allocation(0) if restored else builder.changes[0])
        assert int(builder.free_capacity.whole.sum()) == (0 if restored else 1)


def test_every_strategy_is_tried() -> None:
    assert {parse_strategy(name) for name in STRATEGY_NAMES} == set(Strategy)
    assert a_cluster("v100=4").total_gpus == 4

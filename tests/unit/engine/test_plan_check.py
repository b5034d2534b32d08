"""The compiled rules of verification against the rules in words, and the integers of gangs against objects."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.engine import plan_check, turnover
from trainmaster.engine.verify import PlanError, examine, verify_in_words
from trainmaster.model import placement
from trainmaster.model.allocation import Allocation, Part
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.gangs import AllocationColumn, Changes, add_gang, gang_fits, gang_totals, packed, unpacked
from trainmaster.model.job import Demand, Phase
from trainmaster.model.ledger import Ledger
from trainmaster.model.plan import Plan
from trainmaster.model.reasons import Why
from trainmaster.policies.gavel import round_pass
from trainmaster.testing.builders import a_job, a_view

CLUSTER = "k80=4x2,v100=8x4"
parts_of = st.builds(
    Part, st.integers(0, 4), st.integers(0, 3), st.integers(0, 2), st.lists(st.integers(0, 4), max_size=4).map(tuple)
)
gangs = st.builds(
    Allocation, st.integers(-1, 2), st.lists(parts_of, min_size=1, max_size=3).map(tuple),
    st.sampled_from([0, 500, 1000, 1000, 1000]),
)  # fmt: skip


@settings(deadline=None)
@given(gangs)
def test_a_gang_survives_as_integers(gang: Allocation) -> None:
    row = np.array([7, *packed(gang)], np.int64)
    assert unpacked(row, 1) == gang
    devices = sum(len(part.devices) for part in gang.parts)
    assert gang_totals(row, 1) == (gang.workers, gang.servers, devices)


def _as_placed(gang: Allocation) -> Allocation:
    """One part per node in order; whole devices once."""
    parts = {part.node: part for part in gang.parts}
    whole = gang.share_milli == 1000
    placed = [p._replace(devices=tuple(dict.fromkeys(p.devices)) if whole else p.devices) for p in parts.values()]
    return gang._replace(parts=tuple(sorted(placed)))


@settings(deadline=None)
@given(gangs.map(_as_placed), gangs.map(_as_placed), st.sampled_from([(0, 0), (500, 100)]))
def test_ledgers_agree_on_gangs(before: Allocation, gang: Allocation, each: tuple[int, int]) -> None:
    worker, server = Demand(1000, *each), Demand(0, 2 * each[0], each[1])
    ledger = Ledger.full(parse_cluster("v100=25x5"))
    ledger.cpu_milli[:], ledger.mem_mib[:] = 2_000, 300
    if ledger.fits(before, worker, server):
        ledger.take(before, worker, server)
    other, row = ledger.copy(), np.array(packed(gang), np.int64)
    resources = (*each, 2 * each[0], each[1])
    free = (other.device_milli, other.whole, other.cpu_milli, other.mem_mib)
    assert gang_fits(row, 0, *resources, free[0], free[2], free[3]) == ledger.fits(gang, worker, server)
    if ledger.fits(gang, worker, server):  # only what fits is ever taken
        ledger.take(gang, worker, server)
        add_gang(row, 0, -1, *resources, *free)
        for name in ("device_milli", "whole", "cpu_milli", "mem_mib"):
            assert getattr(ledger, name).tolist() == getattr(other, name).tolist()


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.none() | gangs, st.booleans()), max_size=20))
def test_a_column_reads_what_was_written_on_either_side(writes: list[tuple[int, Allocation | None, bool]]) -> None:
    column, expected = AllocationColumn(), [None] * 6
    column.grow(6)
    for slot, gang, by_kernel in writes:
        expected[slot] = gang  # type: ignore[call-overload]
        if by_kernel:
            row = [0] if gang is None else packed(gang)
            column.rows(len(row))[slot, : len(row)] = row
            column.written([slot])
        else:
            column[slot] = gang
    assert list(column) == expected
    rows = column.rows()
    assert [unpacked(row) if row[0] else None for row in rows] == expected


def _view():  # type: ignore[no-untyped-def]
    jobs = [
        a_job("rigid", gpus=2), a_job("one", gpus=1), a_job("elastic", elastic=(1, 4)), a_job("half", gpus=0.5),
        a_job("servers", gpus=2, servers=(1, 2), cpu=1, server_cpu=1), a_job("fixed", gpus=1, preemptible=False),
        a_job("fussy", gpus=1, types=["k80"]),
    ]  # fmt: skip
    return a_view(jobs, CLUSTER, running=["one", "elastic", "fixed"], down=[3])


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.integers(0, 6), st.none() | gangs, max_size=4), st.integers(0, 9), st.booleans())
def test_the_rules_agree(changes: dict[int, Allocation | None], silent: int, placed: bool) -> None:
    view = _view()
    if placed:  # a plan that is sound but for what is changed below
        draft = view.draft()
        draft.place_rows(view.waiting_rows())
        changes = {**draft.changes, **(changes if silent < 5 else {})}
    why = np.full(len(view.jobs), int(Why.CAPACITY), np.int8)
    if silent < len(why):
        why[silent] = 0
    plan = Plan(view.version, changes, why)
    broken, ledger = "", None
    try:
        ledger = verify_in_words(view, plan)
    except PlanError as error:
        broken = str(error)
    if ledger is None:
        with pytest.raises(PlanError) as found:
            examine(view, plan)
        assert str(found.value) == broken
        return
    verified = examine(view, plan)
    for name in ("device_milli", "whole", "cpu_milli", "mem_mib"):
        assert getattr(verified.ledger, name).tolist() == getattr(ledger, name).tolist()
    carried_out = {
        int(slot): None if at < 0 else unpacked(verified.flat, at)
        for slot, at in zip(verified.slots, verified.first, strict=True)
    }
    assert carried_out == {int(view.jobs.slots[row]): given for row, given in changes.items()}


def test_changes_read_as_a_mapping() -> None:
    changes, gang = Changes(), Allocation(0, (Part(0, 1, 0, (3,)),))
    changes.place([4, 2], [0, 8], np.array(packed(gang) * 2, np.int64))
    changes.stop([7])
    changes[1] = gang
    assert changes == {4: gang, 2: gang, 7: None, 1: gang}
    rows, first, flat = changes.in_order()
    assert rows.tolist() == [7, 1, 2, 4]
    assert [at < 0 or unpacked(flat, at) == gang for at in first.tolist()] == [True] * 4
    del changes[7]
    assert changes.in_order()[0].tolist() == [1, 2, 4]


def test_kernels_know_the_phases_and_reasons() -> None:
    for module in (plan_check, turnover, round_pass):
        for phase in Phase:
            assert getattr(module, phase.name, int(phase)) == int(phase)
    assert (placement._CAPACITY, placement._SHAPE, placement._NO_NODE) == (Why.CAPACITY, Why.SHAPE, Why.NO_NODE)

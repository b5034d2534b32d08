"""Parts of an attempt: seats that change, replacements of the dead, reports of work."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.gang.actions import Seat, change_seats
from trainmaster.gang.progress import Work
from trainmaster.gang.protocol import Progress
from trainmaster.gang.replacements import Replacements

SEATS = st.builds(
    Seat,
    role=st.sampled_from(["worker", "server"]),
    node=st.sampled_from(["n0", "n1"]),
    devices=st.lists(st.integers(0, 5), max_size=2, unique=True).map(tuple),
)


@given(st.lists(SEATS, max_size=6), st.lists(SEATS, max_size=6))
def test_a_change_fills_the_target_and_keeps_as_many_as_it_can(present: list[Seat], target: list[Seat]) -> None:
    members = {f"m{i}": slot for i, slot in enumerate(present)}
    result = change_seats(members, target)
    filled = [*result.stay.values(), *result.fill]
    assert sorted(s.place for s in filled) == sorted(s.place for s in target)
    assert set(result.stay) | set(result.leave) == set(members)
    assert not set(result.stay) & set(result.leave)
    assert all(members[name].place == slot.place for name, slot in result.stay.items())
    overlap = sum(min([s.place for s in present].count(p), [s.place for s in target].count(p))
                  for p in {s.place for s in present})  # fmt: skip
    assert len(result.stay) == overlap


def test_seniors_stay_first() -> None:
    members = {name: Seat("worker", "n0") for name in ("a", "b", "c")}
    result = change_seats(members, [Seat("worker", "n0")] * 2)
    assert (list(result.stay), result.leave) == (["a", "b"], ("c",))


def test_deaths_without_progress_add_up_and_pauses_grow() -> None:
    seat, replacements = Seat("worker", "n0"), Replacements(3)
    assert replacements.next_due_s == math.inf
    assert replacements.died(seat, 10.0, work_done=5.0)
    assert replacements.next_due_s == pytest.approx(10.2)
    assert replacements.due(10.1) == []
    assert replacements.due(10.2) == [seat]
    assert replacements.died(seat, 20.0, work_done=5.0)
    assert replacements.next_due_s == pytest.approx(20.4)
    replacements.progressed(5.0)  # no further than at the last death
    assert not replacements.died(seat, 30.0, work_done=5.0)
    replacements.progressed(5.1)
    assert replacements.died(seat, 40.0, work_done=5.1)


def test_members_that_are_taken_away_are_replaced_without_an_end() -> None:
    replacements = Replacements(1)
    assert all(replacements.died(Seat("worker", "n0"), 10.0, work_done=5.0, its_own=False) for _ in range(9))


def test_one_member_speaks_for_the_gang_until_it_dies() -> None:
    work, alive = Work(), {"a", "b"}
    assert math.isnan(work.saved) and not work.known
    assert work.report("a", Progress(3.0, saved=2.0), alive.__contains__)
    assert not work.report("b", Progress(9.0), alive.__contains__)
    assert not work.report("server-0", Progress(2.5, saved=2.5), alive.__contains__)
    assert (work.done, work.saved) == (3.0, 2.5)  # servers save; the senior worker counts
    assert not work.report("server-1", Progress(1.0, saved=1.0), alive.__contains__)
    alive.remove("a")
    assert work.report("b", Progress(4.0), alive.__contains__)
    assert (work.done, work.saved, work.known) == (4.0, 2.5, True)

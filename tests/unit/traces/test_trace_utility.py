"""The text of the `utility` column: on the trace clock in the file, of the job's age in the job."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.model.utility import Constant, Sigmoid, Step, parse_utility
from trainmaster.traces.utility import at_age, format_steps, parse_cell, shift_utility

steps = st.lists(st.integers(1, 10**6), min_size=1, max_size=6, unique=True).map(sorted)


@given(steps, st.integers(0, 10**6), st.integers(0, 2 * 10**6))
def test_the_value_at_a_time_does_not_depend_on_how_it_is_asked(times: list[int], submit_s: int, finish_s: int) -> None:
    """Oracle: the first step whose time is not before the finish, straight from the column's definition."""
    values = [10.0 - index for index in range(len(times))]
    text = format_steps([float(t) for t in times], values)
    finish_s = max(finish_s, submit_s + 1)
    expected = next((v for t, v in zip(times, values, strict=True) if finish_s <= t), 0.0)
    utility = at_age(text, submit_s)
    assert utility.value(finish_s - submit_s) == expected
    assert parse_utility(utility.to_json()) == utility
    moved = at_age(shift_utility(text, 500.0), submit_s + 500)
    assert moved.value(finish_s - submit_s) == expected


def test_forms() -> None:
    assert parse_cell("3600:10|7200:4.5") == Step((3600.0, 7200.0), (10.0, 4.5))
    assert parse_cell("3600:10;7200:4.5") == parse_cell("3600:10 7200:4.5")
    assert at_age("sigmoid:5,0.1,60", 100.0) == Sigmoid(5.0, 0.1, 60.0)
    assert shift_utility("sigmoid:5,0.1,60", 100.0) == "sigmoid:5,0.1,60"
    assert at_age("3600:10", 4000.0) == Constant(0.0)


@pytest.mark.parametrize(
    "text", ["", "|", "5", "1:2|x:3", "1:2|2:3", "nan:1", "2:1|1:1", "1:-1", "sigmoid:1,2", "sigmoid:1,-2,3"]
)
def test_bad_cells(text: str) -> None:
    with pytest.raises(ValueError, match="utility"):
        parse_cell(text)

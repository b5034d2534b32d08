"""Utilities: values against an independent reading, log space, unit changes, bad descriptions."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.oracles.admission import utility_at
from trainmaster.model.errors import InputError
from trainmaster.model.utility import parse_utility

LEVEL = st.floats(0, 100)
CURVE = st.lists(st.tuples(st.floats(0, 50), LEVEL), min_size=1, max_size=5, unique_by=lambda p: p[0]).map(
    lambda pairs: [
        [time, level]
        for time, level in zip(sorted(t for t, _ in pairs), sorted((v for _, v in pairs), reverse=True), strict=True)
    ]
)
DESCRIPTION = st.one_of(
    st.builds(
        lambda a, b, c: {"kind": "sigmoid", "theta1": a, "theta2": b, "theta3": c},
        LEVEL, st.floats(0, 6), st.floats(0, 15),
    ),
    st.builds(lambda a, b: {"kind": "linear", "start": a, "slope": b}, LEVEL, st.floats(0, 10)),
    st.builds(lambda a: {"kind": "constant", "value": a}, LEVEL),
    st.builds(lambda pairs: {"kind": "step", "steps": pairs, "after": 0.0}, CURVE),
    st.builds(lambda pairs: {"kind": "points", "points": pairs}, CURVE),
)  # fmt: skip


@given(DESCRIPTION, st.lists(st.floats(0, 100), min_size=1, max_size=8))
def test_every_kind_agrees_with_its_description(description: dict, ages: list[float]) -> None:
    utility = parse_utility(description)
    expected = [utility_at(description, age) for age in ages]
    assert [utility.value(age) for age in ages] == pytest.approx(expected, rel=1e-9, abs=1e-300)
    assert utility.values(np.array(ages)) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    ordered = [utility.value(age) for age in sorted(ages)]
    assert all(later <= earlier + 1e-9 for earlier, later in pairwise(ordered))
    assert parse_utility(utility.to_json()) == utility
    for age, value in zip(ages, expected, strict=True):
        if value > 1e-290:
            assert utility.log_value(age) == pytest.approx(math.log(value), rel=1e-9, abs=1e-9)


def test_log_value_where_the_value_underflows() -> None:
    steep = parse_utility({"kind": "sigmoid", "theta1": 10, "theta2": 6, "theta3": 1})
    assert steep.value(1000) == 0.0
    assert steep.log_value(1000) == pytest.approx(math.log(10) - 6 * 999)
    assert steep.values(np.array([1000.0])).tolist() == [0.0]


@pytest.mark.parametrize(
    ("description", "column", "words"),
    [
        ({"kind": "sigmoid", "theta1": 1, "theta2": -1, "theta3": 0}, "utility.theta2", "increases"),
        ({"kind": "linear", "start": 1, "slope": -0.5}, "utility.slope", "increases"),
        ({"kind": "points", "points": [[0, 1], [2, 3]]}, "utility.points", "increases"),
        ({"kind": "step", "steps": [[1, 3], [2, 1]], "after": 2}, "utility.steps", "increases"),
        ({"kind": "step", "steps": [[2, 3], [1, 1]]}, "utility.steps", "follows"),
        ({"kind": "constant", "value": float("nan")}, "utility.value", "finite"),
        ({"kind": "constant", "value": -1}, "utility.value", "negative"),
        ({"kind": "points", "points": []}, "utility.points", "pairs"),
        ({"kind": "cosine"}, "utility.kind", "unknown"),
        (3, "utility", "object"),
    ],
)
def test_bad_descriptions_name_the_place(description: object, column: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_utility(description, file="x.json")
    assert caught.value.column == column
    assert words in str(caught.value)

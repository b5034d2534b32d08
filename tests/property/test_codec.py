"""The codec: what is written is read back equal, equal values give equal bytes, and nonsense is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.model.allocation import Allocation, Part
from trainmaster.model.codec import (
    allocation_from_json,
    allocation_to_json,
    canonical,
    command_from_json,
    command_to_json,
    spec_from_json,
    spec_to_json,
)
from trainmaster.model.command import Launch, Resize, Stop
from trainmaster.model.errors import InputError
from trainmaster.model.job import DeadlineKind, Demand, JobId, JobSpec
from trainmaster.model.scaling import Scaling

counts = st.integers(0, 2**40)
numbers = st.floats(0, 1e18, allow_nan=False)
words = st.text(max_size=8)
gpu_sizes = st.integers(0, 1000) | st.integers(1, 64).map(lambda n: n * 1000)
demands = st.builds(Demand, gpu_milli=gpu_sizes, cpu_milli=counts, mem_mib=counts)
plain = st.dictionaries(words, st.none() | st.booleans() | counts | words | st.lists(words, max_size=3), max_size=3)
curves = st.builds(
    Scaling, a=numbers, b=numbers, g=numbers,
    points=st.dictionaries(st.integers(1, 64), numbers, max_size=4).map(lambda d: tuple(sorted(d.items()))),
)  # fmt: skip


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    low, low_servers = draw(st.integers(1, 64)), draw(st.integers(0, 8))
    return JobSpec(
        id=JobId(draw(words)), submit_ms=draw(counts), name=draw(words), workers_min=low,
        workers_max=low + draw(st.integers(0, 64)), servers_min=low_servers,
        servers_max=low_servers + draw(st.integers(0, 8)), worker=draw(demands), server=draw(demands),
        workers_ref=draw(st.integers(1, 64)), gpu_types=tuple(draw(st.lists(words, max_size=3))),
        work_total=draw(st.none() | numbers), steps_per_s=draw(st.dictionaries(words, numbers, max_size=3)),
        steps_per_s_spread=draw(st.dictionaries(words, numbers, max_size=3)), scaling=draw(curves),
        weight=draw(numbers), priority=draw(st.integers(-100, 100)), entity=draw(words),
        deadline_ms=draw(counts), deadline_kind=draw(st.sampled_from(list(DeadlineKind))),
        utility=draw(st.none() | plain), budget=draw(st.none() | numbers), model=draw(words),
        batch_size=draw(st.none() | st.integers(1, 4096)), epochs_total=draw(st.none() | numbers),
        max_attempts=draw(st.integers(1, 9)), preemptible=draw(st.booleans()), payload=draw(plain),
    )  # fmt: skip


parts = st.builds(Part, counts, counts, counts, st.lists(st.integers(0, 63), max_size=4).map(tuple))
allocations = st.builds(Allocation, st.integers(-1, 9), st.lists(parts, max_size=4).map(tuple), st.integers(0, 1000))
ids = words.map(JobId)
commands = (
    st.builds(Launch, ids, counts, counts, allocations, specs())
    | st.builds(Resize, ids, counts, counts, allocations)
    | st.builds(Stop, ids, counts, counts, words)
)


def through_text(data: Any) -> Any:
    return json.loads(canonical(data))


@settings(max_examples=40, deadline=None)
@given(specs())
def test_jobs(spec: JobSpec) -> None:
    again = spec_from_json(through_text(spec_to_json(spec)))
    assert again == spec
    assert type(again.deadline_kind) is DeadlineKind
    assert canonical(spec_to_json(again)) == canonical(spec_to_json(spec))


@settings(max_examples=40, deadline=None)
@given(allocations)
def test_allocations(allocation: Allocation) -> None:
    assert allocation_from_json(through_text(allocation_to_json(allocation))) == allocation


@settings(max_examples=40, deadline=None)
@given(commands)
def test_commands(command: Launch | Resize | Stop) -> None:
    assert command_from_json(through_text(command_to_json(command))) == command


def test_defaults_are_left_out() -> None:
    assert spec_to_json(JobSpec(JobId("a"))) == {"id": "a"}


@pytest.mark.parametrize(
    ("data", "where"),
    [
        ([], "value"),
        ({}, "id"),
        ({"id": 3}, "id"),
        ({"id": "a", "colour": "red"}, "colour"),
        ({"id": "a", "workers_min": 0}, "workers_min"),
        ({"id": "a", "workers_min": 2}, "workers_max"),
        ({"id": "a", "workers_max": 1.5}, "workers_max"),
        ({"id": "a", "workers_max": True}, "workers_max"),
        ({"id": "a", "work_total": float("nan")}, "work_total"),
        ({"id": "a", "weight": -1}, "weight"),
        ({"id": "a", "worker": {"gpu_milli": 1500}}, "worker.gpu_milli"),
        ({"id": "a", "worker": {"gpus": 1}}, "worker.gpus"),
        ({"id": "a", "steps_per_s": {"v100": "fast"}}, "steps_per_s.v100"),
        ({"id": "a", "deadline_kind": 7}, "deadline_kind"),
        ({"id": "a", "scaling": {"points": [[2, 1.0], [1, 2.0]]}}, "scaling.points"),
        ({"id": "a", "gpu_types": "v100"}, "gpu_types"),
    ],
)
def test_bad_jobs_are_named(data: Any, where: str) -> None:
    with pytest.raises(InputError) as caught:
        spec_from_json(data)
    assert caught.value.column == where
    assert caught.value.expected


RESIZE = {"kind": "resize", "job_id": "a", "generation": 1, "seq": 1}


@pytest.mark.parametrize(
    "data",
    [
        None,
        {"kind": "dance"},
        {"kind": "stop", "job_id": "a", "generation": 1, "seq": 1},
        {"kind": "stop", "job_id": "a", "generation": -1, "seq": 1, "why": ""},
        {**RESIZE, "allocation": {"accelerator": 0, "parts": [[0]], "share_milli": 1000}},
        {**RESIZE, "allocation": {"accelerator": 0, "parts": [], "share_milli": 1001}},
        {"kind": "stop", "job_id": "a", "generation": 1, "seq": 1, "why": "", "allocation": {}},
    ],
)
def test_bad_commands(data: Any) -> None:
    with pytest.raises(InputError):
        command_from_json(data)


keys = words | st.sampled_from(["id", "worker", "kind", "seq"])
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(anything)
def test_anything_else_is_an_input_error(data: Any) -> None:
    """What is accepted by chance is an object, and is written and read again as the same value."""
    for read, write in (
        (spec_from_json, spec_to_json),
        (allocation_from_json, allocation_to_json),
        (command_from_json, command_to_json),
    ):
        try:
            value: Any = read(data)
        except InputError:
            continue
        assert isinstance(data, dict)
        assert read(write(value)) == value


@pytest.mark.parametrize("read", [spec_from_json, allocation_from_json, command_from_json])
@pytest.mark.parametrize("data", [None, True, 7, 1.5, "text", [], [{}], {}, {"id": 7}, {"kind": "pause"}, {"parts": 3}])
def test_what_is_something_else_is_refused(read: Callable[[Any], Any], data: Any) -> None:
    with pytest.raises(InputError):
        read(data)

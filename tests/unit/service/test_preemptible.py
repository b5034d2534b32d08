"""Who may be preempted: elastic jobs, jobs that save checkpoints, and those that say so. Never a plain command."""

from pathlib import Path
from typing import Any

import pytest
from service_bench import Bench

from trainmaster.engine import queries
from trainmaster.model import event as ev
from trainmaster.model.command import Stop
from trainmaster.model.job import JobId


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, nodes="v100=2")


def _outranked(bench: Bench, **fields: Any) -> str:
    """A long job runs; shorter ones wait, and the policy is one that would preempt it."""
    both: dict[str, Any] = {"workers": {"min": 2, "max": 2}, "steps_per_s": {"v100": 1}}
    long = bench.submit(**{"steps": 1e6, **both, **fields})
    bench.pass_s(1)
    bench.submit(steps=10, **both)
    assert bench.call("PUT", "/policy", {"policy": "srtf"}).status == 200
    return long


def _stopped(bench: Bench, job: str) -> bool:
    bench.pass_s(5)
    return any(isinstance(command, Stop) and command.job_id == job for command in bench.performed)


def test_a_change_of_policy_never_stops_a_plain_command(bench: Bench) -> None:
    assert not _stopped(bench, _outranked(bench))


@pytest.mark.parametrize("fields", [{"preemptible": True}, {"workers": {"min": 1, "max": 2}}])
def test_what_says_so_or_is_elastic_is_preempted(bench: Bench, fields: dict[str, Any]) -> None:
    assert _stopped(bench, _outranked(bench, **fields))


@pytest.mark.parametrize(("said", "stopped"), [(None, True), (False, False)])
def test_a_plain_command_that_saves_checkpoints_may_be_preempted_unless_it_forbids_it(
    bench: Bench, said: bool | None, stopped: bool
) -> None:
    long = _outranked(bench, preemptible=said)
    generation = queries.generation_of(bench.plane.live, long)
    assert generation is not None
    bench.plane.batch([], [ev.Progressed(JobId(long), generation, 5, bench.clock.ms, checkpoints=True)])
    assert _stopped(bench, long) == stopped
    kinds = [event["kind"] for event in bench.get("/events", query=f"job={long}")["events"]]
    assert ("checkpoints" in kinds) == stopped
    assert bench.get(f"/jobs/{long}")["request"]["preemptible"] == stopped, "what holds now"

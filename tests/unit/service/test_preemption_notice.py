"""A preemption that would lose much work is told first: the job is spared until it saves, or its notice is over."""

from pathlib import Path
from typing import Any

import pytest
from service_bench import Bench

from trainmaster.cli.live.job import facts
from trainmaster.cli.live.queue_table import remark_text
from trainmaster.cli.live.why import lines
from trainmaster.engine import queries
from trainmaster.model import event as ev
from trainmaster.model.command import Stop
from trainmaster.model.job import JobId

BOTH: dict[str, Any] = {"workers": {"min": 2, "max": 2}, "steps_per_s": {"v100": 1}}
SOME_CAUSES = {
    "policy": ("PUT", "/policy", {"policy": "srtf"}),
    "edit": ("POST", "/jobs/job-2/edit", {"priority": 5}),
    "submit": ("POST", "/jobs", {"command": ["train"], "steps": 10, "priority": 5, **BOTH}),
}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, nodes="v100=2", notice_ms=300_000, loss_max_ms=600_000)


def _long(bench: Bench, run_s: float, **fields: Any) -> str:
    long = bench.submit(**{"steps": 1e6, "preemptible": True, **BOTH, **fields})
    bench.pass_s(run_s)
    bench.submit(steps=10, **BOTH)
    return long


def _caused(bench: Bench, cause: str) -> None:
    assert bench.call(*SOME_CAUSES[cause]).status < 300


def _stops(bench: Bench, job: str) -> int:
    return sum(isinstance(command, Stop) and command.job_id == job for command in bench.performed)


def _notices(bench: Bench) -> list[Any]:
    return [event for event in bench.get("/events", query="limit=1000")["events"] if event["kind"] == "preemption"]


def _saves(bench: Bench, job: str, work: float, saved: float) -> None:
    generation = queries.generation_of(bench.plane.live, job)
    assert generation is not None
    told = ev.Progressed(JobId(job), generation, work, bench.clock.ms, 1.0, None, checkpoints=True, saved=saved)
    bench.plane.batch([], [told])


@pytest.mark.parametrize("cause", SOME_CAUSES)
def test_a_job_without_a_checkpoint_is_spared_for_the_notice(bench: Bench, cause: str) -> None:
    long = _long(bench, 700)
    _caused(bench, cause)
    assert [event["job"] for event in _notices(bench)] == [long]
    told = "job-1 will be preempted in 5m00s, or when it saves: it would lose 11m40s of work since its start"
    assert _notices(bench)[0]["text"].startswith(told)
    bench.pass_s(295)
    assert _stops(bench, long) == 0
    bench.pass_s(10)
    assert _stops(bench, long) == 1
    assert len(_notices(bench)) == 1


def test_user_and_waiting_job_see_the_notice(bench: Bench) -> None:
    long = _long(bench, 700)
    assert bench.get(f"/jobs/{long}")["preempted_in_s"] is None
    _caused(bench, "edit")
    bench.pass_s(100)
    view = bench.get(f"/jobs/{long}")
    assert view["preempted_in_s"] == pytest.approx(200, abs=1.5)
    assert dict(facts(view))["preemption"] == "in 3m20s, or when it saves"
    assert remark_text(view) == "preempted in 3m20s, or when it saves; on v100-0"
    answer = bench.get("/jobs/job-2/why")
    assert answer["notices"] == {long: pytest.approx(200, abs=1.5)}
    assert "  held by  job-1 (2, preempted in 3m20s)" in lines(answer, bench.get("/jobs/job-2"))
    bench.pass_s(250)
    assert bench.get(f"/jobs/{long}")["preempted_in_s"] is None


def test_little_work_is_lost_without_a_notice(bench: Bench) -> None:
    long = _long(bench, 500)
    _caused(bench, "policy")
    bench.pass_s(1)
    assert (_stops(bench, long), _notices(bench)) == (1, [])


def test_a_job_that_saves_meanwhile_is_preempted_at_once(bench: Bench) -> None:
    long = _long(bench, 700)
    _caused(bench, "policy")
    bench.pass_s(30)
    _saves(bench, long, 730, 100)
    assert _stops(bench, long) == 0, "not enough"
    bench.pass_s(10)
    _saves(bench, long, 740, 735)
    bench.pass_s(1)
    assert _stops(bench, long) == 1


def test_what_was_saved_before_counts(bench: Bench) -> None:
    long = _long(bench, 700)
    _saves(bench, long, 700, 690)
    _caused(bench, "policy")
    bench.pass_s(1)
    assert (_stops(bench, long), _notices(bench)) == (1, [])


def test_one_that_saves_when_it_is_stopped_gets_one_notice_only(bench: Bench) -> None:
    long = _long(bench, 700)
    engine = bench.plane.live
    assert bench.call("POST", f"/jobs/{long}/pause").status == 200
    generation = queries.generation_of(engine, long)
    assert generation is not None
    bench.plane.batch([], [ev.Stopped(JobId(long), generation, 699.0)])
    assert bench.call("POST", "/jobs/job-2/cancel").status == 200
    assert bench.call("POST", f"/jobs/{long}/resume").status == 200
    bench.pass_s(700)
    bench.submit(steps=10, **BOTH)
    before = _stops(bench, long)
    _caused(bench, "policy")
    bench.pass_s(1)
    assert (_stops(bench, long) - before, _notices(bench)) == (1, [])


def test_a_notice_holds_for_an_hour(bench: Bench) -> None:
    long = _long(bench, 700)
    _caused(bench, "edit")
    bench.pass_s(10)
    assert bench.call("POST", "/jobs/job-2/cancel").status == 200
    bench.pass_s(400)
    bench.submit(steps=10, priority=5, **BOTH)
    bench.pass_s(1)
    assert (_stops(bench, long), len(_notices(bench))) == (1, 1)


def test_after_an_hour_it_is_given_again(bench: Bench) -> None:
    long = _long(bench, 700)
    _caused(bench, "edit")
    assert bench.call("POST", "/jobs/job-2/cancel").status == 200
    for _ in range(8):
        bench.pass_s(500)
    bench.submit(steps=10, priority=5, **BOTH)
    bench.pass_s(100)
    assert (_stops(bench, long), len(_notices(bench))) == (0, 2)
    bench.pass_s(250)
    assert _stops(bench, long) == 1


def test_the_user_is_not_held_up(bench: Bench) -> None:
    long = _long(bench, 700)
    assert bench.call("POST", f"/jobs/{long}/pause").status == 200
    assert _stops(bench, long) == 1


def test_no_notice_where_the_operator_wants_none(tmp_path: Path) -> None:
    bench = Bench(tmp_path, nodes="v100=2", notice_ms=0)
    long = _long(bench, 700)
    _caused(bench, "policy")
    bench.pass_s(1)
    assert (_stops(bench, long), _notices(bench)) == (1, [])

"""Limits of running jobs: stalls are seen, run time and budget end the job with a reason that says so."""

from pathlib import Path

import pytest
from service_bench import Bench

from trainmaster.engine import queries
from trainmaster.model import event as ev
from trainmaster.model.command import Stop
from trainmaster.model.job import Demand, JobId


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Of the simulated world's own progress nobody is told: the tests report it."""
    monkeypatch.setattr(Bench, "observe", lambda _: None)
    return Bench(tmp_path)


def _report(bench: Bench, job: str, work: float, rate: float | None = None) -> None:
    generation = queries.generation_of(bench.plane.live, job)
    assert generation is not None
    bench.plane.batch([], [ev.Progressed(JobId(job), generation, work, bench.clock.ms, rate)])


def _kinds(bench: Bench, job: str) -> list[str]:
    return [event["kind"] for event in bench.get("/events", query=f"job={job}")["events"]]


def _steps(bench: Bench, job: str, seconds: int) -> None:
    """A step a second."""
    for second in range(1, seconds + 1):
        bench.pass_s(1)
        _report(bench, job, second)


def test_a_job_that_stops_stepping_is_shown_as_stalled_until_it_goes_on(bench: Bench) -> None:
    job = bench.submit(steps=1e6, steps_per_s={"v100": 0.001}, stall_factor=90)
    _steps(bench, job, 10)
    bench.pass_s(80)
    assert bench.get(f"/jobs/{job}")["stalled_s"] is None, "90 usual steps have not passed"
    bench.pass_s(20)
    assert bench.get(f"/jobs/{job}")["stalled_s"] == pytest.approx(100)
    _report(bench, job, 10)  # it says that it lives, and has done nothing
    assert bench.get(f"/jobs/{job}")["stalled_s"] == pytest.approx(100)
    _report(bench, job, 11)
    bench.pass_s(2)
    assert bench.get(f"/jobs/{job}")["stalled_s"] is None
    assert _kinds(bench, job)[-2:] == ["stalled", "progress"]
    assert bench.state(job) == "running"


def test_short_pauses_silence_before_the_first_step_and_factor_0_are_no_stalls(bench: Bench) -> None:
    quick = bench.submit(steps=1e6, steps_per_s={"v100": 0.001})
    never = bench.submit(steps=1e6, steps_per_s={"v100": 0.001}, stall_factor=0)
    plain = bench.submit(steps=1e6, steps_per_s={"v100": 0.001})
    bench.pass_s(1)
    for job, rate in ((quick, 1000.0), (never, 1000.0)):
        _report(bench, job, 5, rate)
    bench.pass_s(50)
    assert bench.get(f"/jobs/{quick}")["stalled_s"] is None, "a minute is a pause for evaluation"
    bench.pass_s(1000)
    stalled = {job: bench.get(f"/jobs/{job}")["stalled_s"] is not None for job in (quick, never, plain)}
    assert stalled == {quick: True, never: False, plain: False}


def test_a_stalled_job_is_restarted_where_that_was_asked_for_and_fails_in_the_end(bench: Bench) -> None:
    job = bench.submit(steps=1e6, steps_per_s={"v100": 0.001}, restart_stalled=True, max_attempts=2)
    for _ in range(2):
        bench.pass_s(2)
        _report(bench, job, 5, 1.0)
        bench.pass_s(103)
    view = bench.get(f"/jobs/{job}")
    assert (view["state"], view["attempts"]) == ("failed", 2)
    assert "stalled: no step for" in view["exit"]
    assert _kinds(bench, job).count("halted") == 2


def test_a_job_is_stopped_when_its_run_time_is_used_up(bench: Bench) -> None:
    job = bench.submit(steps=1e6, steps_per_s={"v100": 1}, time_s=60)
    bench.pass_s(1)
    bench.call("POST", f"/jobs/{job}/pause")
    bench.pass_s(100)
    bench.call("POST", f"/jobs/{job}/resume")
    bench.pass_s(55)
    assert bench.state(job) == "running", "the time that it waited does not count"
    assert "notice" in _kinds(bench, job)
    bench.pass_s(10)
    view = bench.get(f"/jobs/{job}")
    assert view["state"] == "failed"
    assert view["exit"] == "stopped at its limit: --time 60 s is used up"
    assert not bench.plane.live.columns.job_index_of, "it does not start again"


def test_a_limit_outlives_a_restart_of_the_service(bench: Bench) -> None:
    job = bench.submit(steps=1e6, steps_per_s={"v100": 1}, time_s=60)
    bench.pass_s(58)
    bench.world.perform = lambda command: None  # type: ignore[method-assign]  # the stop is lost with the process
    bench.clock.ms += 5_000
    bench.plane.batch([])
    assert isinstance(bench.performed[-1], Stop)
    del bench.world.perform
    bench.start()
    bench.pass_s(15)
    assert bench.state(job) == "failed"
    assert "--time 60 s" in bench.get(f"/jobs/{job}")["exit"]


def test_a_budget_warns_and_then_ends_the_job(tmp_path: Path) -> None:
    bench = Bench(tmp_path, prices={"v100": 3600.0})
    job = bench.submit(steps=1e6, steps_per_s={"v100": 1}, budget=100, workers={"min": 2, "max": 2})
    bench.pass_s(46)
    assert _kinds(bench, job)[-1] == "notice"
    bench.pass_s(6)
    view = bench.get(f"/jobs/{job}")
    assert (view["state"], view["exit"]) == ("failed", "stopped at its limit: --budget 100 is used up")
    assert 100 <= view["cost"] < 104


def test_a_budget_that_nobody_can_count_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path, nodes="v100=4,rare=4", prices={"v100": 2.5})
    reply = bench.call("POST", "/jobs", {"command": ["x"], "budget": 1})
    assert reply.status == 422
    assert "rare has no price" in reply.json()["what"]
    bench.submit(budget=1, gpu_types=["v100"])


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"cpus_per_worker": 900}, "a worker with 900 CPUs never fits: the largest node has 2 CPUs"),
        ({"memory_mib_per_worker": 9000}, "a worker with 9000 MiB of memory never fits: the largest node has 4096"),
        ({"gpus_per_worker": 8}, "a worker with 8 GPUs never fits: the largest node has 4 GPUs"),
    ],
)
def test_what_no_node_has_is_refused_by_name(bench: Bench, fields: dict[str, float], told: str) -> None:
    bench.plane.machine = Demand(0, 2000, 4096)
    reply = bench.call("POST", "/jobs", {"command": ["x"], **fields})
    assert reply.status == 422
    assert told in reply.json()["what"]
    assert reply.json()["where"] == next(iter(fields))

"""A job is edited while it waits or runs: the engine, the view and the store have it; the rest is refused by name."""

from pathlib import Path
from typing import Any

import pytest
from service_bench import ANN_TOKEN, Bench

from trainmaster.engine import queries
from trainmaster.model.command import Launch


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def _edit(bench: Bench, job: str, status: int = 200, token: str | None = None, **changes: Any) -> Any:
    reply = bench.call("POST", f"/jobs/{job}/edit", changes, **({} if token is None else {"token": token}))
    assert reply.status == status, reply.body
    return reply.json()


def test_a_running_job_gets_other_terms_and_goes_on(bench: Bench) -> None:
    job = bench.submit(steps=1e6, steps_per_s={"v100": 1}, time_s=60, priority=1)
    bench.pass_s(30)
    view = _edit(bench, job, priority=5, deadline_s=7200, time_s=90, weight=2)
    told = {key: view["request"][key] for key in ("priority", "deadline_s", "time_s", "weight")}
    assert told == {"priority": 5, "deadline_s": 7200, "time_s": 90, "weight": 2}
    bench.start()
    assert bench.get(f"/jobs/{job}")["request"]["time_s"] == 90
    bench.pass_s(45)
    assert bench.state(job) == "running", "75 s: beyond the old limit, within the new one"
    _edit(bench, job, time_s=None, deadline_s=None)
    bench.pass_s(100)
    view = bench.get(f"/jobs/{job}")
    assert (view["state"], view["attempts"]) == ("running", 1)
    assert (view["request"]["time_s"], view["request"]["deadline_s"], view["slack_s"]) == (None, None, None)


def test_sizes_of_a_job_that_waits(bench: Bench) -> None:
    blocker = bench.submit(steps=1e6, workers={"min": 4, "max": 4})
    job = bench.submit(steps=1e6, workers={"min": 2, "max": 2}, servers={"min": 1, "max": 1})
    bench.pass_s(1)
    view = _edit(bench, job, servers={"min": 2, "max": 2}, workers={"min": 1, "max": 1})
    assert (view["request"]["servers"], view["request"]["workers"]) == ({"min": 2, "max": 2}, {"min": 1, "max": 1})
    bench.call("POST", f"/jobs/{blocker}/cancel")
    bench.pass_s(2)
    launch = next(command for command in bench.performed if isinstance(command, Launch) and command.job_id == job)
    assert (launch.allocation.workers, launch.allocation.servers) == (1, 2)
    assert "Pause it first" in _edit(bench, job, 409, servers={"min": 1, "max": 1})["remedy"]


def test_what_cannot_be_changed_is_refused_and_changes_nothing(bench: Bench) -> None:
    job = bench.submit(steps=1e6)
    before = queries.spec_of(bench.plane.live, job)
    assert _edit(bench, job, 422, command=["other"])["where"] == "command"
    assert _edit(bench, job, 422, priority=2000, weight=5)["where"] == "priority"
    assert "never fit" in _edit(bench, job, 422, priority=7, workers={"min": 99, "max": 99})["what"]
    _edit(bench, job, 403, token=ANN_TOKEN, priority=1)
    assert queries.spec_of(bench.plane.live, job) == before
    bench.call("POST", f"/jobs/{job}/cancel")
    bench.pass_s(1)
    _edit(bench, job, 409, priority=1)

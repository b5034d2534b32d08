"""`submit --dry-run` at the service: the answer of a real forecast, and nothing changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from service_bench import ANN_TOKEN, BOB_TOKEN, OPERATOR_TOKEN, Bench

from trainmaster.dst.control_plane.inline_asgi import Call, exchange
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.estimate.speeds.learned import LearningEstimator
from trainmaster.service.control.forecasts import LiveForecasts
from trainmaster.stores.sqlite import SqliteStore


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path, SqliteStore(tmp_path / "trainmaster.db", durable=False))
    bench.start(live_forecasts=LiveForecasts(LearningEstimator(DeclaredSpeeds()), tmp_path / "trainmaster.db"))
    return bench


def preview(bench: Bench, **fields: object) -> list[dict[str, object]]:
    body = {"command": ["train"], "steps": 100, "steps_per_s": {"v100": 1.0}, **fields}
    reply = bench.call("POST", "/jobs/preview", body)
    assert reply.status == 200, reply.body
    return reply.json()["jobs"]


def test_an_empty_cluster_starts_it_at_once(bench: Bench) -> None:
    (job,) = preview(bench, deadline_s=400)
    assert job["starts"]["p50_s"] < 5  # type: ignore[index]
    assert job["eta"]["p50_s"] == pytest.approx(100, rel=0.3)  # type: ignore[index]
    assert job["slack_s"] == pytest.approx(300, rel=0.15)
    assert job["ends_as"] == "finished"
    assert job["work_known"] is True


def test_what_nobody_knows_is_said_to_be_unknown(bench: Bench) -> None:
    """Neither an amount of work nor a speed, nor one of them alone, tells a time."""
    for fields in ({"steps": None, "steps_per_s": {}}, {"steps_per_s": {}}, {"steps": None}):
        (job,) = preview(bench, **fields)
        assert job["work_known"] is False, fields
        assert job["eta_note"] == "unknown until it reports, or a job like it has finished"
        assert job["starts"]["p50_s"] < 5  # type: ignore[index]


def test_a_limit_ends_the_preview_and_is_named(bench: Bench) -> None:
    (job,) = preview(bench, steps=1000, time_s=60)
    assert job["eta"]["p50_s"] == pytest.approx(60, abs=4)  # type: ignore[index]
    assert (job["ends_as"], job["eta_note"]) == ("failed", "stopped at its limit --time 60 s")
    (job,) = preview(bench, steps=None, steps_per_s={}, time_s=60)
    assert job["work_known"] is False
    assert job["eta_note"] == (
        "unknown until it reports, or a job like it has finished; stopped at the latest by --time 60 s"
    )


def test_it_waits_behind_those_that_are_there_and_nothing_is_changed(bench: Bench) -> None:
    bench.submit(workers={"min": 4, "max": 4}, steps=200)
    bench.pass_s(5)
    before = bench.get("/jobs"), bench.get("/events"), bench.plane.next_job
    (job,) = preview(bench, workers={"min": 2, "max": 2})
    assert job["starts"]["p50_s"] == pytest.approx(195, rel=0.4)  # type: ignore[index]
    assert job["eta"]["p50_s"] > job["starts"]["p50_s"] + 60  # type: ignore[index, operator]
    assert (bench.get("/jobs"), bench.get("/events"), bench.plane.next_job) == before
    assert bench.submit() == "job-2"


def test_dependencies_and_arrays(bench: Bench) -> None:
    first = bench.submit(name="first")
    jobs = preview(bench, after=[first], array=3, workers={"min": 2, "max": 2})
    assert len(jobs) == 3
    assert min(job["starts"]["p50_s"] for job in jobs) == pytest.approx(100, rel=0.4)  # type: ignore[index]
    bench.pass_s(150)
    assert bench.state(first) == "finished"
    (job,) = preview(bench, after=[first])
    assert job["starts"]["p50_s"] < 5, "what it waits for has ended"  # type: ignore[index]


@pytest.mark.parametrize(
    ("fields", "status"),
    [({"workers": {"min": 9, "max": 9}}, 422), ({"after": ["nobody"]}, 404), ({"steps": -1}, 422), ({"x": 1}, 422)],
)
def test_what_a_submission_would_be_refused_for(bench: Bench, fields: dict[str, object], status: int) -> None:
    reply = bench.call("POST", "/jobs/preview", {"command": ["train"], **fields})
    assert reply.status == status
    assert bench.get("/jobs")["total"] == 0


def test_a_store_that_cannot_be_read_is_said(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bench.plane.live_forecasts is not None
    monkeypatch.setattr(bench.plane.live_forecasts, "database", Path("nowhere/at/all.db"))
    reply = bench.call("POST", "/jobs/preview", {"command": ["train"]})
    assert reply.status == 503
    assert "StoreError" in reply.json()["what"]


def test_no_answer_shows_another_users_environment(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every route that reads, while the job runs and when it has ended."""

    async def at_once(function: Callable[[], object]) -> object:  # there is no event loop here
        return function()

    monkeypatch.setattr("asyncio.to_thread", at_once)
    body = {"command": ["train"], "name": "anns", "env": {"API_KEY": "s3cret"}, "steps": 20, "array": 2}
    assert bench.call("POST", "/jobs", body, token=ANN_TOKEN).status == 201
    paths = [path.removeprefix("/api/v1").replace("{job}", "job-1") for path in _paths_read(bench)]
    assert {"/situation", "/jobs/job-1", "/jobs", "/events", "/nodes"} <= {*paths}
    for state in ("running", "finished"):
        bench.pass_s(5 if state == "running" else 100)
        assert bench.state("job-1") == state
        for path in paths:
            for token in (BOB_TOKEN, ANN_TOKEN, OPERATOR_TOKEN):
                reply = bench.call("GET", path, token=token)
                refused = path == "/experience" and token != OPERATOR_TOKEN
                assert reply.status == (403 if refused else 200) or path.endswith("/logs"), path
                shown = path in ("/jobs", "/jobs/job-1") and token != BOB_TOKEN
                assert (b"s3cret" in reply.body) == shown, path
        for action in ("preview", "job-1/cancel"):
            assert b"s3cret" not in bench.call("POST", f"/jobs/{action}", {"command": ["x"]}, token=BOB_TOKEN).body


def _paths_read(bench: Bench) -> list[str]:
    schema = exchange(bench.app, "", [Call("GET", "/openapi.json")], lambda r: bench.plane.batch(r))[0].json()
    return [path for path, verbs in schema["paths"].items() if "get" in verbs and path.startswith("/api/v1")]

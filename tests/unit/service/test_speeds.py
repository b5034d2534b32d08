"""Speeds that jobs declare, that `profile` brings and that jobs measure, over REST and across a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
from service_bench import ANN_TOKEN, Bench

from trainmaster.engine import queries
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.estimate.speeds.learned import LearningEstimator
from trainmaster.service.control.forecasts import LiveForecasts

JOB = {"command": ["x"], "model": "resnet", "batch_size": 32, "workers": {"min": 1, "max": 8}, "steps": 1e6}
PROFILED = {
    "model": "resnet",
    "batch_size": 32,
    "measured": [
        {"accelerator": "v100", "workers": 1, "steps_per_s": 10.0, "seconds": 10},
        {"accelerator": "v100", "workers": 8, "spread": True, "steps_per_s": 40.0, "seconds": 10},
    ],
}


def a_bench(tmp_path: Path, **more: object) -> Bench:
    bench = Bench(tmp_path, nodes="v100=8x4", **more)  # pyright: ignore[reportArgumentType]
    start(bench)
    return bench


def start(bench: Bench) -> None:
    live = LiveForecasts(LearningEstimator(DeclaredSpeeds()), Path("unused.db"))
    bench.start(live_forecasts=live)
    bench.plane.estimator = live.estimator
    bench.plane.open()


def p50(bench: Bench, job: str) -> dict[int, float]:
    return {row["workers"]: row["p50"] for row in bench.call("GET", f"/jobs/{job}/speeds").json()["speeds"]}


def test_a_declared_curve_gives_its_shape_and_its_level(tmp_path: Path) -> None:
    bench = a_bench(tmp_path)
    scaling = {"1": 10, "2": 19, "4": 34, "8": 30}
    job = bench.call("POST", "/jobs", {**JOB, "scaling": scaling}).json()["id"]
    assert bench.call("GET", f"/jobs/{job}").json()["request"]["scaling"] == scaling
    speeds = p50(bench, job)
    assert speeds[8] == pytest.approx(30, rel=0.05)
    assert speeds[8] < speeds[4] and speeds[2] / speeds[1] == pytest.approx(1.9, rel=0.08)


def test_what_was_profiled_serves_jobs_of_the_model_at_once_and_after_a_restart(tmp_path: Path) -> None:
    bench = a_bench(tmp_path)
    job = bench.call("POST", "/jobs", JOB).json()["id"]
    body = bench.call("GET", f"/jobs/{job}/speeds").json()
    assert not body["known"]
    assert bench.call("POST", "/speeds", PROFILED, token=ANN_TOKEN).status == 403
    assert bench.call("POST", "/speeds", {**PROFILED, "measured": []}).status == 422
    assert bench.call("POST", "/speeds", PROFILED).json() == {"profile": "model:resnet:32", "measured": 2}
    for again in (False, True):
        if again:
            bench.pass_s(20)
            start(bench)
        body = bench.call("GET", f"/jobs/{job}/speeds").json()
        measured = {row["workers"]: row["measured"] for row in body["speeds"] if row["measured"]}
        assert body["known"] and measured == pytest.approx({1: 10.0, 8: 40.0})
        assert p50(bench, job)[8] == pytest.approx(40.0, rel=0.02)
        assert 20 < p50(bench, job)[4] < 40
        rate = queries.speeds_of(bench.plane.live, job)["v100"]
        assert rate == pytest.approx(40.0, rel=0.02), "the engine's speed at the reference size"

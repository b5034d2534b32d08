"""A forecast goes by the rules of the service: limits end jobs, idle GPUs are offered to elastic ones."""

import json
from pathlib import Path
from typing import Any

import pytest
from service_bench import Bench

from trainmaster.engine import queries
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.estimate.speeds.learned import LearningEstimator
from trainmaster.forecast.forecast import Outlook
from trainmaster.forecast.rollout import roll
from trainmaster.forecast.situation import Situation, from_json, to_json
from trainmaster.forecast.whatif import Change, compare
from trainmaster.forecast.worker import answer, outlook_from_json
from trainmaster.forecast.worker_request import situation_of
from trainmaster.service.control.forecasts import LiveForecasts
from trainmaster.stores.sqlite import SqliteStore

SPEED: dict[str, Any] = {"steps_per_s": {"v100": 1.0}}
ALL: dict[str, Any] = {"workers": {"min": 4, "max": 4}}


def bench_in(tmp_path: Path, **options: Any) -> Bench:
    bench = Bench(tmp_path, SqliteStore(tmp_path / "trainmaster.db", durable=False), nodes="v100:1x4", **options)
    bench.start(live_forecasts=LiveForecasts(LearningEstimator(DeclaredSpeeds()), tmp_path / "trainmaster.db"))
    return bench


def question_of(bench: Bench) -> dict[str, Any]:
    assert bench.plane.live_forecasts is not None
    return bench.plane.live_forecasts.question(bench.plane, bench.clock.ms)


def situation_in(bench: Bench) -> Situation:
    """As `trainmaster whatif` gets it."""
    return from_json(json.loads(json.dumps(to_json(situation_of(question_of(bench))))))


def outlooks_of(bench: Bench) -> dict[str, Outlook]:
    reply = answer(json.dumps(question_of(bench)))
    assert "error" not in reply, reply
    return {job_id: outlook_from_json(data) for job_id, data in reply["outlooks"].items()}


def ended_s(bench: Bench, job: str) -> float:
    view = bench.get(f"/jobs/{job}")
    return view["ended"] - view["submitted"]


LIMITS = [("time", {"time_s": 60}, "--time 60 s"), ("budget", {"budget": 240}, "--budget 240")]


@pytest.mark.parametrize(("fields", "text"), [case[1:] for case in LIMITS], ids=[case[0] for case in LIMITS])
@pytest.mark.parametrize("policy", ["fifo", "srtf", "gavel-max-min"])
def test_a_limit_ends_a_job_and_frees_its_place_for_the_next(
    tmp_path: Path, fields: dict[str, Any], text: str, policy: str
) -> None:
    bench = bench_in(tmp_path, policy=policy, prices={"v100": 3600.0}, round_ms=20_000)
    limited = bench.submit(**SPEED, **ALL, **fields, steps=100)
    bench.pass_s(10)
    waiting = bench.submit(**SPEED, **ALL, steps=300, priority=-1)
    bench.pass_s(1)
    said = outlooks_of(bench)
    assert (said[limited].limit, said[limited].ends_as, said[limited].known) == (text, "failed", True)
    assert said[waiting].limit == ""
    comparison = compare(situation_in(bench), Change(remove_jobs=(waiting,)))
    assert comparison.after[limited].limit == text
    bench.pass_s(500)
    assert bench.state(limited) == "failed"
    if policy != "gavel-max-min":  # where the two take turns
        finish, start = said[limited].finish, said[waiting].start
        assert finish is not None and start is not None
        assert finish.p50_s == pytest.approx(ended_s(bench, limited) - 11, abs=4)
        started = bench.get(f"/jobs/{waiting}")
        assert start.p50_s == pytest.approx(started["started"] - started["submitted"] - 1, abs=4)
    assert comparison.after[limited].finish_s == pytest.approx(49, abs=4)


def test_a_limit_that_is_not_reached_changes_nothing(tmp_path: Path) -> None:
    bench = bench_in(tmp_path)
    job = bench.submit(**SPEED, steps=100, time_s=1000)
    bench.pass_s(1)
    said = outlooks_of(bench)[job]
    assert (said.limit, said.ends_as) == ("", "finished")


def test_limits_hold_beyond_the_horizon(tmp_path: Path) -> None:
    bench = bench_in(tmp_path)
    jobs = [bench.submit(**SPEED, **ALL, steps=1000, time_s=50) for _ in range(4)]
    bench.pass_s(1)
    situation = situation_in(bench)
    whole, rolled = roll(situation), roll(situation, decisions_max=2)
    ends_ms = {str(end.spec.id): end.ended_ms for end in whole.ended}
    assert list(ends_ms.values()) == pytest.approx([50_000, 100_000, 150_000, 200_000], abs=2_000)
    assert set(rolled.expected) == set(jobs[1:])
    assert rolled.expected[jobs[1]].end_ms == pytest.approx(ends_ms[jobs[1]], abs=2_000)
    length_ms = [rolled.expected[job].end_ms - (rolled.expected[job].start_ms or 0) for job in jobs[2:]]
    assert length_ms == pytest.approx([50_000, 50_000], abs=2_000)


@pytest.mark.parametrize("fill", [True, False])
@pytest.mark.parametrize("policy", ["fifo", "srtf"])
def test_the_future_offers_idle_gpus_to_elastic_jobs_as_the_service_does(
    tmp_path: Path, policy: str, fill: bool
) -> None:
    bench = bench_in(tmp_path, policy=policy, elastic_fill=fill)
    rigid = bench.submit(**SPEED, steps=40, workers={"min": 2, "max": 2})
    bench.pass_s(1)
    elastic = bench.submit(steps_per_s={"v100": 4.0}, steps=400, workers={"min": 1, "max": 4})
    bench.pass_s(2)
    future = roll(situation_in(bench))
    foretold = {str(end.spec.id): end.ended_ms for end in future.ended}
    bench.pass_s(400)
    for job in (rigid, elastic):
        view = bench.get(f"/jobs/{job}")
        assert view["state"] == "finished"
        actual_ms = (view["ended"] - bench.get(f"/jobs/{rigid}")["submitted"]) * 1000
        assert foretold[job] == pytest.approx(actual_ms, abs=6_000)
    assert (foretold[elastic] < 130_000) == fill, "the setting makes a difference"


def test_a_job_that_never_reports_has_less_left_the_longer_it_runs(tmp_path: Path) -> None:
    bench = bench_in(tmp_path)
    assert bench.plane.live_forecasts is not None
    profiles = bench.plane.live_forecasts.estimator.profiles
    plain, declared = bench.submit(steps=None), bench.submit(**SPEED, steps=300)
    for job in (plain, declared):
        spec = queries.spec_of(bench.plane.live, job)
        assert spec is not None
        for _ in range(9):
            profiles.add_seconds(spec, 300.0, "v100")
    bench.pass_s(5)
    assert set(question_of(bench)["situation"]["starting"]) == {declared}, "it may be loading"
    bench.pass_s(195)
    for outlook in outlooks_of(bench).values():
        assert outlook.finish is not None and outlook.basis == "9 jobs like it"
        assert outlook.finish.p50_s == pytest.approx(110, abs=40)

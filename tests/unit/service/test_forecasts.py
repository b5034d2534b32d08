"""What the service expects and learns: told of steps, kept in the store, shown in the metrics."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from trainmaster.engine.records import Ended
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.estimate.speeds.learned import LearningEstimator
from trainmaster.forecast.forecast import Band, Outlook
from trainmaster.forecast.worker_request import costs_of
from trainmaster.model import event as ev
from trainmaster.model.allocation import Allocation
from trainmaster.model.command import Launch, Stop
from trainmaster.model.job import JobId, JobSpec, Phase
from trainmaster.service.api.metrics import _forecast_metrics
from trainmaster.service.control.forecasts import ACCURACY, PROFILES, PUT_OFF_MS, SPEEDS, LiveForecasts
from trainmaster.testing.builders import a_measurement

JOB = JobSpec(JobId("job-1"), model="m", work_total=100.0, steps_per_s={"v100": 1.0})


def finished(spec: JobSpec, ended_ms: int) -> Ended:
    return Ended(spec, Phase.FINISHED, ended_ms, 0, 100.0, 100.0, 100.0, 0, 1)


@pytest.fixture
def live_forecasts() -> LiveForecasts:
    return LiveForecasts(LearningEstimator(DeclaredSpeeds()), Path("unused.db"))


def test_predictions_are_counted_from_now_judged_and_shown(live_forecasts: LiveForecasts) -> None:
    outlook = Outlook(Band(0, 1, 2, 3), Band(80, 100, 120, 130), "finished", True)
    live_forecasts.answered(0, 0.5, {"job-1": outlook})
    seen = live_forecasts.outlook("job-1", 30_000)
    assert seen is not None
    assert seen.finish == Band(50, 70, 90, 100)
    assert seen.start == Band(0, 0, 0, 0)
    live_forecasts.stepped(100_000, [], [], [finished(JOB, 100_000)])
    assert live_forecasts.outlook("job-1", 100_000) is None
    assert [row["inside_90_fraction"] for row in live_forecasts.accuracy_rows()] == [1.0] * 4
    shown = {
        family.name: family for family in _forecast_metrics(cast(Any, SimpleNamespace(live_forecasts=live_forecasts)))
    }
    assert shown["trainmaster_forecasts"].samples[0].value == 1
    assert [sample.value for sample in shown["trainmaster_eta_error_ratio"].samples] == [0.0] * 4


def asked_at(live_forecasts: LiveForecasts, monkeypatch: pytest.MonkeyPatch, cpu_s: float) -> list[int]:
    """When forecasts that cost so much are asked for; they are answered at once."""
    asked_ms: list[int] = []

    def answer_at_once(question: dict[str, int]) -> bool:
        asked_ms.append(question["now_ms"])
        live_forecasts.answered(question["now_ms"], cpu_s, {})
        return True

    live_forecasts.forecaster = cast(Any, SimpleNamespace(busy=False, ask=answer_at_once))
    monkeypatch.setattr(live_forecasts, "question", lambda _plane, now_ms: {"now_ms": now_ms})
    return asked_ms


def plane_with(n_commands: int) -> Any:
    rows = np.arange(max(n_commands, 1))
    pending = np.where(rows < n_commands, 1, 0)
    columns = SimpleNamespace(job_index_of={"job-1": 0}, ints={"pending_kind": pending}, rows=rows)
    return SimpleNamespace(live=SimpleNamespace(columns=columns))


def test_dear_forecasts_are_rare_and_rarer_while_nothing_happens(
    live_forecasts: LiveForecasts, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_ms = asked_at(live_forecasts, monkeypatch, 4.0)  # a tenth of a core is 40 s, a hundredth 400 s
    for now_ms in range(0, 600_000, 1_000):
        if now_ms in (420_000, 421_000):
            live_forecasts.stepped(now_ms, [ev.NodeJoined(0)], [], [])
            live_forecasts.wake(now_ms)
        live_forecasts.look_ahead(plane_with(0), now_ms)
    assert asked_ms == [0, 400_000, 440_000]


def test_forecasts_wait_while_many_jobs_are_being_started_but_not_for_ever(
    live_forecasts: LiveForecasts, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_ms = asked_at(live_forecasts, monkeypatch, 0.001)
    for now_ms in range(0, 200_000, 1_000):
        live_forecasts.stepped(now_ms, [ev.NodeJoined(0)], [], [])
        live_forecasts.look_ahead(plane_with(100 if now_ms < 50_000 else 5), now_ms)
    assert asked_ms[0] == 50_000
    asked_ms.clear()
    for now_ms in range(200_000, 400_000, 1_000):
        live_forecasts.stepped(now_ms, [ev.NodeJoined(0)], [], [])
        live_forecasts.look_ahead(plane_with(100), now_ms)
    assert asked_ms[0] - 200_000 >= PUT_OFF_MS
    assert asked_ms, "what was started may never answer"


def test_what_was_learned_survives_a_restart(live_forecasts: LiveForecasts) -> None:
    live_forecasts.estimator.observe(a_measurement(JOB, "v100", 2.0))
    live_forecasts.stepped(1_000, [], [Stop(JobId("job-1"), 1, 7, "moved")], [])
    live_forecasts.stepped(3_000, [ev.Stopped(JobId("job-1"), 1, 10.0)], [], [])
    live_forecasts.stepped(9_000, [], [], [finished(JOB, 9_000)])
    documents = live_forecasts.documents(20_000)
    assert set(documents) == {PROFILES, SPEEDS, ACCURACY}
    assert live_forecasts.documents(20_001) == {}, "not at every step"
    again = LiveForecasts(LearningEstimator(DeclaredSpeeds()), Path("unused.db"))
    again.opened(documents.get)
    assert again.estimator.profiles.cost_ms("stop") == 2000
    alike = JobSpec(JobId("job-2"), model="m", work_total=5.0, steps_per_s={"v100": 1.0})
    assert again.estimator.profile(alike, ("v100",))[0].tolist() == pytest.approx([2.0], rel=1e-4)


@pytest.mark.parametrize("begins_with", [0.0, float("nan")], ids=["measured", "not measured"])
def test_a_launch_costs_until_the_first_progress_shows_that_it_works(
    live_forecasts: LiveForecasts, begins_with: float
) -> None:
    job = JobId("job-1")
    live_forecasts.stepped(1_000, [], [Launch(job, 1, 1, Allocation(0, ()), JOB)], [])
    live_forecasts.stepped(1_500, [ev.Started(job, 1, begins_with, 1_500)], [], [])
    assert live_forecasts.estimator.profiles.cost_ms("launch") == 0, "a process that runs need not work yet"
    assert set(live_forecasts._awaited) == {"job-1"}
    live_forecasts.stepped(11_000, [ev.Progressed(job, 1, 4.0, 11_000, rate=2.0)], [], [])
    assert live_forecasts.estimator.profiles.cost_ms("launch") == pytest.approx(8_000, abs=1)
    assert not live_forecasts._awaited
    live_forecasts.stepped(20_000, [], [Launch(job, 2, 2, Allocation(0, ()), JOB)], [])
    live_forecasts.stepped(21_000, [ev.Started(job, 2, 4.0, 21_000)], [], [])
    live_forecasts.stepped(50_000, [], [], [finished(JOB, 50_000)])
    assert live_forecasts.estimator.profiles.cost_ms("restart") == pytest.approx(1_000, abs=1), "it never reported"


def test_how_long_an_end_takes_is_counted_from_the_report_that_all_is_done(live_forecasts: LiveForecasts) -> None:
    def ends(reported: float, ended_ms: int) -> int:
        live_forecasts.stepped(100_000, [ev.Progressed(JobId("job-1"), 1, reported, 100_000, 1.0)], [], [])
        live_forecasts.stepped(ended_ms, [], [], [finished(JOB, ended_ms)])
        return live_forecasts.estimator.profiles.cost_ms("exit")

    assert ends(90.0, 111_000) == 0, "a job that never said so tells nothing"
    assert ends(100.0, 101_500) == 1500
    assert costs_of(live_forecasts.estimator.profiles).exit_ms == 1500

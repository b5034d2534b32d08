"""Progress, speed and loss that are shown are those reported; estimates are for ETAs alone."""

from pathlib import Path

import pytest
from service_bench import Bench

from trainmaster.engine import queries
from trainmaster.model import event as ev
from trainmaster.model.job import JobId


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def _report(bench: Bench, job: str, work: float, rate: float | None = 10.0, loss: float | None = 0.5) -> None:
    generation = queries.generation_of(bench.plane.live, job)
    assert generation is not None
    bench.plane.batch([], [ev.Progressed(JobId(job), generation, work, bench.clock.ms, rate, loss)])


def test_a_job_that_hangs_shows_its_last_report_and_its_age(bench: Bench) -> None:
    job = bench.submit(steps=600, steps_per_s={"v100": 10.0})
    bench.pass_s(1)
    _report(bench, job, 50)
    bench.clock.ms += 10_000
    shown = bench.get(f"/jobs/{job}")["progress"]
    assert (shown["work_done"], shown["rate"], shown["loss"]) == (50, 10.0, 0.5)
    assert shown["age_s"] == pytest.approx(10)


def test_before_the_first_report_nothing_is_invented(bench: Bench) -> None:
    job = bench.submit(steps=600, steps_per_s={"v100": 10.0})
    bench.pass_s(8)
    shown = bench.get(f"/jobs/{job}")["progress"]
    assert (shown["work_done"], shown["rate"], shown["age_s"]) == (0, None, None)


def test_after_a_restart_no_more_is_shown_than_was_reported(bench: Bench) -> None:
    job = bench.submit(steps=1050, steps_per_s={"v100": 10.0})
    bench.pass_s(1)
    _report(bench, job, 679)
    bench.start()
    bench.clock.ms += 12_000
    assert bench.get(f"/jobs/{job}")["progress"]["work_done"] <= 679


def test_a_running_job_has_no_exit(bench: Bench) -> None:
    job = bench.submit(steps=600, steps_per_s={"v100": 1.0})
    bench.pass_s(1)
    bench.plane.exits[job] = "stopped"
    assert bench.get(f"/jobs/{job}")["exit"] is None

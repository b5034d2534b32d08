"""What is kept: the history and its folders, the policy in force over a change of leader, pages within namespaces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from service_bench import ANN_TOKEN, Bench, HandClock

from trainmaster.engine import queries
from trainmaster.model import event as ev
from trainmaster.model.job import JobId
from trainmaster.service.api.views import Views
from trainmaster.service.control.control_plane import Listeners, Retention
from trainmaster.service.local.home import Home
from trainmaster.testing.builders import a_job

DAY_S = 86_400


def _folders(home: Path) -> set[str]:
    return {f"{folder}/{entry.name}" for folder in ("jobs", "checkpoints") for entry in (home / folder).iterdir()}


def _make_folders(home: Path, *job_ids: str) -> None:
    for job_id in job_ids:
        for folder in ("jobs", "checkpoints"):
            (home / folder / job_id / "1").mkdir(parents=True)


def test_logs_and_checkpoints_go_with_the_history(tmp_path: Path) -> None:
    home = Home(tmp_path)
    bench = Bench(tmp_path)
    bench.start(retention=Retention(days=1.0), listeners=Listeners(forgotten=home.remove_jobs))
    short, long = bench.submit(steps=5), bench.submit(steps=1e9)
    _make_folders(tmp_path, short, long)
    bench.pass_s(60)
    assert bench.state(short) == "finished"
    bench.pass_s(DAY_S / 2)
    assert len(_folders(tmp_path)) == 4, "within the time"
    bench.pass_s(DAY_S)
    assert bench.call("GET", f"/jobs/{short}").status == 404
    assert _folders(tmp_path) == {f"jobs/{long}", f"checkpoints/{long}"}, "what runs keeps its folders"


def test_folders_that_a_crash_left_are_found(tmp_path: Path) -> None:
    home = Home(tmp_path)
    _make_folders(tmp_path, "job-1", "job-2", "job-3", "job-9")
    (tmp_path / "jobs" / "notes").mkdir()
    # 9 was never given by this store: it may come from a newer copy of it.
    assert home.orphans({"job-2"}, next_job=4) == ["job-1", "job-3"]


def test_a_page_within_namespaces_is_full(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for k in range(1, 11):
        space = "vision" if k > 6 else "speech"
        spec = replace(a_job(f"job-{k}", seconds=1.0), payload={"namespace": space})
        bench.plane.batch([], [ev.JobSubmitted(spec)])
    bench.pass_s(600)
    assert queries.n_active(bench.plane.live) == 0
    page = Views(bench.plane).jobs(None, None, None, 2, None, frozenset({"vision"}))
    assert [job["id"] for job in page["jobs"]] == ["job-7", "job-8"]
    assert page["total"] == 4
    rest = Views(bench.plane).jobs(None, None, None, 2, page["cursor"], frozenset({"vision"}))
    assert [job["id"] for job in rest["jobs"]] == ["job-9", "job-10"]
    assert rest["cursor"] is None


def _policy_after_start(bench: Bench, option: str | None, keep: bool = True) -> str:
    bench.start(force_policy=option, keep_policy=keep)
    bench.plane.batch([], [ev.JobCancelled(JobId("nobody"))])
    return bench.plane.policy_name


def test_the_policy_in_force_survives_a_change_of_leader(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert _policy_after_start(bench, "srtf") == "srtf"
    assert bench.call("PUT", "/policy", {"policy": "las"}).status == 200
    assert _policy_after_start(bench, "srtf") == "las", "a new leader with the same option"
    assert _policy_after_start(bench, "fifo") == "fifo", "an operator who changes the option means it"
    assert _policy_after_start(bench, None) == "fifo"
    assert _policy_after_start(bench, "srtf", keep=False) == "srtf"


class SetClock(HandClock):
    """A wall clock that somebody sets; `elapsed_ms` counts on."""

    set_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.set_ms


@pytest.mark.parametrize("days", [40, 6, -40])
def test_a_wall_clock_that_was_set_deletes_nothing_and_dates_new_jobs_as_it_shows(tmp_path: Path, days: int) -> None:
    clock = SetClock()
    bench = Bench(tmp_path, clock=clock)
    bench.start(retention=Retention(days=5.0))
    old = bench.submit(steps=5)
    bench.pass_s(DAY_S)
    was = bench.get(f"/jobs/{old}")["submitted"]
    clock.set_ms = days * DAY_S * 1000
    bench.start(retention=Retention(days=5.0))
    bench.pass_s(2 * 3600)
    assert bench.get(f"/jobs/{old}")["submitted"] == was, "kept, and dated as it was"
    wrong = bench.submit(name="while-wrong")
    assert bench.get(f"/jobs/{wrong}")["submitted"] == pytest.approx(clock.wall_ms() / 1000, abs=61)
    clock.set_ms = 0  # right again, while the service runs
    bench.pass_s(60)
    right = bench.submit(name="right-again")
    assert bench.get(f"/jobs/{right}")["submitted"] == pytest.approx(clock.wall_ms() / 1000, abs=61)
    bench.start(retention=Retention(days=5.0))
    assert bench.get(f"/jobs/{right}")["submitted"] == pytest.approx(clock.wall_ms() / 1000, abs=61)
    assert bench.get(f"/jobs/{old}")["submitted"] == was
    in_doubt = bench.get("/service")["clock_jump_s"] != 0
    assert in_doubt == (days == 6), "set back, there is nothing to confirm; but six days may have passed without us"
    bench.call("PUT", "/clock", {"confirmed": True})
    for _ in range(5):
        bench.pass_s(DAY_S)
    assert bench.call("GET", f"/jobs/{old}").status == 404, "it is forgotten when it is old by our own count"


@pytest.mark.parametrize("while_running", [True, False])
@pytest.mark.parametrize("days", [40, -40])
def test_after_a_jump_nothing_is_deleted_for_its_age_until_the_operator_confirms(
    tmp_path: Path, days: int, while_running: bool
) -> None:
    clock, keep = SetClock(), Retention(days=0.1)
    bench = Bench(tmp_path, clock=clock)
    bench.start(retention=keep)
    old = bench.submit(steps=5)
    bench.pass_s(60)
    clock.set_ms = days * DAY_S * 1000
    if not while_running:
        bench.start(retention=keep)
    for _ in range(3):
        bench.pass_s(9_000)
        bench.submit(steps=5)
    bench.start(retention=keep)
    bench.pass_s(120)
    assert bench.get("/service")["clock_jump_s"] == pytest.approx(days * DAY_S, abs=60)
    assert bench.state(old) == "finished"
    assert bench.call("PUT", "/clock", {"confirmed": True}, token=ANN_TOKEN).status == 403
    bench.pass_s(3_700)
    assert bench.state(old) == "finished", "users cannot"
    assert bench.call("PUT", "/clock", {"confirmed": True}).json()["clock_jump_s"] == 0
    bench.start(retention=keep)
    assert bench.get("/service")["clock_jump_s"] == 0, "kept over a restart"
    bench.pass_s(3_700)
    assert bench.call("GET", f"/jobs/{old}").status == 404


@pytest.mark.parametrize("away_s", [600, 3 * DAY_S])
def test_a_weekend_without_service_is_to_be_confirmed_by_nobody(tmp_path: Path, away_s: int) -> None:
    bench = Bench(tmp_path)
    bench.submit(steps=5)
    bench.pass_s(60)
    bench.clock.ms += away_s * 1000
    bench.start()
    assert bench.get("/service")["clock_jump_s"] == 0


def test_sleep_and_short_absences_are_time_that_passed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.submit(steps=1e9, deadline_s=3600)
    before = bench.plane.now_ms
    bench.clock.ms += 7_200_000  # the lid was closed: both clocks went on
    bench.pass_s(1)
    assert bench.plane.now_ms >= before + 7_200_000

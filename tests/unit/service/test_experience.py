"""Experience of a live service: one row for a step, its bounds, what survives, and that nothing rests on it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from service_bench import ANN_TOKEN, Bench

from trainmaster.engine.ports import Archive, Commit, StoreError
from trainmaster.service.control.experience import DOCUMENT, IN_DATABASE, IN_JOURNAL, QUIET_MS, Bounds
from trainmaster.stores.journal import BlobTaken, JournalStore
from trainmaster.stores.memory import MemoryStore
from trainmaster.stores.sqlite import SqliteStore

JOB = {"steps_per_s": {"v100": 1}, "steps": 1000}


class _Blobs(dict[str, bytes]):
    """ConfigMaps that hold as they should."""

    def create(self, name: str, data: bytes) -> None:
        if name in self:
            raise BlobTaken
        self[name] = data

    def read(self, name: str) -> bytes | None:
        return self.get(name)

    def read_all(self) -> dict[str, bytes]:
        return dict(self)

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self.pop(name, None)


def _rows(bench: Bench) -> list[dict[str, Any]]:
    rows, after = [], 0
    while True:
        page = bench.get("/experience", query=f"after={after}")
        if not page["rows"]:
            return rows
        rows += page["rows"]
        after = page["next"]


def _stores(folder: Path) -> dict[str, Archive]:
    return {"memory": MemoryStore(), "database": SqliteStore(folder / "db", durable=False),
            "journal": JournalStore(_Blobs(), "w")}  # fmt: skip


@pytest.mark.parametrize("policy", ["fifo", "drf", "gavel-max-min", "oasis:slot_s=600", "deadline", "dl2"])
def test_state_actions_and_reward_under_any_policy(tmp_path: Path, policy: str) -> None:
    bench = Bench(tmp_path, policy=policy, round_ms=60_000)
    first = bench.submit(**JOB, workers={"min": 1, "max": 2}, name="a")
    bench.pass_s(100)
    second = bench.submit(**JOB, name="b")
    bench.pass_s(4000)
    rows = _rows(bench)
    assert [row["number"] for row in rows] == list(range(len(rows)))
    assert {row["policy"] for row in rows} == {policy}
    actions = [action for row in rows for action in row["actions"]]
    launched = {action["job"]: action for action in actions if action["kind"] == "launch"}
    assert launched.keys() == {first, second}
    assert (launched[second]["workers"], launched[second]["accelerator"]) == (1, "v100")
    state = rows[0]["state"]
    assert (state["types"], state["gpus"], state["jobs"]["id"]) == (["v100"], [4], [first])
    assert state["free_gpus"] == [4 - state["jobs"]["workers"][0]]
    work = {job: sum(row["reward"]["work"].get(job, 0.0) for row in rows) for job in (first, second)}
    assert work == pytest.approx({first: 1.0, second: 1.0}, abs=1e-4)
    ended = [end for row in rows for end in row["reward"]["ended"].items()]
    assert sorted(ended) == sorted([(first, "finished"), (second, "finished")])


def test_refusals_and_stops_are_actions(tmp_path: Path) -> None:
    bench = Bench(tmp_path, policy="deadline")
    late = bench.submit(**JOB, deadline_s=1)
    gone = bench.submit(**JOB)
    bench.pass_s(5)
    bench.call("POST", f"/jobs/{gone}/cancel")
    bench.pass_s(5)
    rows = _rows(bench)
    told = {(action["kind"], action["job"]) for row in rows for action in row["actions"]}
    assert {("reject", late), ("launch", gone), ("stop", gone)} <= told
    assert {job: how for row in rows for job, how in row["reward"]["ended"].items()} == {gone: "cancelled"}


@pytest.mark.parametrize("which", ["memory", "database", "journal"])
def test_it_is_bounded_and_outlives_the_process(tmp_path: Path, which: str) -> None:
    """The ring takes the place of its oldest rows; a new process goes on behind the last one that was committed."""
    store, bounds = _stores(tmp_path)[which], Bounds(rows=5, row_bytes=1500, period_ms=1000)
    bench = Bench(tmp_path, store=store)
    bench.start(experience=bounds)
    for _ in range(8):  # of which four start: to leave a job waiting is a decision too
        bench.submit(**JOB)
        bench.pass_s(2)
    before = _rows(bench)
    assert [row["number"] for row in before] == [3, 4, 5, 6, 7]
    bench.start(experience=bounds)  # as after kill -9: nothing was said goodbye to
    assert _rows(bench) == before
    bench.submit(**JOB)
    bench.pass_s(2)
    assert [row["number"] for row in _rows(bench)] == [4, 5, 6, 7, 8]
    kept = [store.document(f"{DOCUMENT}{k}") for k in range(6)]
    assert kept[5] is None
    assert max(len(json.dumps(row, separators=(",", ":"))) for row in kept[:5]) <= bounds.row_bytes


@pytest.mark.parametrize("bounds", [IN_DATABASE, IN_JOURNAL])
def test_a_row_has_room_for_some_of_very_many_jobs(tmp_path: Path, bounds: Bounds) -> None:
    bench = Bench(tmp_path, nodes="v100=64x8")
    bench.start(experience=bounds)
    bench.submit(**JOB, array=300, name="x" * 60, entity="y" * 60)
    bench.pass_s(11)
    bench.call("POST", "/jobs", {"command": ["x"], **JOB})
    bench.pass_s(11)
    for row in _rows(bench):
        assert len(json.dumps(row, separators=(",", ":"))) <= bounds.row_bytes
        assert len(row["state"]["jobs"]["id"]) + row["state"]["left_out"] in (300, 301)
        workers = row["state"]["jobs"]["workers"]
        assert len(workers) > 8 and workers == sorted(workers, reverse=True), "who runs is first"
    launches = sum(len(row["actions"]) + row["actions_left_out"] for row in _rows(bench))
    assert launches == 64


def test_rows_are_written_as_seldom_as_said(tmp_path: Path) -> None:
    """Submissions in one second are one row; with no action, running jobs make one a minute; an idle service none."""
    bench = Bench(tmp_path)
    for _ in range(20):
        bench.submit(**JOB)
        bench.pass_s(0.1)
    assert len(_rows(bench)) <= 3
    bench.pass_s(10)
    many = len(_rows(bench))
    bench.pass_s(600)
    assert many + 5 <= len(_rows(bench)) <= many + 600_000 // QUIET_MS
    for job in bench.get("/jobs")["jobs"]:
        bench.call("POST", f"/jobs/{job['id']}/cancel")
    bench.pass_s(5)
    over = len(_rows(bench))
    bench.pass_s(3600)
    assert len(_rows(bench)) == over


def test_a_commit_that_fails_leaves_no_row(tmp_path: Path) -> None:
    class Failing(MemoryStore):
        broken = False

        def commit(self, commit: Commit) -> None:
            if self.broken:
                raise StoreError("the disk is full")
            super().commit(commit)

    store = Failing()
    bench = Bench(tmp_path, store=store)
    bench.submit(**JOB)
    bench.pass_s(2)
    rows = _rows(bench)
    store.broken = True
    assert bench.call("POST", "/jobs", {"command": ["x"], **JOB}).status == 503
    store.broken = False
    bench.pass_s(5)
    assert _rows(bench)[: len(rows)] == rows
    assert all(row["state"]["left_out"] == 0 and len(row["state"]["jobs"]["id"]) == 1 for row in _rows(bench))


def test_a_fault_in_it_harms_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path)
    monkeypatch.setattr(bench.plane.experience, "stepped", lambda *_: 1 / 0)
    monkeypatch.setattr(bench.plane.experience, "documents", lambda *_: 1 / 0)
    job = bench.submit(**JOB)
    bench.pass_s(2)
    assert bench.state(job) == "running"
    assert any("experience was set aside" in event["text"] for event in bench.get("/events")["events"])


def test_only_operators_read_it(tmp_path: Path) -> None:
    assert Bench(tmp_path).call("GET", "/experience", token=ANN_TOKEN).status == 403

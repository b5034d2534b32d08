"""Stores of version 0.1 open: jobs in every phase, policy state, history and events are there, and all jobs end in the
state in which they ended under that version (when they end depends on speeds, which are estimated otherwise now)."""

import base64
import gzip
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import service_bench
from service_bench import Bench, HandClock

from trainmaster.engine.ports import Archive
from trainmaster.model.job import Phase
from trainmaster.sim.truth import TruthOptions
from trainmaster.stores.journal import JournalStore
from trainmaster.stores.sqlite import SqliteStore

PINS = Path(__file__).parent / "v0_1"
POLICIES = sorted(path.name.removesuffix(".db.gz") for path in PINS.glob("*.db.gz"))
WITH_STATE = ["deadline", "gavel-max-min", "oasis", "tiresias"]


@pytest.fixture(autouse=True)
def same_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """As slow to launch, stop and resize as the world in which the pins were made."""
    options = TruthOptions(
        launch_ms=4_000, stop_ms=4_000, resize_cost_ms=4_000, report_ms=5_000, report_period_ms=30_000
    )
    monkeypatch.setattr(service_bench, "TruthOptions", lambda: options)


def unpack(policy: str, folder: Path) -> Path:
    path = folder / "trainmaster.db"
    path.write_bytes(gzip.decompress((PINS / f"{policy}.db.gz").read_bytes()))
    return path


def reopen(store: Archive, folder: Path, expected: dict[str, Any]) -> Bench:
    """A service of today on that store, at the moment at which the old one stopped."""
    clock = HandClock()
    clock.ms = expected["clock_ms"]
    return Bench(folder, store, expected["nodes"], expected["policy"], clock)


def check(bench: Bench, expected: dict[str, Any]) -> None:
    assert bench.get("/service")["policy"] == expected["policy"]
    jobs = {job["id"]: job for job in bench.get("/jobs", query="limit=500")["jobs"]}
    assert list(jobs) == [job["id"] for job in expected["jobs"]]
    for before in expected["jobs"]:
        now = jobs[before["id"]]
        assert before["request"].items() <= now["request"].items()
        hidden = {"exit"} if now["state"] == "running" else set()  # a running job showed how an attempt before it ended
        for key in before.keys() - {"request"} - hidden:
            assert now[key] == before[key], (before["name"], key)
    events = [[event["kind"], event["job"]] for event in bench.get("/events", query="limit=500")["events"]]
    assert events[: len(expected["events"])] == expected["events"]
    for before, now in zip(expected["entities"], bench.get("/entities"), strict=True):
        assert before.items() <= now.items()


def ends(bench: Bench) -> dict[str, list[Any]]:
    bench.call("POST", "/jobs/late/cancel")
    bench.pass_s(14_400)
    return {job["id"]: [job["state"], job["ended"]] for job in bench.get("/jobs", query="limit=500")["jobs"]}


def states(found: dict[str, list[Any]]) -> dict[str, str]:
    return {job: state for job, (state, _) in found.items()}


def test_pins_hold_every_phase(pinned: Callable[[str], Any]) -> None:
    found = {job["phase"] for expected in pinned("expected").values() for job in expected["jobs"]}
    assert found == {phase.name.lower() for phase in Phase}


@pytest.mark.parametrize("policy", POLICIES)
def test_database(policy: str, tmp_path: Path, pinned: Callable[[str], Any]) -> None:
    expected = pinned("expected")[policy]
    store = SqliteStore(unpack(policy, tmp_path), durable=False)
    bench = reopen(store, tmp_path, expected)
    check(bench, expected)
    if policy in WITH_STATE:
        assert states(ends(bench)) == states(expected["later"])
    store.close()


@pytest.mark.parametrize("policy", ["deadline", "gavel-max-min", "oasis"])
def test_policy_state_matters(policy: str, tmp_path: Path, pinned: Callable[[str], Any]) -> None:
    """Without it jobs end otherwise: what was stored is used."""
    expected = pinned("expected")[policy]
    with_memory = SqliteStore(unpack(policy, tmp_path), durable=False)
    remembered = ends(reopen(with_memory, tmp_path, expected))
    with_memory.close()
    path = unpack(policy, tmp_path)
    with sqlite3.connect(path) as connection:
        ((text,),) = connection.execute("SELECT value FROM meta WHERE key = 'engine'").fetchall()
        forgetful = json.dumps(json.loads(text) | {"memo": {}, "memo_shapes": {}})
        connection.execute("UPDATE meta SET value = ? WHERE key = 'engine'", [forgetful])
        for job_id, record in connection.execute("SELECT id, record FROM job").fetchall():
            forgetful = json.dumps(json.loads(record) | {"memo": {}})
            connection.execute("UPDATE job SET record = ? WHERE id = ?", [forgetful, job_id])
    store = SqliteStore(path, durable=False)
    assert ends(reopen(store, tmp_path, expected)) != remembered
    store.close()


class ConfigMaps:
    """The pinned ConfigMaps as the journal sees them."""

    def __init__(self, config_maps: list[dict[str, Any]]) -> None:
        self.blobs = {
            each["metadata"]["name"].removeprefix("trainmaster-state-"): base64.b64decode(each["binaryData"]["blob"])
            for each in config_maps
        }

    def create(self, name: str, data: bytes) -> None:
        assert name not in self.blobs
        self.blobs[name] = data

    def read(self, name: str) -> bytes | None:
        return self.blobs.get(name)

    def read_all(self) -> dict[str, bytes]:
        return dict(self.blobs)

    def delete(self, names: Any) -> None:
        for name in names:
            del self.blobs[name]


def test_journal(tmp_path: Path, pinned: Callable[[str], Any]) -> None:
    expected = pinned("expected")["journal"]
    store = JournalStore(ConfigMaps(pinned("journal")), "writer-2")
    bench = reopen(store, tmp_path, expected)
    check(bench, expected)
    bench.submit(name="new")
    again = JournalStore(store._blobs, "writer-3").load_active()
    assert any(record["spec"]["name"] == "new" for record in again.jobs.values())

"""Writes the files beside it: what one version of Trainmaster leaves on disk and offers to others.

They were made once, by commit 6920880 (version 0.1), and are never made again by a later one:

    PYTHONPATH=tests/unit/service python make_pins.py OUT      # in a checkout of that commit
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import service_bench  # pyright: ignore[reportMissingImports]
from click.testing import CliRunner

from trainmaster.backends.kubernetes.resources.crd import crd
from trainmaster.cli import main
from trainmaster.model.job import Phase
from trainmaster.sim.truth import TruthOptions
from trainmaster.stores import journal
from trainmaster.stores.sqlite import SqliteStore

NODES = "v100=12x4,k80=8x4"
POLICIES = ("fifo", "srtf", "tiresias", "deadline", "elasticflow", "gavel-max-min", "oasis", "das", "dl2")
SPEED = {"v100": 10.0, "k80": 3.0}


class Blobs:
    """As ConfigMaps keep them."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    def create(self, name: str, data: bytes) -> None:
        if name in self.blobs:
            raise journal.BlobTaken(name)
        self.blobs[name] = data

    def read(self, name: str) -> bytes | None:
        return self.blobs.get(name)

    def read_all(self) -> dict[str, bytes]:
        return dict(self.blobs)

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self.blobs.pop(name, None)


def live_through(bench: Any) -> None:
    """Some minutes with every kind of job and end; then a moment in which as much as possible is under way."""
    submit, post = bench.submit, lambda path, body=None: bench.call("POST", path, body)
    bench.call("PUT", "/entities/vision", {"weight": 2.0, "quota_gpus": 12})
    elastic = {"steps_per_s": SPEED, "utility": None, "model": "resnet", "workers": {"min": 1, "max": 4}}
    submit(name="done", steps=50, steps_per_s=SPEED)
    failed = submit(name="failed", steps=9000, steps_per_s=SPEED, max_attempts=1)
    cancelled = submit(name="cancelled", steps=9000, steps_per_s=SPEED)
    bench.pass_s(20)
    bench.world.crash(failed)
    post(f"/jobs/{cancelled}/cancel")
    bench.pass_s(20)
    paused = submit(name="paused", steps=9000, steps_per_s=SPEED)
    lost = submit(name="gang", steps=40000, gpus_per_worker=4, workers={"min": 2, "max": 2}, steps_per_s=SPEED)
    elastic_id = submit(name="elastic", steps=40000, entity="vision", deadline_s=7200, **elastic)
    submit(name="soft", steps=9000, deadline_s=3600, deadline_kind="soft", steps_per_s=SPEED)
    submit(name="late", steps=9e6, deadline_s=60, steps_per_s=SPEED)
    bench.pass_s(30)
    post(f"/jobs/{paused}/pause")
    bench.pass_s(30)
    running = submit(name="to-stop", steps=20000, steps_per_s=SPEED)
    submit(name="array", steps=20000, steps_per_s=SPEED, array=4, env={"A": "1"}, entity="text", request_id="once")
    submit(name="servers", steps=20000, servers={"min": 1, "max": 1}, **elastic)
    for k in range(6):
        submit(name=f"promised-{k}", steps=24000, deadline_s=6000 + 500 * (k % 3), **elastic)
    submit(name="after", steps=100, steps_per_s=SPEED, after=["gang"], priority=5)
    submit(name="half", steps=20000, gpus_per_worker=0.5, steps_per_s=SPEED)
    submit(name="big", steps=100, gpus_per_worker=4, workers={"min": 3, "max": 3}, steps_per_s=SPEED)
    bench.pass_s(400)
    node = next(iter(bench.get(f"/jobs/{lost}")["allocation"]), None)
    if node is not None:
        bench.world.cut([each.id for each in bench.cluster.nodes].index(node["node"]))
        bench.pass_s(17)
    post(f"/jobs/{running}/cancel")
    submit(name="short", steps=10, steps_per_s=SPEED)
    submit(name="short2", steps=10, gpus_per_worker=4, steps_per_s=SPEED)
    bench.pass_s(1)
    post(f"/jobs/{elastic_id}/resize", {"workers": {"min": 3, "max": 3}})


def told(bench: Any) -> dict[str, Any]:
    """What users see of it."""
    shown = ("id", "name", "state", "phase", "attempts", "preemptions", "allocation", "submitted", "ended", "exit")
    jobs = bench.get("/jobs", query="limit=500")["jobs"]
    return {
        "clock_ms": bench.clock.ms,
        "nodes": NODES,
        "policy": bench.get("/service")["policy"],
        "jobs": [{key: job[key] for key in shown} | {"request": job["request"]} for job in jobs],
        "events": [[e["kind"], e["job"]] for e in bench.get("/events", query="limit=500")["events"]],
        "entities": bench.get("/entities"),
    }


def later(database: Path, policy: str, clock: Any) -> dict[str, list[Any]]:
    """How every job ends when a service opens the store on an empty machine at that moment."""
    store = SqliteStore(database, durable=False)
    bench = service_bench.Bench(database.parent, store, NODES, policy, clock)
    bench.call("POST", "/jobs/late/cancel")
    bench.pass_s(14_400)
    jobs = bench.get("/jobs", query="limit=500")["jobs"]
    store.close()
    return {job["id"]: [job["state"], job["ended"]] for job in jobs}


def stores(out: Path) -> None:
    service_bench.TruthOptions = lambda: TruthOptions(  # pyright: ignore[reportAttributeAccessIssue]
        launch_ms=4_000, stop_ms=4_000, resize_cost_ms=4_000, report_ms=5_000, report_period_ms=30_000
    )
    journal.PART_BYTES = 3_000  # so that there are parts
    phases: set[str] = set()
    expected = {}
    for policy in POLICIES:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trainmaster.db"
            store = SqliteStore(path, durable=False)
            bench = service_bench.Bench(Path(folder), store, NODES, policy)
            live_through(bench)
            expected[policy] = told(bench)
            phases |= {job["phase"] for job in expected[policy]["jobs"]}
            store.close()
            with sqlite3.connect(path) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                connection.execute("PRAGMA journal_mode=DELETE")
            connection.execute("VACUUM")
            connection.close()
            packed = gzip.compress(path.read_bytes(), 9, mtime=0)
            (out / f"{policy}.db.gz").write_bytes(packed)
            expected[policy]["later"] = later(path, policy, bench.clock)
            print(policy, len(packed), sorted({job["phase"] for job in expected[policy]["jobs"]}))
    blobs = Blobs()
    store = journal.JournalStore(blobs, "writer-1", snapshot_entries=25)
    with tempfile.TemporaryDirectory() as folder:
        bench = service_bench.Bench(Path(folder), store, NODES, "deadline")
        live_through(bench)
        expected["journal"] = told(bench)
    store.close()
    config_maps = [
        {
            "apiVersion": "v1", "kind": "ConfigMap", "immutable": True,
            "metadata": {"name": f"trainmaster-state-{name}", "labels": {"trainmaster.dev/state": "trainmaster"}},
            "binaryData": {"blob": base64.b64encode(data).decode()},
        }
        for name, data in sorted(blobs.blobs.items())
    ]  # fmt: skip
    _write(out / "journal.json.gz", config_maps)
    print("journal", sorted(blobs.blobs))
    _write(out / "expected.json.gz", expected)
    missing = {phase.name.lower() for phase in Phase} - phases
    print("phases that no store holds:", missing or "none")


def live_home(out: Path) -> None:
    """A home whose machine lost power: real processes of one job that runs, one that has ended, one that waits."""
    home = Path(tempfile.mkdtemp(prefix="tm-pin-"))
    try:
        machine = [sys.executable, "-m", "trainmaster"]
        env = {"PATH": "/usr/bin:/bin", "TRAINMASTER_HOME": str(home)}
        line = [*machine, "up", "--nodes", "v100=2x2", "--port", "0", "--quiet"]
        service = subprocess.Popen(line, env=env, cwd="/", start_new_session=True)
        while not (home / "address").exists():
            time.sleep(0.1)

        def say(*words: str) -> str:
            return subprocess.run(
                [*machine, *words], env=env, cwd="/", check=True, capture_output=True, text=True
            ).stdout

        say("submit", "--name", "ended", "--gpus", "1", "--", "sh", "-c", "echo first words")
        resumed = 'echo generation $TRAINMASTER_GENERATION; if [ "$TRAINMASTER_GENERATION" = 1 ]; then sleep 900; fi'
        say("submit", "--name", "running", "--gpus", "2", "--", "sh", "-c", resumed)
        say("submit", "--name", "waiting", "--gpus", "2", "--", "sh", "-c", "echo my turn")
        told = {}
        while told.get("ended") != "finished" or told.get("running") != "running":
            time.sleep(0.2)
            told = {job["name"]: job["state"] for job in json.loads(say("queue", "--all", "-o", "json"))["jobs"]}
        service.kill()
        service.wait()
        marks = str(home).encode()
        for process in Path("/proc").iterdir():
            if process.name.isdigit() and int(process.name) != os.getpid():
                try:
                    if marks in (process / "cmdline").read_bytes() + (process / "environ").read_bytes():
                        os.kill(int(process.name), signal.SIGKILL)
                except OSError:
                    continue
        time.sleep(0.5)
        for path in [home / "logs", home / "token", home / "trainmaster.db-shm"]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        with tarfile.open(out / "live_home.tar.xz", "w:xz") as tar:
            for path in sorted(home.rglob("*")):
                if path.is_file() and not path.is_socket():
                    tar.add(path, path.relative_to(home), recursive=False)
        print("live home", told, sorted(str(p.relative_to(home)) for p in home.rglob("*")))
    finally:
        shutil.rmtree(home)


def _write(path: Path, data: Any) -> None:
    text = json.dumps(data, indent=1, sort_keys=True)
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0) if path.suffix == ".gz" else text.encode() + b"\n")


def commands(name: str = "") -> dict[str, str]:
    """`--help` of every command."""
    told = CliRunner(env={"COLUMNS": "300", "TERM": "dumb", "NO_COLOR": "1"}).invoke(
        main.app, [*name.split(), "--help"]
    )
    assert told.exit_code == 0, (name, told.output)
    found = {name: told.output}
    for panel in told.output.split("\u256d\u2500 ")[1:]:
        if not panel.startswith(("Options", "Arguments")):
            for inner in re.findall("^\u2502 ([a-z][a-z0-9-]*) ", panel, re.MULTILINE):
                found |= commands(f"{name} {inner}".strip())
    return found


def interfaces(out: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bench = service_bench.Bench(Path(folder))
        inner: Any = bench.app
        while not hasattr(inner, "openapi"):
            inner = next(v for v in vars(inner).values() if hasattr(v, "openapi") or callable(v))
        _write(out / "openapi.json.gz", inner.openapi())
    _write(out / "crd.json.gz", crd())
    _write(out / "commands.json.gz", commands())


if __name__ == "__main__":
    out = Path(sys.argv[1])
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    interfaces(out)
    stores(out)
    live_home(out)

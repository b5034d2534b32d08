"""One run of the study on a live service of this machine: submissions in time, a node that fails, what was seen."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from support.live_study.workload import SAMPLES, StudyJob, request_of
from trainmaster.client.client import Client
from trainmaster.engine.persistence import ended_from_record
from trainmaster.engine.records import Ended
from trainmaster.forecast.situation import Costs
from trainmaster.model.job import Phase
from trainmaster.stores.sqlite import SqliteStore

LOOK_S = 0.5
OVER = ("finished", "failed", "cancelled", "rejected")


@dataclass(frozen=True)
class Sample:
    at_s: float
    """Since the first submission."""
    job: str
    gpu_type: str
    workers: int
    servers: int


@dataclass(frozen=True)
class Note:
    """What a trainer wrote down of itself."""

    at_s: float
    work: float
    workers: int
    gpu_type: str
    attempt: int


@dataclass
class LiveRun:
    policy: str
    began: float
    """Wall clock of the first submission."""
    ids: dict[str, str]
    """Job id by name of the study."""
    samples: list[Sample] = field(default_factory=list)
    notes: dict[str, list[Note]] = field(default_factory=dict)
    ended: dict[str, Ended] = field(default_factory=dict)
    costs: Costs = field(default_factory=Costs)
    outage: tuple[int, float] | None = None
    """(node, seconds after the first submission)."""


@contextlib.contextmanager
def service(home: Path, nodes: str, policy: str, round_s: float | None) -> Iterator[Client]:
    env = {**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))}
    command = [sys.executable, "-m", "trainmaster", "up", "--home", str(home), "--port", "0", "--quiet",
               "--nodes", nodes, "--policy", policy, "--stop-jobs", "--preempt-notice", "0"]  # fmt: skip
    if round_s is not None:
        command += ["--round", str(round_s)]
    process = subprocess.Popen(command, env=env)
    try:
        give_up_s = time.monotonic() + 120
        while not (home / "address").exists():
            if process.poll() is not None or time.monotonic() > give_up_s:
                raise RuntimeError("the service did not start")
            time.sleep(0.1)
        with Client.find(home) as client:
            yield client
    finally:
        process.terminate()
        process.wait(60)


def run(
    home: Path, jobs: Sequence[StudyJob], nodes: str, policy: str, round_s: float | None,
    fails: tuple[str, int, float] | None, patience_s: float = 900.0,
) -> LiveRun:  # fmt: skip
    """`fails`: (node id, its number, seconds): then all its workers are killed."""
    name = policy.partition(":")[0]
    with service(home, nodes, policy, round_s) as client:
        slowdowns = _slowdowns(client)
        found = LiveRun(name, time.time(), {})
        start_s = time.monotonic()
        coming = list(jobs)
        while True:
            at_s = time.monotonic() - start_s
            while coming and coming[0].arrives_s <= at_s:
                job = coming.pop(0)
                found.ids[job.name] = client.submit(request_of(job, slowdowns, home, name))["id"]
            if fails is not None and at_s >= fails[2] and found.outage is None:
                kill_workers(fails[0])
                found.outage = (fails[1], at_s)
            views = client.get("/jobs", {"limit": 1000, "state": ["pending", "running", *OVER]})["jobs"]
            found.samples += [sample for view in views if (sample := _sample(view, at_s)) is not None]
            if not coming and all(view["state"] in OVER for view in views):
                break
            if at_s > patience_s:
                raise RuntimeError(f"not over after {patience_s:g} s: { {v['name']: v['state'] for v in views} }")
            time.sleep(LOOK_S)
        found.costs = Costs(**client.get("/situation")["costs"])
    store = SqliteStore(home / "trainmaster.db")
    try:
        records = store.load().ended
    finally:
        store.close()
    found.notes = read_notes(home, jobs)
    found.ended = {job: ended_from_record(records[job_id]) for job, job_id in found.ids.items()}
    return found


def _slowdowns(client: Client) -> dict[str, float]:
    """How much slower each type is than the fastest, as the service emulates it."""
    from trainmaster.backends.local.devices import slowdowns
    from trainmaster.estimate.accelerators import find_accelerator

    types = sorted({node["accelerator"] for node in client.get("/nodes")})
    return slowdowns(types, find_accelerator)


def _sample(view: dict[str, Any], at_s: float) -> Sample | None:
    places = view["allocation"]
    if view["state"] != "running" or not places:
        return None
    return Sample(
        at_s, view["name"], places[0]["accelerator"], sum(p["workers"] for p in places),
        sum(p["servers"] for p in places),
    )  # fmt: skip


def kill_workers(node: str) -> int:
    """End every member on an emulated node at once, as a power cut does; returns how many."""
    wanted = f"TRAINMASTER_NODE={node}".encode()
    killed = 0
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and wanted in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
                killed += 1
    return killed


def read_notes(folder: Path, jobs: Sequence[StudyJob]) -> dict[str, list[Note]]:
    found = {}
    for job in jobs:
        path = folder / f"{job.name}.log"
        lines = path.read_text().splitlines() if path.exists() else []
        words = [line.split() for line in lines]
        rows = [Note(float(w[0]), float(w[1]), int(w[2]), w[3], int(w[4])) for w in words if len(w) == 5]
        found[job.name] = sorted(rows, key=lambda note: note.at_s)
    return found


def finished(jobs: Sequence[StudyJob], found: LiveRun) -> list[StudyJob]:
    return [job for job in jobs if found.ended[job.name].phase == Phase.FINISHED]


def miscounted(home: Path, jobs: Sequence[StudyJob]) -> list[str]:
    """Finished jobs whose samples were not each used once an epoch, or whose gradients were not each applied once."""
    wrong = []
    for job in jobs:
        path = home / f"{job.name}.npz"
        if not path.exists():
            wrong.append(f"{job.name}: no counts were written")
            continue
        with np.load(path) as said:
            counts, expected = said["counts"], float(said["expected"])
        if job.way == "parallel" and len(counts) != SAMPLES:
            wrong.append(f"{job.name}: {len(counts)} samples")
        if not np.allclose(counts, expected, atol=1e-3) or expected <= 0:
            wrong.append(f"{job.name}: {counts.min():g} to {counts.max():g} uses, not {expected:g}")
    return wrong

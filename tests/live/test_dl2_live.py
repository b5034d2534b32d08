"""The learned policy with real elastic training on one machine: it sizes jobs as others come and go, in place."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainmaster.client.client import Client

pytest.importorskip("torch")

PROGRAM = Path(__file__).parent / "programs" / "paced_training.py"
STEPS = 480
PATIENCE_S = 300.0
ENV = {"PYTHONPATH": ":".join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    home = tmp_path / "home"
    command = [sys.executable, "-m", "trainmaster", "up", "--home", str(home), "--port", "0", "--quiet", "--learn",
               "--nodes", "v100=4x4", "--policy", "dl2", "--round", "2", "--stop-jobs"]  # fmt: skip
    process = subprocess.Popen(command, env={**os.environ, **ENV})
    deadline_s = time.monotonic() + PATIENCE_S
    while not (home / "address").exists():
        assert process.poll() is None, "the service did not start"
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    with Client.find(home) as found:
        yield found
    process.terminate()
    assert process.wait(60) == 0


def submit(client: Client, folder: Path) -> str:
    folder.mkdir()
    body = {
        "command": [sys.executable, str(PROGRAM), str(folder)], "steps": STEPS, "steps_per_s": {"v100": 4.0},
        "workers": {"min": 1, "max": 4}, "workdir": str(folder), "env": ENV, "model": "count",
    }  # fmt: skip
    return client.submit(body)["id"]


def wait(what: str, done: Any) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.3)


def workers(client: Client, job: str) -> int:
    return sum(part["workers"] for part in client.get(f"/jobs/{job}")["allocation"])


@pytest.mark.slow
def test_real_elastic_jobs_are_sized_by_the_network(client: Client, tmp_path: Path) -> None:
    first = submit(client, tmp_path / "a")
    wait("the first job has the machine", lambda: workers(client, first) == 4)
    second = submit(client, tmp_path / "b")
    wait("they share it", lambda: workers(client, first) < 4 and workers(client, second) >= 1)
    for name in "ab":
        (tmp_path / name / "fast").touch()
    wait("both end", lambda: all(client.get(f"/jobs/{job}")["state"] == "finished" for job in (first, second)))
    events = client.get("/events", {"limit": 1000})["events"]
    assert [event["kind"] for event in events if event["job"] == first].count("launch") == 1, "it was never restarted"
    assert any(event["kind"] == "resized" and event["job"] == first for event in events)
    assert not [event for event in events if "decided" in event["text"] or "failed" in event["text"]]
    for name in "ab":  # every sample was used once in each epoch, whatever the sizes were
        assert np.all(np.load(tmp_path / name / "counts.npy") == 40)

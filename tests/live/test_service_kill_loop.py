"""The real service under fire: it and the workers of its jobs are killed at random moments, by a seed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from support import PYTHONPATH
from support.kill_loop import DRIVER, SUPERVISOR, WORKER, check_under_kills, kill_all
from trainmaster.client.client import Client
from trainmaster.model.errors import TrainmasterError


class Served:
    """A client of the service, as users are: it knows what was answered, and no more."""

    def __init__(self, home: Path, nodes: str, policy: str) -> None:
        self.home = home
        (home / "witness").mkdir(parents=True)
        command = [sys.executable, "-m", "support.forked_service", str(home), nodes, policy]
        self.parent = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": PYTHONPATH})
        deadline_s = time.monotonic() + 120
        while not (home / "driver.pid").exists():
            assert time.monotonic() < deadline_s, "the service does not come up"
            assert self.parent.poll() is None
            time.sleep(0.05)

    def _client(self) -> Client:
        try:
            return Client.find(self.home, timeout_s=5.0)
        except TrainmasterError as error:
            raise OSError(str(error)) from error

    def submit(self, name: str, workers: tuple[int, int], command: list[str], speed: float) -> str | None:
        body: dict[str, Any] = {
            "command": command, "name": name, "workers": {"min": workers[0], "max": workers[1]},
            "env": {"PYTHONPATH": PYTHONPATH}, "max_attempts": 1000, "request_id": uuid.uuid4().hex,
            "steps_per_s": {"v100": speed * workers[1]}, "workdir": str(self.home),
        }  # fmt: skip
        for _ in range(20):  # as a patient client: the same request until it is answered
            assert self.parent.poll() is None, "the service ended by itself"
            try:
                with self._client() as client:
                    return client.post("/jobs", body)["id"]
            except (TrainmasterError, OSError):
                time.sleep(0.2)
        return None

    def driver_pid(self) -> int | None:
        with contextlib.suppress(OSError, ValueError):
            pid = int((self.home / "driver.pid").read_text())
            (self.home / "driver.pid").unlink()  # the next one writes it when it is up
            return pid
        return None

    def states(self) -> dict[str, str]:
        found: dict[str, str] = {}
        cursor = None
        try:
            with self._client() as client:
                while True:
                    page = client.get("/jobs", {"limit": 500, "cursor": cursor})
                    found |= {job["id"]: job["state"] for job in page["jobs"]}
                    cursor = page["cursor"]
                    if cursor is None:
                        return found
        except TrainmasterError as error:
            raise OSError(str(error)) from error

    def close(self) -> None:
        with contextlib.suppress(OSError, ValueError, ProcessLookupError):
            os.kill(int((self.home / "driver.pid").read_text()), 15)
            self.parent.wait(60)  # a busy machine takes its time
        self.parent.kill()
        self.parent.wait()
        kill_all(self.home)


@pytest.mark.slow
def test_the_service_loses_nothing_and_doubles_nothing_under_kills(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    subject = Served(home, "v100=8x4", "fifo")
    check_under_kills(subject, 3, {DRIVER: 50, WORKER: 50, SUPERVISOR: 10}, 150, 90)

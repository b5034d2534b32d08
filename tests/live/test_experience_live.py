"""Experience of a real service outlives `kill -9`, and learn reads it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from support import PYTHONPATH
from trainmaster.client.client import Client
from trainmaster.learn.dl2.recorded_decisions import COMMANDS
from trainmaster.model.errors import TrainmasterError
from trainmaster.service.control.experience import DOCUMENT, in_order
from trainmaster.stores.sqlite import read_history


def _up(home: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "trainmaster", "up", "--home", str(home), "--nodes", "v100:1x4", "--port", "0",
               "--policy", "drf"]  # fmt: skip
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": PYTHONPATH}, stderr=subprocess.DEVNULL)


def _patiently(home: Path, call: Any) -> Any:
    for _ in range(600):
        try:
            with Client.find(home, timeout_s=20.0) as client:
                found = call(client)
            if found:
                return found
        except (TrainmasterError, OSError):
            pass
        time.sleep(0.2)
    raise AssertionError("the service does not answer")


def test_rows_outlive_kill_9(tmp_path: Path) -> None:
    home = tmp_path / "home"
    service = _up(home)
    try:
        body = {"command": ["sleep", "600"], "workers": {"min": 1, "max": 2}, "workdir": str(tmp_path)}
        job = _patiently(home, lambda client: client.post("/jobs", {**body, "request_id": "first"}))["id"]
        before = _patiently(home, lambda client: client.get("/experience")["rows"])
        os.kill(service.pid, signal.SIGKILL)
        service.wait()
        kept = in_order(read_history(home / "trainmaster.db", 10, COMMANDS, DOCUMENT).documents)
        assert kept[: len(before)] == before
        assert next((a["kind"], a["job"]) for row in kept for a in row["actions"]) == ("launch", job)
        service = _up(home)
        after = _patiently(home, lambda client: client.get("/experience")["rows"])
        assert after[: len(kept)] == kept
        _patiently(home, lambda client: client.post(f"/jobs/{job}/cancel", {}))
    finally:
        service.terminate()
        service.wait(60)

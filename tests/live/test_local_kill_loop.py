"""The local backend under fire: drivers, supervisors and workers are killed at random moments, by a seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support import PYTHONPATH
from support.bare_driver import make_home
from support.kill_loop import DRIVER, SUPERVISOR, WORKER, check_under_kills, kill_all
from trainmaster.engine.ports import StoreError
from trainmaster.model.codec import spec_to_json
from trainmaster.model.job import STATE_OF, Phase
from trainmaster.stores.sqlite import SqliteStore
from trainmaster.testing.builders import a_job


class Bare:
    """Engine, store and local backend, driven without a service."""

    def __init__(self, home: Path, cluster: str, policy: str) -> None:
        self.home = home
        make_home(home)
        env = {**os.environ, "PYTHONPATH": PYTHONPATH}
        command = [sys.executable, "-m", "support.bare_driver", str(home), cluster, policy]
        self.parent = subprocess.Popen(command, env=env)
        deadline_s = time.monotonic() + 120
        while not (home / "driver.pid").exists():
            assert time.monotonic() < deadline_s, "the driver does not begin"
            time.sleep(0.05)
        self._store: SqliteStore | None = None

    def submit(self, name: str, workers: tuple[int, int], command: list[str], speed: float) -> str | None:
        payload = {"command": command, "env": {"PYTHONPATH": PYTHONPATH}}
        spec = a_job(name, elastic=workers, seconds=None, speeds={"v100": speed}, max_attempts=1000, payload=payload)
        builder = self.home / f"{name}.draft"
        builder.write_text(json.dumps(spec_to_json(spec)))
        builder.replace(self.home / "inbox" / f"{name}.json")
        deadline_s = time.monotonic() + 20
        while not (self.home / "accepted" / name).exists():
            assert time.monotonic() < deadline_s, f"{name} is not accepted"
            assert self.parent.poll() is None, "the driver died of a fault of its own"
            time.sleep(0.01)
        return name

    def driver_pid(self) -> int | None:
        pid = int((self.home / "driver.pid").read_text() or 0)
        return pid if pid and Path(f"/proc/{pid}").exists() else None

    def states(self) -> dict[str, str]:
        try:
            if self._store is None:
                self._store = SqliteStore(self.home / "store.db", busy_ms=20_000)
            image = self._store.load()
        except StoreError as error:
            raise OSError(str(error)) from error
        phases = {job: record["ints"]["phase"] for job, record in image.jobs.items()}
        phases |= {job: record["phase"] for job, record in image.ended.items()}
        return {job: str(STATE_OF[Phase(phase)]) for job, phase in phases.items()}

    def close(self) -> None:
        (self.home / "stop").touch()
        driver = self.driver_pid()
        if driver is not None:
            os.kill(driver, 9)
        self.parent.kill()
        self.parent.wait()
        kill_all(self.home)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "policy"), [(1, "fifo"), (2, "optimus")])
def test_nothing_is_lost_or_doubled_under_kills(tmp_path: Path, seed: int, policy: str) -> None:
    subject = Bare(tmp_path, "v100=8x4", policy)
    check_under_kills(subject, seed, {DRIVER: 50, SUPERVISOR: 50, WORKER: 50}, 120, 90)

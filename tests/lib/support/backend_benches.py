"""Benches for `check_backend`: the local backend with real processes, and the simulated one."""

from __future__ import annotations

import os
import queue
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from support import PYTHONPATH
from support.queue_bench import STUBBORN, QueueBench
from trainmaster.backends.local.backend import LocalBackend
from trainmaster.backends.local.site import Options
from trainmaster.gang import linux
from trainmaster.model import event as ev
from trainmaster.model.cluster import Cluster
from trainmaster.model.command import Command
from trainmaster.model.job import JobId, JobSpec
from trainmaster.model.lease import LeaseRule
from trainmaster.sim.backend import SimulatedBackend
from trainmaster.sim.truth import Truth, TruthOptions
from trainmaster.testing.backend_contract import FAILURE_CODE, Kind
from trainmaster.testing.builders import a_cluster, a_job

EMULATED = [sys.executable, "-m", "trainmaster.runtime.emulated"]
QUICK = Options(grace_s=1.5, hello_wait_s=5.0, progress_every_s=0.1)


class LocalBench(QueueBench):
    """Real processes under `home`. `restart` drops the backend as a killed service would, and makes another."""

    quiet_s = 1.0

    def __init__(self, home: Path, described: str = "v100=4x4", options: Options = QUICK, wait_s: float = 30.0) -> None:
        self.home = home
        self.cluster: Cluster = a_cluster(described)
        self.options = options
        self.wait_s = wait_s
        self.events: queue.Queue[ev.Event] = queue.Queue()
        self.backend = self._open()

    def _open(self) -> LocalBackend:
        events = self.events
        slowdown = dict.fromkeys(self.cluster.types, 1.0)
        backend = LocalBackend(
            self.cluster, self.home, LeaseRule(), events.put, lambda: time.time_ns() // 1_000_000, slowdown,
            options=self.options,
        )  # fmt: skip
        backend.start()
        return backend

    def restart(self) -> None:
        self.backend.close()
        assert self.backend.failure is None
        self.events = queue.Queue()
        self.backend = self._open()

    def close(self) -> None:
        self.backend.close(end_jobs=True)
        assert self.backend.failure is None

    def living(self, job_id: str) -> int:
        """By the marks of their environment, whatever the backend believes."""
        return len({os.getpgid(pid) for pid in living_processes(job_id, self.home)})

    def job(
        self, name: str, kind: Kind, workers: tuple[int, int], env: Mapping[str, str] | None = None
    ) -> JobSpec | None:
        commands = {
            Kind.SUCCEEDS: ["sleep", "0.2"],
            Kind.FAILS: ["sh", "-c", f"exit {FAILURE_CODE}"],
            Kind.ENDLESS: [*EMULATED, "--steps", "1000000"],
            Kind.STUBBORN: [sys.executable, "-c", STUBBORN],
            Kind.UNSTARTABLE: ["no-such-command-anywhere"],
        }
        payload = {"command": commands[kind], "env": {"PYTHONPATH": PYTHONPATH, **(env or {})}}
        return a_job(name, elastic=workers, seconds=None, speeds={"v100": 100.0}, payload=payload)


def living_processes(job_id: str, home: Path) -> list[int]:
    """Processes of a job (members and what they have started) that live."""
    agents = f"unix:{home.resolve()}/"
    found = []
    for pid in linux.marked("TRAINMASTER_JOB_ID", job_id):
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if agents in environment:
            found.append(pid)
    return found


class SimulatedBench:
    """The simulated backend: time jumps to whatever comes next."""

    def __init__(self, described: str = "v100=4x4") -> None:
        self.cluster: Cluster = a_cluster(described)
        truth = Truth(self.cluster, TruthOptions(launch_ms=100, stop_ms=50), 0)
        self.backend = SimulatedBackend(self.cluster, truth, LeaseRule())
        self._waiting: list[ev.Event] = []
        self._failing: set[str] = set()

    def perform(self, command: Command) -> None:
        self.backend.perform(command)

    def observe(self) -> None:
        self.backend.observe()

    def next_event(self) -> ev.Event:
        for _ in range(1000):
            if self._waiting:
                return self._waiting.pop(0)
            self._advance(self.backend.next_ms)
        raise TimeoutError("nothing more will happen")

    def quiet(self) -> list[ev.Event]:
        self._advance(self.backend.now_ms + 1000)
        found, self._waiting = self._waiting, []
        return found

    def _advance(self, now_ms: int) -> None:
        if now_ms > self.backend.now_ms + 10**9:
            raise TimeoutError("nothing more will happen")
        self._waiting += self.backend.advance(now_ms)
        for job_id in sorted(self._failing):
            if self.backend.crash(JobId(job_id), FAILURE_CODE):
                self._failing.discard(job_id)

    def restart(self) -> None:
        """The world goes on; only what was on its way to the driver is lost."""
        self._waiting = []

    def living(self, job_id: str) -> int:
        attempt = self.backend.running.get(JobId(job_id))
        return 0 if attempt is None else attempt.allocation.workers

    def job(self, name: str, kind: Kind, workers: tuple[int, int]) -> JobSpec | None:
        if kind == Kind.STUBBORN:
            return None
        if kind == Kind.UNSTARTABLE:
            earlier = self.backend.launch_fails
            self.backend.launch_fails = lambda job_id: job_id == name or earlier(job_id)
        if kind == Kind.FAILS:
            self._failing.add(name)
        return a_job(name, elastic=workers, seconds=1.0 if kind == Kind.SUCCEEDS else None)

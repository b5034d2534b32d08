"""A real hub in a thread of its own, and real launchers as processes of this machine."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.launcher_attempts import LauncherAttempts
from trainmaster.backends.kubernetes.attempts.observations import PodSeat, RunFacts, RunKey, run_token
from trainmaster.backends.kubernetes.launchers.hub import AgentHub
from trainmaster.launcher.bundle import launcher_bytes
from trainmaster.launcher.settings import IDENTITY
from trainmaster.model.lease import LeaseRule
from trainmaster.testing.builders import a_job

SECRET = b"s" * 32
LEASE_S = 3.0
PATIENCE_S = 180.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Bench:
    """One attempt, `job-1` of generation 1. `now` runs a function in the hub's loop."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.attempts = LauncherAttempts()
        self.rule = LeaseRule(int(LEASE_S * 1000))
        self.key = RunKey("job-1", 1)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.bundle = folder / "launcher.pyz"
        self.bundle.write_bytes(launcher_bytes())
        self.processes: list[subprocess.Popen[bytes]] = []
        self.port = 0
        self.notice_port = free_port()
        self.hub = self.new_hub()
        self.listen()

    # -- the service -------------------------------------------------------------------------------------

    def now(self, call: Callable[[], Any]) -> Any:
        async def within() -> Any:
            return call()

        return asyncio.run_coroutine_threadsafe(within(), self.loop).result(PATIENCE_S)

    def new_hub(self, first_version: int = 1) -> AgentHub:
        hub: AgentHub = self.now(
            lambda: AgentHub(
                SECRET,
                self.rule,
                lambda: time.monotonic_ns() // 1_000_000,
                self.attempts,
                first_version=first_version,
                notice_port=self.notice_port,
            )
        )
        self.attempts.hub = hub
        return hub

    def listen(self, port: int = 0) -> None:
        port = port or free_port()
        listening = self.hub.listen("127.0.0.1", port, advertise=f"127.0.0.1:{port}")
        self.port = asyncio.run_coroutine_threadsafe(listening, self.loop).result(PATIENCE_S)

    def take_over(
        self, seats: Sequence[PodSeat], adopt: bool = True, pause_s: float = 0.0, elsewhere: bool = False
    ) -> None:
        """The leader is gone; another one, at the same address or `elsewhere`, finds the pods."""
        asyncio.run_coroutine_threadsafe(self.hub.close(), self.loop).result(PATIENCE_S)
        time.sleep(pause_s)
        self.hub = self.new_hub(first_version=1000)
        self.attempts.attempts.clear()
        if adopt:
            self.now(lambda: self.attempts.adopt(self.facts(), seats, "127.0.0.1"))
        self.listen(0 if elsewhere else self.port)

    def facts(self) -> RunFacts:
        token = run_token(SECRET, self.key)
        return RunFacts(
            self.key, "default", "job", "uid", 1, token, (f"127.0.0.1:{self.port}",), LEASE_S, 1.0, a_job("job-1"), {}
        )

    def seats(self, workers: int, servers: int = 0, first: int = 0) -> list[PodSeat]:
        seats = [
            PodSeat(f"worker-{n}", "worker", n, f"n{n}", 0, 1, first + workers, servers)
            for n in range(first, first + workers)
        ]
        return seats + [PodSeat(f"server-{n}", "server", n, f"n{n}", 0, 0, workers, servers) for n in range(servers)]

    def admit(self, seats: Sequence[PodSeat]) -> None:
        self.now(lambda: self.attempts.start(self.facts(), seats))

    def dismiss(self, *members: str) -> None:
        self.now(lambda: self.attempts.dismiss(self.key, members))

    def stop(self, why: str, grace_s: float) -> None:
        self.now(lambda: self.attempts.stop(self.key, why, grace_s))

    # -- launchers ---------------------------------------------------------------------------------------

    def launch(
        self, member: str, words: Sequence[str], python: str = sys.executable, **env: str
    ) -> subprocess.Popen[bytes]:
        run_dir = self.folder / f"pod-{member}"
        run_dir.mkdir(exist_ok=True)
        log = open(self.folder / f"{member}.log", "ab")  # noqa: SIM115
        identity = {
            "TRAINMASTER_SERVICE": f"127.0.0.1:{self.port}",
            "TRAINMASTER_JOB_ID": "job-1",
            "TRAINMASTER_GENERATION": "1",
            "TRAINMASTER_MEMBER": member,
            "TRAINMASTER_AGENT_TOKEN": run_token(SECRET, self.key),
            "TRAINMASTER_GRACE_S": "1",
            "TRAINMASTER_RUN_DIR": str(run_dir),
            "TRAINMASTER_NOTICE_PORT": "0",
            **env,
        }
        process = subprocess.Popen(
            [python, "-I", "-S", str(self.bundle), "--", *words],
            stdout=log,
            stderr=log,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                "OUT": str(self.folder),
                IDENTITY: json.dumps(identity),
            },
        )
        log.close()
        self.processes.append(process)
        return process

    def shell(self, member: str, script: str, **env: str) -> subprocess.Popen[bytes]:
        return self.launch(member, ["/bin/sh", "-c", script], **env)

    def log(self, member: str) -> str:
        return (self.folder / f"{member}.log").read_text()

    # -- waiting -----------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], Any], what: str = "") -> Any:
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            if found := condition():
                return found
            time.sleep(0.01)
        raise AssertionError(f"{what or 'it'} did not come; said: {self.said()}")

    def said(self, *beginning: Any) -> list[tuple[Any, ...]]:
        heard = [(what, *words) for what, _, *words in self.attempts.said_so]
        return [words for words in heard if words[: len(beginning)] == beginning]

    def hear(self, *beginning: Any) -> tuple[Any, ...]:
        return self.until(lambda: self.said(*beginning), f"{beginning}")[-1]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        asyncio.run_coroutine_threadsafe(self.hub.close(), self.loop).result(PATIENCE_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_S)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()

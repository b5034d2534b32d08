"""Members of one attempt as real processes, driven as a supervisor drives them: for the profiler, tests and benchmarks.

Single-threaded: everything happens inside `run_until`. It holds the rules of `trainmaster.gang.protocol` and no
more: no logs of its own, no adoption, no limits. A member that dies is dismissed at once, so that survivors
go on; whether a replacement starts is the caller's choice (`grow`).
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from trainmaster.gang import protocol as wire
from trainmaster.gang.actions import Seat
from trainmaster.gang.endpoint import Endpoint, Inbound
from trainmaster.gang.member_env import member_env
from trainmaster.gang.membership import Roster
from trainmaster.gang.processes import free_port
from trainmaster.gang.timeouts import RENEW_AFTER_S

TOKEN = "secret"


class Process(Protocol):
    """The part of `subprocess.Popen` that a gang needs."""

    def poll(self) -> int | None: ...

    def send_signal(self, number: int, /) -> None: ...

    def kill(self) -> None: ...

    def wait(self) -> int: ...


class Starter(Protocol):
    """Another way to start `python FILE ...`, such as `support.fork_server.ForkServer`."""

    def start(self, arguments: Sequence[str], env: Mapping[str, str], log: Path) -> Process: ...


@dataclass
class Member:
    name: str
    process: Process
    log: Path
    started_s: float
    code: int | None = None
    progress: wire.Progress | None = None
    left_out: bool = False
    stateful: bool = False
    """It has joined once, so it holds what all hold."""

    @property
    def alive(self) -> bool:
        return self.code is None


@dataclass
class Gang:
    """`command` for workers, `server_command` for servers; `folder` takes socket, logs and checkpoints."""

    command: Sequence[str]
    folder: Path
    server_command: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    fork_server: Starter | None = None
    """Starts members whose command is `python FILE ...` in milliseconds."""
    lease_s: float = 30.0
    generation: int = 1
    renew: bool = True
    """False: renewals go unanswered, as if the agent were cut off."""
    patience_s: float = 20.0
    """Listed members that have not joined for so long are killed."""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._path = str(Path(tempfile.mkdtemp(prefix="trainmaster-")) / "agent.sock")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self._path)
        listener.listen(64)
        self.endpoint = Endpoint(listener, TOKEN)
        self.roster = Roster(lambda _: "127.0.0.1", lambda _: free_port())
        self.members: dict[str, Member] = {}
        self.heard: list[tuple[float, str, wire.Message]] = []
        """Everything but renewals, with the moment it came."""
        self._told_s = 0.0
        self._suspected: dict[int, float] = {}

    # -- what a supervisor is ordered to do -----------------------------------------------------------

    def grow(self, count: int = 1, role: str = wire.WORKER, why: str = "grow") -> list[str]:
        return [self._start(role, why) for _ in range(count)]

    def shrink(self, names: Sequence[str], why: str = "shrink") -> None:
        for name in names:
            self.members[name].left_out = True
        self.roster.dismiss(names, why)

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        self.members[name].process.send_signal(number)

    def stop(self, why: str = "stop", grace_s: float = 20.0) -> None:
        for name in self.alive:
            self.endpoint.send(name, wire.StopNotice(why, grace_s))

    def close(self) -> None:
        for member in self.members.values():
            if member.process.poll() is None:
                member.process.kill()
            member.process.wait()
        self.endpoint.close()
        shutil.rmtree(Path(self._path).parent, ignore_errors=True)

    def __enter__(self) -> Gang:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what can be asked ------------------------------------------------------------------------

    @property
    def alive(self) -> list[str]:
        return [name for name, member in self.members.items() if member.alive]

    @property
    def codes(self) -> dict[str, int | None]:
        return {name: member.code for name, member in self.members.items()}

    @property
    def work_done(self) -> float:
        """The most that any member has reported."""
        return max((m.progress.work_done for m in self.members.values() if m.progress is not None), default=0.0)

    def log(self, name: str) -> str:
        return self.members[name].log.read_text(errors="replace")

    def story(self) -> str:
        """For a failing test: codes and the ends of all logs."""
        return "\n".join(f"--- {name} ({m.code})\n{self.log(name)[-2000:]}" for name, m in self.members.items())

    # -- the loop ---------------------------------------------------------------------------------

    def run_until(self, until: Callable[[], bool], timeout_s: float) -> None:
        """`TimeoutError` tells the members' story."""
        deadline_s = time.monotonic() + timeout_s
        self.poll(0.0)
        while not until():
            if time.monotonic() >= deadline_s:
                raise TimeoutError(f"not within {timeout_s} s\n{self.story()}")
            self.poll(0.02)

    def run_to_end(self, timeout_s: float) -> None:
        self.run_until(lambda: not self.alive, timeout_s)

    def poll(self, timeout_s: float) -> None:
        for name, message in self.endpoint.poll(timeout_s):
            self._take((name, message))
        for name, member in self.members.items():
            if member.alive and (code := member.process.poll()) is not None:
                member.code = code
                if name in self.roster.members:
                    self.roster.dismiss([name], f"{name} ended with code {code}")
        self._impatience()
        membership = self.roster.advance()
        if membership is not None:
            self._told_s = time.monotonic()
            for name in self.alive:
                self.endpoint.send(name, membership)
            self.endpoint.poll(0.0)

    def _take(self, inbound: Inbound) -> None:
        name, message = inbound
        if isinstance(message, wire.Renew):
            if self.renew:
                self.endpoint.send(name, wire.Renewed(message.number))
            return
        if isinstance(message, wire.Hello):
            self.roster.hello(name, message.elastic, message.address)
            current = self.roster.current
            listed = current is not None and current.find(name) is not None
            self.endpoint.send(name, wire.Welcome(self.lease_s, current if listed else None))
        elif isinstance(message, wire.Joined):
            self.roster.joined(name, message.version)
            self.members[name].stateful = True
        elif isinstance(message, wire.Progress):
            self.members[name].progress = message
        elif isinstance(message, wire.Suspect):
            self._suspected.setdefault(message.version, time.monotonic())
        if isinstance(message, wire.Message):
            self.heard.append((time.monotonic(), name, message))

    def _impatience(self) -> None:
        current = self.roster.current
        if current is None:
            return
        suspected_s = self._suspected.get(current.version)
        if suspected_s is not None and time.monotonic() - suspected_s > RENEW_AFTER_S and not self.roster.awaited:
            # Mostly it is a death that is about to be noticed; when it was not, the same members come together anew.
            self.roster.renew(f"contact was lost under version {current.version}")
        if self.roster.settled or time.monotonic() < self._told_s + self.patience_s:
            return
        for name in self.roster.unjoined:
            if self.members[name].alive and current.find(name) is not None:
                self.kill(name)

    def _start(self, role: str, why: str) -> str:
        name = self.roster.admit(role, node="n0", why=why)
        log = self.folder / f"{name}.log"
        # torch reads these at import; rank and size come with the membership.
        source = str(Path(__file__).resolve().parents[2])
        env = {
            **os.environ,
            "PYTHONPATH": source + os.pathsep + os.environ.get("PYTHONPATH", ""),
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            **self.env,
            **member_env(name, Seat(role, "n0"), TOKEN),
            "TRAINMASTER_JOB_ID": "job-1",
            "TRAINMASTER_GENERATION": str(self.generation),
            "TRAINMASTER_AGENT": f"unix:{self._path}",
            "TRAINMASTER_CHECKPOINT_DIR": str(self.folder / "checkpoints"),
        }
        command = [*(self.command if role == wire.WORKER else self.server_command)]
        if command[0] == "python":
            command[0] = sys.executable
        process: Process
        if self.fork_server is not None and command[0] == sys.executable and command[1] != "-m":
            process = self.fork_server.start(command[1:], env, log)
            self.members[name] = Member(name, process, log, time.monotonic())
            return name
        with log.open("wb") as stream:
            process = subprocess.Popen(command, env=env, stdout=stream, stderr=subprocess.STDOUT)
        self.members[name] = Member(name, process, log, time.monotonic())
        return name

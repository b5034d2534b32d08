"""Members of one attempt as real processes of this machine: for the profiler, tests and benchmarks.

Single-threaded: everything happens inside `poll`. What is to be done is decided by `gang.attempt`, as for a supervisor;
there are no logs with limits, no adoption and no records. A seat whose member has died leaves the target: whether
a replacement starts is the caller's choice (`grow`).
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from trainmaster.gang import protocol as wire
from trainmaster.gang.actions import (
    NOBODYS,
    Action,
    Attached,
    Exited,
    Running,
    Seat,
    Send,
    Start,
    Terminate,
    command_exit,
)
from trainmaster.gang.attempt import Attempt, Rules
from trainmaster.gang.endpoint import Endpoint, Gone, Inbound
from trainmaster.gang.member_env import member_env
from trainmaster.gang.membership import Roster
from trainmaster.gang.processes import free_port

TOKEN = "secret"
HELLO_WAIT_S = 60.0
"""A gang that is resized before it has spoken waits so long before it counts as plain."""
ENDLESS = sys.maxsize


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
    process: Process
    log: Path
    code: int | None = None
    progress: wire.Progress | None = None
    kill_at_s: float = math.inf


@dataclass
class Gang:
    """`command` for workers, `server_command` for servers; `folder` takes logs and checkpoints."""

    command: Sequence[str]
    folder: Path
    server_command: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    gpus: bool = False
    """Worker i sees device i alone; servers see none."""
    fork_server: Starter | None = None
    """Starts members whose command is `python FILE ...` in milliseconds."""
    lease_s: float = 30.0
    generation: int = 1
    renew: bool = True
    """False: renewals go unanswered, as if the agent were cut off."""
    patience_s: float = 20.0
    """Members that have not joined for so long are killed."""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._path = str(Path(tempfile.mkdtemp(prefix="trainmaster-")) / "agent.sock")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self._path)
        listener.listen(64)
        self._endpoint = Endpoint(listener, TOKEN)
        rules = Rules(self.lease_s, hello_wait_s=HELLO_WAIT_S, join_patience_s=self.patience_s, max_deaths=ENDLESS)
        self.attempt = Attempt(rules, lambda _: free_port())
        self.members: dict[str, Member] = {}
        """All whose command was started."""
        self.heard: list[tuple[float, str, wire.Message]] = []
        """Everything but renewals, with the moment it came."""
        self._seats: list[Seat] = []
        self._numbers = {wire.WORKER: 0, wire.SERVER: 0}
        self._seq = 0

    # -- orders --------------------------------------------------------------------------------------------

    def grow(self, count: int = 1, role: str = wire.WORKER) -> None:
        for _ in range(count):
            number = self._numbers[role]
            self._numbers[role] += 1
            self._seats.append(Seat(role, "n0", local_rank=number, devices=(number,)))
        self._set_target()

    def shrink(self, names: Sequence[str]) -> None:
        for name in names:
            self._leave(name)
        self._set_target()

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        self.members[name].process.send_signal(number)

    def stop(self, why: str = "stop", grace_s: float = 20.0) -> None:
        self.attempt.stop(why, grace_s)

    def close(self) -> None:
        for member in self.members.values():
            if member.process.poll() is None:
                member.process.kill()
            member.process.wait()
        self._endpoint.close()
        shutil.rmtree(Path(self._path).parent, ignore_errors=True)

    def __enter__(self) -> Gang:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _leave(self, name: str) -> None:
        place = self.attempt.members[name].seat.place
        self._seats = [seat for seat in self._seats if seat.place != place]

    def _set_target(self) -> None:
        sizes = {role: sum(seat.role == role for seat in self._seats) for role in self._numbers}
        self._seq += 1
        seats = [replace(seat, local_size=sizes[seat.role]) for seat in self._seats]
        self.attempt.set_target(seats, self._seq, launch=self._seq == 1)

    # -- questions -----------------------------------------------------------------------------------------

    @property
    def roster(self) -> Roster:
        return self.attempt.roster

    @property
    def alive(self) -> list[str]:
        return [name for name, member in self.members.items() if member.code is None]

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
        """For a failing test: transitions, codes and the ends of all logs."""
        logs = [f"--- {name} ({m.code})\n{self.log(name)[-2000:]}" for name, m in self.members.items()]
        return "\n".join([self.attempt.story(), *logs])

    # -- the loop ------------------------------------------------------------------------------------------

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
        """Hear what has come within `timeout_s`, and do what follows."""
        self._hear(timeout_s)
        for name in self.alive:
            code = self.members[name].process.poll()
            if code is not None:
                self._exited(name, code)
        self._advance()
        for name in self.alive:
            if time.monotonic() >= self.members[name].kill_at_s:
                self.kill(name)
        self._hear(0.0)  # what was said just now goes out

    def _advance(self) -> None:
        while actions := self.attempt.advance(time.monotonic()):
            for action in actions:
                self._carry_out(action)

    def _hear(self, timeout_s: float) -> None:
        for inbound in self._endpoint.poll(timeout_s):
            self._take(inbound)

    def _take(self, inbound: Inbound) -> None:
        name, message = inbound
        if isinstance(message, wire.Renew):
            if self.renew:
                self._endpoint.send(name, wire.Renewed(message.number))
        elif not isinstance(message, Gone):
            if isinstance(message, wire.Progress):
                self.members[name].progress = message
            self.heard.append((time.monotonic(), name, message))
            self.attempt.on_message(name, message)

    def _exited(self, name: str, code: int) -> None:
        self._hear(0.0)  # what it said before it ended
        self._advance()
        self.members[name].code = code
        state = self.attempt.members[name]
        if not state.leaving and code != 0:
            self._leave(name)
            self._set_target()
        self.attempt.on_member(name, command_exit(name, code, speaks=state.elastic is not None))

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, Start):
            self.attempt.on_member(action.member, Attached("127.0.0.1"))
        elif isinstance(action, Terminate):
            self._terminate(action)
        elif isinstance(action, Send) and isinstance(action.message, wire.Begin):
            self._begin(action.member, action.message.environment)
            self.attempt.on_member(action.member, Running())
        elif isinstance(action, Send):
            self._endpoint.send(action.member, action.message)

    def _terminate(self, order: Terminate) -> None:
        member = self.members.get(order.member)
        if member is None:
            self.attempt.on_member(order.member, Exited(1, order.why, NOBODYS, ran=False))
            return
        member.kill_at_s = time.monotonic() + order.grace_s
        if not self._endpoint.send(order.member, wire.StopNotice(order.why, order.grace_s)):
            member.process.send_signal(signal.SIGTERM)

    def _begin(self, name: str, ranks: Mapping[str, str]) -> None:
        seat = self.attempt.members[name].seat
        log = self.folder / f"{name}.log"
        source = str(Path(__file__).resolve().parents[2])
        env = {
            **os.environ,
            "PYTHONPATH": source + os.pathsep + os.environ.get("PYTHONPATH", ""),
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            **self.env,
            **ranks,
            **member_env(name, seat, TOKEN),
            "TRAINMASTER_JOB_ID": "job-1",
            "TRAINMASTER_GENERATION": str(self.generation),
            "TRAINMASTER_AGENT": f"unix:{self._path}",
            "TRAINMASTER_CHECKPOINT_DIR": str(self.folder / "checkpoints"),
        }
        if self.gpus:
            env["CUDA_VISIBLE_DEVICES"] = str(seat.devices[0]) if seat.role == wire.WORKER else ""
        command = [*(self.command if seat.role == wire.WORKER else self.server_command)]
        if command[0] == "python":
            command[0] = sys.executable
        self.members[name] = Member(self._start(command, env, log), log)

    def _start(self, command: list[str], env: Mapping[str, str], log: Path) -> Process:
        if self.fork_server is not None and command[0] == sys.executable and command[1] != "-m":
            return self.fork_server.start(command[1:], env, log)
        with log.open("wb") as stream:
            return subprocess.Popen(command, env=env, stdout=stream, stderr=subprocess.STDOUT)

"""One member as a process: started in a group of its own that dies with the keeper, ended as a group."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainmaster.backends.local.launch_record import LaunchRecord
from trainmaster.backends.local.slots import Slot
from trainmaster.gang.linux import die_with_parent
from trainmaster.gang.protocol import WORKER


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class CannotStart(Exception):
    """The command cannot be run at all: the job's own fault, said in one sentence."""


@dataclass
class Member:
    """`elastic` is None until it has said hello. Moments are of the keeper's monotonic clock."""

    name: str
    slot: Slot
    process: subprocess.Popen[bytes]
    begun_s: float
    elastic: bool | None = None
    joined: bool = False
    """Whether it has ever worked under a membership."""
    code: int | None = None
    """Exit code; -N: killed by signal N."""
    leaving: bool = False
    """No longer wanted: its exit is no death."""
    term_at_s: float | None = None
    kill_at_s: float | None = None
    suspected: int = 0

    @property
    def alive(self) -> bool:
        return self.code is None

    @property
    def is_worker(self) -> bool:
        return self.slot.role == WORKER

    def signal(self, number: int) -> None:
        """To the whole group. The leader is not reaped yet, so the number cannot have changed hands."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


@dataclass(frozen=True)
class Seat:
    """What a member's environment says of the gang at its start."""

    rank: int
    size: int
    master_addr: str
    master_port: int
    groups: int = 1
    extra: Mapping[str, str] = field(default_factory=dict)


def own_environment() -> dict[str, str]:
    """What members inherit: the keeper's environment without Trainmaster's own variables."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TRAINMASTER_")}


def environment(record: LaunchRecord, slot: Slot, name: str, seat: Seat, base: Mapping[str, str]) -> dict[str, str]:
    """The keeper's own environment, the user's, then what torchrun and Trainmaster define."""
    env = {**base, **record.env, **slot.env, **seat.extra}
    env.setdefault("PYTHONUNBUFFERED", "1")
    if slot.cpus:
        env.setdefault("OMP_NUM_THREADS", str(len(slot.cpus)))
    elif seat.size > 1:  # as torchrun does: several processes must not each take every core
        env.setdefault("OMP_NUM_THREADS", "1")
    if slot.role == WORKER:
        env |= {
            "RANK": str(seat.rank),
            "WORLD_SIZE": str(seat.size),
            "LOCAL_RANK": str(slot.local_rank),
            "LOCAL_WORLD_SIZE": str(slot.local_size),
            "GROUP_RANK": str(slot.group_rank),
            "GROUP_WORLD_SIZE": str(seat.groups),
            "ROLE_RANK": str(seat.rank),
            "ROLE_WORLD_SIZE": str(seat.size),
            "ROLE_NAME": WORKER,
        }
    return env | {
        "MASTER_ADDR": seat.master_addr,
        "MASTER_PORT": str(seat.master_port),
        "TRAINMASTER_ROLE": slot.role,
        "TRAINMASTER_MEMBER": name,
        "TRAINMASTER_NODE": slot.node,
        "TRAINMASTER_AGENT_TOKEN": record.token,
    }


def start(record: LaunchRecord, slot: Slot, name: str, env: Mapping[str, str], log: Path, now_s: float) -> Member:
    """`CannotStart` says why the command cannot run."""
    command = record.command_of(slot.role)
    keeper_pid = os.getpid()

    def prepare() -> None:  # between fork and exec; the keeper has one thread, so this is safe
        die_with_parent(keeper_pid)
        if slot.cpus:
            with contextlib.suppress(OSError):  # cores taken from us since: run where we may
                os.sched_setaffinity(0, slot.cpus)

    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        process = subprocess.Popen(
            command, env=dict(env), cwd=record.workdir or None, stdin=subprocess.DEVNULL, stdout=descriptor,
            stderr=descriptor, process_group=0, preexec_fn=prepare,
        )  # fmt: skip
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        why = cannot(command[0], record.workdir, error)
        os.write(descriptor, f"trainmaster: {why}\n".encode())
        raise CannotStart(why) from error
    finally:
        os.close(descriptor)
    return Member(name, slot, process, now_s)


def cannot(program: str, workdir: str, error: Exception) -> str:
    """Why a program could not be started, in words of the user's world."""
    if isinstance(error, OSError) and error.filename is not None and str(error.filename) == workdir != program:
        return f"the working directory '{workdir}' cannot be entered: {error.strerror}"
    if isinstance(error, FileNotFoundError):
        return f"the command '{program}' was not found"
    if isinstance(error, PermissionError):
        return f"the command '{program}' may not be executed: {error.strerror}"
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return f"the command '{program}' cannot be started: {reason}"


def reap() -> tuple[int, int] | None:
    """One child that has ended, as (pid, code); what is left of its group is killed first.

    The leader stays unreaped until then: while it does, no stranger can have its group's number.
    """
    try:
        result = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    if result is None:
        return None
    pid = result.si_pid
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return pid, os.waitstatus_to_exitcode(status)


def describe_exit(name: str, code: int) -> str:
    if code >= 0:
        return f"{name} ended with exit code {code}"
    try:
        return f"{name} was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"{name} was killed by signal {-code}"

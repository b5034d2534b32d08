"""A command as a process group: started once, signalled as a whole, reaped to the last descendant.

A part of the launcher's bundle: the standard library, and Python 3.8 or newer.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from trainmaster.gang import linux
from trainmaster.gang.timeouts import KILL_AGAIN_S, REAP_S, TERM_SHARE


class CannotStart(Exception):
    """The command cannot be run at all: the job's own fault, said in one sentence."""


class ProcessGroup:
    """`CannotStart` says why the command cannot run. The group dies with the process that started it."""

    def __init__(
        self,
        words: Sequence[str],
        env: Mapping[str, str],
        *,
        workdir: str = "",
        output: int | None = None,
        cpus: Sequence[int] = (),
        become: Callable[[], None] | None = None,
    ) -> None:
        """`become` makes the process another user's; then the working directory is entered with that user's rights."""
        parent_pid = os.getpid()

        def prepare() -> None:  # between fork and exec; the parent has one thread that matters, so this is safe
            os.setpgid(0, 0)
            if become is not None:  # before the next: a change of user undoes what the kernel was asked for there
                become()
                os.chdir(workdir or "/")
            if parent_pid != 1:  # in a namespace of its own the kernel ends everybody with process 1
                linux.die_with_parent(parent_pid)
            if cpus:
                with contextlib.suppress(OSError):  # cores taken from us since: run where we may
                    os.sched_setaffinity(0, cpus)

        cwd = workdir or None if become is None else None
        try:
            self._process = subprocess.Popen(
                list(words),
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=prepare,
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise CannotStart(_why_not(words[0], workdir, error)) from error
        self.pid = self._process.pid
        self.code: int | None = None
        """Once it has ended; -N: killed by signal N."""
        self._term_at_s = self._kill_at_s = math.inf

    @property
    def alive(self) -> bool:
        return self.code is None

    def signal(self, number: int) -> None:
        """To the whole group. The leader is not reaped yet, so the number cannot have changed hands."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def ended(self, code: int) -> None:
        """Its leader was reaped."""
        self.code = self._process.returncode = code

    # -- the end -----------------------------------------------------------------------------------------

    def terminate(self, grace_s: float, now_s: float, told: bool) -> None:
        """SIGTERM at once, or after a share of the grace if the process was `told`; SIGKILL after the grace. A shorter
        grace counts."""
        if now_s + grace_s >= self._kill_at_s:
            return
        again, self._kill_at_s = self._kill_at_s < math.inf, now_s + grace_s
        self._term_at_s = now_s + grace_s * TERM_SHARE if told and not again else math.inf
        if grace_s <= 0.0:
            self.escalate(now_s)
        elif not told or again:
            self.signal(signal.SIGTERM)

    def escalate(self, now_s: float) -> None:
        """Send the signals that are due."""
        if now_s >= self._kill_at_s:
            self._kill_at_s, self._term_at_s = now_s + KILL_AGAIN_S, math.inf
            self.signal(signal.SIGKILL)
        elif now_s >= self._term_at_s:
            self._term_at_s = math.inf
            self.signal(signal.SIGTERM)

    @property
    def due_s(self) -> float:
        return min(self._term_at_s, self._kill_at_s) if self.alive else math.inf

    def grace_left_s(self, now_s: float) -> float:
        return max(0.0, self._kill_at_s - now_s)


def reap() -> tuple[int, int] | None:
    """One child that has ended, as (pid, code); what is left of its group is killed first.

    The leader stays unreaped until then: while it does, no stranger can have its group's number.
    """
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    if found is None:
        return None
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(found.si_pid, signal.SIGKILL)
    _, status = os.waitpid(found.si_pid, 0)
    return found.si_pid, -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def end_descendants() -> None:
    """Kill and reap whatever is left of this process's children, to the last generation."""
    deadline_s = time.monotonic() + REAP_S
    while time.monotonic() < deadline_s:
        for pid in linux.children_of(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            time.sleep(0.005)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


def _why_not(program: str, workdir: str, error: Exception) -> str:
    """Why a program could not be started, in words of the user's world."""
    if isinstance(error, OSError) and error.filename is not None and str(error.filename) == workdir != program:
        return f"cannot enter the working directory '{workdir}': {error.strerror}"
    if isinstance(error, FileNotFoundError):
        return f"command '{program}' not found"
    if isinstance(error, subprocess.SubprocessError):  # in the child, which cannot say more
        return f"cannot enter the working directory '{workdir or '/'}' as the job's user"
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return f"cannot start the command '{program}': {reason}"

"""The user's command as a process group: started once, signalled as a whole, reaped to the last descendant."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from trainmaster.gang import linux

REAP_PATIENCE_S = 10.0


class CannotStart(Exception):
    """One sentence that says why the command cannot run."""


class Command:
    def __init__(self, words: Sequence[str]) -> None:
        self._words = list(words)
        self._process: subprocess.Popen[bytes] | None = None
        self.code: int | None = None
        """Once it has ended; -N: killed by signal N."""

    @property
    def started(self) -> bool:
        return self._process is not None

    @property
    def alive(self) -> bool:
        return self._process is not None and self.code is None

    def start(self, env: Mapping[str, str]) -> int:
        """`CannotStart` if it cannot be; the process id otherwise."""
        launcher_pid = os.getpid()

        def prepare() -> None:
            os.setpgid(0, 0)
            if launcher_pid != 1:  # in a namespace of its own the kernel ends everybody with process 1
                linux.die_with_parent(launcher_pid)

        try:
            self._process = subprocess.Popen(
                self._words, env=dict(env), stdin=subprocess.DEVNULL, preexec_fn=prepare, close_fds=True
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise CannotStart(f"the command '{self._words[0]}' cannot be started: {reason}") from error
        return self._process.pid

    def signal(self, number: int) -> None:
        """To the whole group. The leader is not reaped yet, so the number cannot have changed hands."""
        if self.alive and self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def reap(self) -> bool:
        """Whether the command has ended by now. Orphans that became ours are reaped, too."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if found is None:
                break
            ours = self._process is not None and found.si_pid == self._process.pid
            if ours:
                self.signal(signal.SIGKILL)  # what is left of its group; while unreaped, the number is its own
            _, status = os.waitpid(found.si_pid, 0)
            if ours and self._process is not None:
                self.code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                self._process.returncode = self.code
        return self.started and not self.alive

    def end_everything(self) -> None:
        """Kill and reap the command and whatever it has left behind."""
        deadline_s = time.monotonic() + REAP_PATIENCE_S
        self.signal(signal.SIGKILL)
        while time.monotonic() < deadline_s:
            for pid in linux.children_of(os.getpid()):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            self.reap()
            if not linux.children_of(os.getpid()):
                return
            time.sleep(0.005)


def describe(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


def as_exit_code(code: int) -> int:
    """As a shell says it: 128 + N for signal N."""
    return code if code >= 0 else 128 - code

"""Starts Python programs by forking a process that has their libraries loaded: milliseconds instead of seconds.

Tests that start hundreds of torch processes would otherwise spend their time importing torch. The children
are real processes with their own environment, arguments and log; only their start is different.
"""

from __future__ import annotations

import json
import os
import runpy
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support import PYTHONPATH

DEFAULT_PRELOAD = ("numpy", "torch", "torch.distributed", "torch._dynamo", "trainmaster.runtime.elastic_training")


class ForkedProcess:
    """The part of `subprocess.Popen` that a gang needs."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self._server = server

    def poll(self) -> int | None:
        return self._server.code_of(self.pid)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self) -> int:
        while (code := self.poll()) is None:
            time.sleep(0.002)
        return code


class ForkServer:
    def __init__(self, preload: Sequence[str] = DEFAULT_PRELOAD) -> None:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": PYTHONPATH}
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, *preload], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout
        self._codes: dict[int, int] = {}
        self._rest = b""
        self._pids: list[int] = []
        self._read(lambda: b"ready" in self._rest)
        self._rest = b""

    def start(self, arguments: Sequence[str], env: Mapping[str, str], log: Path) -> ForkedProcess:
        """`arguments` as after `python`: a script and its arguments."""
        order = {"arguments": [*arguments], "env": dict(env), "log": str(log)}
        self._to.write(json.dumps(order).encode() + b"\n")
        self._to.flush()
        known = len(self._pids)
        self._read(lambda: len(self._pids) > known)
        return ForkedProcess(self, self._pids[-1])

    def code_of(self, pid: int) -> int | None:
        while pid not in self._codes and select.select([self._from], [], [], 0)[0]:
            self._take()
        return self._codes.get(pid)

    def close(self) -> None:
        self._to.close()
        self._process.wait(10)
        self._from.close()

    def _read(self, until: Any) -> None:
        while not until():
            self._take()

    def _take(self) -> None:
        data = os.read(self._from.fileno(), 4096)
        if not data:
            raise RuntimeError("the fork server has ended")
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            word, _, rest = line.decode().partition(" ")
            if word == "started":
                self._pids.append(int(rest))
            elif word == "ended":
                pid, code = rest.split()
                self._codes[int(pid)] = int(code)
            else:
                self._rest = line


def _serve() -> None:
    for name in sys.argv[1:]:
        __import__(name)
    os.write(1, b"ready")
    buffer = b""
    while True:
        readable = select.select([0], [], [], 0.005)[0]
        if readable:
            data = os.read(0, 1 << 16)
            if not data:
                os._exit(0)  # unloading all these libraries in order takes seconds
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                pid = os.fork()
                if pid == 0:
                    _become(json.loads(line))
                os.write(1, f"started {pid}\n".encode())
        _reap()


def _reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        os.write(1, f"ended {pid} {os.waitstatus_to_exitcode(status)}\n".encode())


def _become(order: dict[str, Any]) -> None:
    """In the child: be the program, then exit as it would."""
    code = 0
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.environ.clear()
    os.environ.update(order["env"])
    sys.argv = order["arguments"]
    try:
        runpy.run_path(order["arguments"][0], run_name="__main__")
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 0 if ending.code is None else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve()

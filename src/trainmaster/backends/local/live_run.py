"""An incarnation as the backend sees it: the line to its keeper, what the keeper last said, what was passed on."""

from __future__ import annotations

import json
import socket
import subprocess
from dataclasses import dataclass, field
from typing import Any

from trainmaster.backends.local.layout import JobFolder, RunFolder

READ_BYTES = 1 << 16


@dataclass(eq=False)
class LiveRun:
    job: JobFolder
    folder: RunFolder
    job_id: str
    generation: int
    node: int
    """A node of its allocation: blamed when the machine could not start it."""
    process: subprocess.Popen[bytes] | None = None
    connection: socket.socket | None = None
    status: dict[str, Any] = field(default_factory=dict)
    told_started: bool = False
    told_seq: int = 0
    told_progress: tuple[Any, ...] = ()
    orders: list[bytes] = field(default_factory=list)
    """Not sent yet, because there is no line."""
    incoming: bytes = b""
    unheard: bool = False
    """Adopted, and its keeper has not spoken yet."""
    asked_start: bool = False
    asked_seq: int = 0
    """What the engine wanted to know meanwhile."""
    last_word: dict[str, Any] | None = None
    _sent: set[tuple[str, int]] = field(default_factory=set)

    @property
    def started(self) -> bool:
        return bool(self.status.get("started"))

    @property
    def work_at_start(self) -> float:
        return float(self.status.get("work_at_start", 0.0))

    @property
    def applied_seq(self) -> int:
        return int(self.status.get("applied_seq", 0))

    def work(self, otherwise: float) -> float:
        """As last reported; a plain command never does."""
        work = self.status.get("work")
        return otherwise if work is None else float(work)

    def order(self, order: str, seq: int, **details: Any) -> None:
        """Once per line: the engine repeats commands that take their time."""
        if (order, seq) in self._sent:
            return
        self._sent.add((order, seq))
        self.orders.append(json.dumps({"order": order, "seq": seq, **details}, separators=(",", ":")).encode() + b"\n")
        self.send()

    def send(self) -> None:
        """Orders are few and small: the kernel's buffer takes them, or the line is dead."""
        while self.connection is not None and self.orders:
            try:
                self.connection.sendall(self.orders[0])
            except OSError:
                return  # reading finds the end of the line
            self.orders.pop(0)

    def receive(self) -> tuple[list[dict[str, Any]], bool]:
        """Messages that have come, and whether the line is dead."""
        assert self.connection is not None
        try:
            data = self.connection.recv(READ_BYTES)
        except BlockingIOError:
            return [], False
        except OSError:
            data = b""
        *lines, self.incoming = (self.incoming + data).split(b"\n")
        return [json.loads(line) for line in lines], not data

    def hang_up(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection, self.incoming = None, b""
        self._sent.clear()

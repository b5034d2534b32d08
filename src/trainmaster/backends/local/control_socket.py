"""The control socket of a supervisor, both ends. Drivers hear the status whenever it changes, and give orders.

One JSON object per line. From the driver: {"order": "resize" | "stop" | "status", ...}; to it: {"status": {...}}
and, as the last word, {"ended": {...}}. A driver that reads slowly is told the newest status, not all of them.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trainmaster.backends.local.run_folder import JobFolder, RunFolder, is_work
from trainmaster.model.foreign import MAX_NUMBER, is_finite, is_whole, parse_json

MAX_ORDER_BYTES = 4 << 20
READ_BYTES = 1 << 16


@dataclass(eq=False)
class _Driver:
    socket: socket.socket
    incoming: bytes = b""
    outgoing: bytes = b""
    told: bytes = b""


class ControlServer:
    """Single-threaded: the owner registers `fileno` with its selector and calls `poll`."""

    def __init__(self, listener: socket.socket, first: socket.socket | None, order: Callable[[dict[str, Any]], None]):
        listener.setblocking(False)
        self._listener = listener
        self._order = order
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._drivers: list[_Driver] = []
        if first is not None:
            self._admit(first)

    def fileno(self) -> int:
        return self._selector.fileno()  # type: ignore[attr-defined]

    def poll(self) -> None:
        """Take what has come; calls `order` for each order."""
        for key, events in self._selector.select(0):
            if key.fileobj is self._listener:
                with contextlib.suppress(OSError):
                    self._admit(self._listener.accept()[0])
                continue
            driver: _Driver = key.data
            if events & selectors.EVENT_WRITE:
                self._flush(driver)
            if events & selectors.EVENT_READ:
                self._read(driver)

    def publish(self, status: dict[str, Any]) -> None:
        """Tell those who have not heard it, unless they still have something to read."""
        line = _line({"status": status})
        for driver in list(self._drivers):
            if driver.told != line and not driver.outgoing:
                driver.told = line
                self._send(driver, line)

    def farewell(self, ended: dict[str, Any], patience_s: float = 1.0) -> None:
        """The last word, and what was left to say; then everything is closed."""
        for driver in list(self._drivers):
            self._send(driver, _line({"ended": ended}))
        deadline_s = time.monotonic() + patience_s
        while any(driver.outgoing for driver in self._drivers) and time.monotonic() < deadline_s:
            self.poll()
            time.sleep(0.005)
        for driver in list(self._drivers):
            self._drop(driver)
        self._listener.close()

    def _admit(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        driver = _Driver(connection)
        self._drivers.append(driver)
        self._selector.register(connection, selectors.EVENT_READ, driver)

    def _read(self, driver: _Driver) -> None:
        if driver.socket.fileno() < 0:
            return
        try:
            data = driver.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, driver.incoming = (driver.incoming + data).split(b"\n")
        for line in lines:
            order = _parse_object(line)
            if order.get("order") == "status":
                driver.told = b""
            elif order:
                self._order(order)
        if not data or len(driver.incoming) > MAX_ORDER_BYTES:
            self._drop(driver)

    def _send(self, driver: _Driver, line: bytes) -> None:
        driver.outgoing += line
        self._flush(driver)

    def _flush(self, driver: _Driver) -> None:
        try:
            sent = driver.socket.send(driver.outgoing)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(driver)
            return
        driver.outgoing = driver.outgoing[sent:]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if driver.outgoing else 0)
        self._selector.modify(driver.socket, events, driver)

    def _drop(self, driver: _Driver) -> None:
        if driver.socket.fileno() >= 0:
            self._selector.unregister(driver.socket)
            driver.socket.close()
        if driver in self._drivers:
            self._drivers.remove(driver)


_STATUS_FIELDS: dict[str, Callable[[Any], bool]] = {
    "started": lambda value: isinstance(value, bool),
    "seen_seq": lambda value: is_whole(value, 0),
    "applied_seq": lambda value: is_whole(value, 0),
    "work_at_start": is_work,
    "work": is_work,
    "rate": is_work,
    "loss": lambda value: is_finite(value, MAX_NUMBER),
    "saved": is_work,
    "checkpoints": lambda value: isinstance(value, bool),
}


def _parse_object(line: bytes) -> dict[str, Any]:
    """Empty for a line that is no JSON object."""
    try:
        data = parse_json(line)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def _line(data: dict[str, Any]) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode() + b"\n"


@dataclass(eq=False)
class LiveRun:
    """An attempt as the backend sees it: the line to its supervisor, what that last said, what was passed on."""

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
    """Adopted, and its supervisor has not spoken yet."""
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

    @property
    def witnessed(self) -> bool:
        """Whether a death of its supervisor now is the attempt's own: it was heard, and nobody asked it to stop."""
        return not self.unheard and all(order != "stop" for order, _ in self._sent)

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
        return [message for line in lines if (message := _parse_object(line))], not data

    def take_status(self, raw: Any) -> None:
        """Only figures of the right type and size; the rest is as if it had not been said."""
        told = raw if isinstance(raw, dict) else {}
        self.status = {name: told[name] for name, fits in _STATUS_FIELDS.items() if fits(told.get(name))}

    def hang_up(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection, self.incoming = None, b""
        self._sent.clear()

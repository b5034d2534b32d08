"""The listening side of launchers' connections: HTTP/1.1 Upgrade, then the lines of `trainmaster.gang.protocol`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Protocol, cast

from trainmaster.gang.protocol import LineBuffer, Message, WireError, encode
from trainmaster.launcher.dialing import PATH, PROTOCOL

MAX_HEAD_BYTES = 8192
MAX_UNREAD_BYTES = 4 << 20
"""A launcher that does not read what it is told is cut off; it comes back."""
MAX_UNPROVED_BYTES = 16_384
"""Read of a caller that has not shown a token; what introduces a launcher is shorter than 1 KiB."""


class Ears(Protocol):
    """Who is told what comes in."""

    def serving(self) -> bool:
        """Whether launchers may attach here now."""
        ...

    def heard(self, line: AgentLine, message: Message) -> None: ...

    def gone(self, line: AgentLine) -> None: ...


class AgentLine(asyncio.Protocol):
    """One connection. `owner` is for whoever listens to remember whose it is."""

    def __init__(self, ears: Ears) -> None:
        self._ears = ears
        self._head = b""
        self._buffer: LineBuffer | None = None
        self._transport: asyncio.Transport | None = None
        self.owner: object | None = None
        self._unproved = 0
        self.made_s = time.monotonic()

    @property
    def remote_host(self) -> str:
        name = self._transport.get_extra_info("peername") if self._transport is not None else None
        return str(name[0]) if name else ""

    def send(self, message: Message) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            transport.abort()
            return
        transport.write(encode(message))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # -- asyncio -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but its base

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._transport = None
        self._ears.gone(self)

    def data_received(self, data: bytes) -> None:
        if self._buffer is None:
            data = self._greet(data)
        if self._buffer is None or not data:
            return
        if self.owner is None:
            self._unproved += len(data)
            if self._unproved > MAX_UNPROVED_BYTES:
                self.close()
                return
        try:
            messages = self._buffer.feed(data)
        except WireError:
            self.close()
            return
        for message in messages:
            self._ears.heard(self, message)

    def _greet(self, data: bytes) -> bytes:
        """What follows the head of the request; empty while that is not complete."""
        self._head += data
        head, found, rest = self._head.partition(b"\r\n\r\n")
        if not found:
            if len(self._head) > MAX_HEAD_BYTES:
                self.close()
            return b""
        self._head = b""
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split()
        if words[:2] != ["GET", PATH] or PROTOCOL not in head.decode("latin-1"):
            self._answer("404 Not Found")
        elif not self._ears.serving():
            self._answer("503 Service Unavailable")
        else:
            self._buffer = LineBuffer()
            self._write(f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n\r\n")
            return rest
        return b""

    def _answer(self, status: str) -> None:
        self._write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        self.close()

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            if self._transport is not None:
                self._transport.write(text.encode("latin-1"))

"""Frames between workers and parameter servers: a fixed head, then raw bytes; nothing is pickled.

Head (48 bytes, little-endian): magic, kind, status, block, number, epoch, clock, factor, size of what follows.
`PUSH` carries a gradient (number: the worker's sequence number; epoch: of the map it goes by; clock: its steps;
factor: on the learning rate) and is answered, like `PULL`, by `STATE` with fresh parameters (epoch: version of
the block, clock: its work). `TEXT` is JSON: questions and answers with the same number.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from trainmaster.model.foreign import parse_json
from trainmaster.runtime.ps.block_store import Status

_HEAD = struct.Struct("<2sBBIQQQdQ")
HEAD_BYTES = _HEAD.size
_MAGIC = b"TM"
TEXT_BYTES_MAX = 1 << 26

Buffer = bytes | bytearray | memoryview


class ProtocolError(ConnectionError):
    """The other side does not speak this protocol; the connection is closed."""


class Kind(IntEnum):
    TEXT = 1
    PUSH = 2
    PULL = 3
    AWAIT = 4
    STATE = 5
    VALUES = 6
    FETCH = 7
    COPY = 8
    BLOCK = 9


@dataclass(frozen=True, slots=True)
class Head:
    kind: Kind
    block: int = 0
    number: int = 0
    status: Status = Status.OK
    epoch: int = 0
    clock: int = 0
    factor: float = 1.0
    size: int = 0

    def pack(self) -> bytes:
        return _HEAD.pack(
            _MAGIC, self.kind, self.status, self.block, self.number, self.epoch, self.clock, self.factor, self.size
        )


def unpack_head(data: Buffer) -> Head:
    magic, kind, status, block, number, epoch, clock, factor, size = _HEAD.unpack(data)
    if magic != _MAGIC:
        raise ProtocolError(f"not a frame: {bytes(data[:8])!r}")
    try:
        return Head(Kind(kind), block, number, Status(status), epoch, clock, factor, size)
    except ValueError as error:
        raise ProtocolError(str(error)) from error


def text_frame(number: int, data: dict[str, Any]) -> bytes:
    body = json.dumps(data, separators=(",", ":")).encode()
    return Head(Kind.TEXT, number=number, size=len(body)).pack() + body


def parse_text(body: Buffer) -> dict[str, Any]:
    try:
        data = parse_json(bytes(body))
    except ValueError as error:
        raise ProtocolError("not JSON") from error
    if not isinstance(data, dict):
        raise ProtocolError("not a JSON object")
    return data


def tune(connection: socket.socket) -> None:
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class Channel:
    """One connection inside an event loop: reads straight into given memory, writes given memory in order."""

    def __init__(self, connection: socket.socket) -> None:
        tune(connection)
        self._socket = connection
        self._loop = asyncio.get_running_loop()
        self._outbox: deque[Callable[[], Sequence[Buffer]]] = deque()
        self._awake = asyncio.Event()
        self._closed = False
        self._writer = self._loop.create_task(self._write())
        self._head = memoryview(bytearray(HEAD_BYTES))
        self._wanted: memoryview | None = None
        self._filled: asyncio.Future[None] | None = None
        self._listening = False

    @property
    def closed(self) -> bool:
        return self._closed

    async def read_head(self) -> Head:
        await self.read_into(self._head)
        return unpack_head(self._head)

    async def read_into(self, view: memoryview) -> None:
        """Fill `view`. The loop goes on watching the socket between two reads: to start and stop costs more than
        a spare wake-up."""
        left = self._receive(view)
        if not len(left):
            return
        self._wanted, self._filled = left, self._loop.create_future()
        if not self._listening:
            self._loop.add_reader(self._socket.fileno(), self._readable)
            self._listening = True
        try:
            await self._filled
        finally:
            self._wanted = self._filled = None

    def _receive(self, view: memoryview) -> memoryview:
        """What is left to fill after all that has come."""
        while len(view):
            try:
                count = self._socket.recv_into(view)
            except (BlockingIOError, InterruptedError):
                break
            if count == 0:
                raise ConnectionError("the other side hung up")
            view = view[count:]
        return view

    def _readable(self) -> None:
        if self._wanted is None or self._filled is None or self._filled.done():
            self._loop.remove_reader(self._socket.fileno())
            self._listening = False
            return
        try:
            self._wanted = self._receive(self._wanted)
        except OSError as error:
            self._filled.set_exception(error)
            return
        if not len(self._wanted):
            self._filled.set_result(None)

    async def read_bytes(self, size: int) -> bytearray:
        body = bytearray(size)
        await self.read_into(memoryview(body))
        return body

    async def read_text(self, head: Head) -> dict[str, Any]:
        if head.size > TEXT_BYTES_MAX:
            raise ProtocolError(f"a message of {head.size} bytes")
        return parse_text(await self.read_bytes(head.size))

    def post(self, make: Callable[[], Sequence[Buffer]]) -> None:
        """Send what `make()` gives when its turn has come: parameters are read then, not now."""
        if self._closed:
            return
        if not self._outbox:  # mostly the kernel takes all of it at once, and nobody need be woken
            left = self._try_to_send(make())
            if not left:
                return
            self._outbox.append(lambda: left)
        else:
            self._outbox.append(make)
        self._awake.set()

    def post_text(self, number: int, data: dict[str, Any]) -> None:
        frame = text_frame(number, data)
        self.post(lambda: (frame,))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._outbox.clear()
            self._writer.cancel()
            if self._listening:
                self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()

    async def drain(self, timeout_s: float) -> None:
        """Until all has been handed to the kernel, or the time is over."""
        until_s = self._loop.time() + timeout_s
        while self._outbox and not self._closed and self._loop.time() < until_s:
            await asyncio.sleep(0.005)

    async def _write(self) -> None:
        try:
            while True:
                while self._outbox:
                    await self._send(self._outbox[0]())
                    self._outbox.popleft()
                self._awake.clear()
                await self._awake.wait()
        except OSError:
            # The reader of this connection learns of it too and closes; what is left cannot be sent.
            self._outbox.clear()

    async def _send(self, buffers: Sequence[Buffer]) -> None:
        for view in self._try_to_send(buffers):
            await self._loop.sock_sendall(self._socket, view)

    def _try_to_send(self, buffers: Sequence[Buffer]) -> list[memoryview]:
        """What the kernel would not take now. A broken connection is the reader's to notice."""
        views = [memoryview(buffer) for buffer in buffers if len(buffer)]
        try:
            sent = self._socket.sendmsg(views)
        except OSError:
            return views
        while views and sent >= len(views[0]):
            sent -= len(views.pop(0))
        if views:
            views[0] = views[0][sent:]
        return views

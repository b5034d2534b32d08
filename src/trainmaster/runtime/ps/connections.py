"""A worker's connections to the servers: frames out of given memory, frames into given memory, without waiting.

`Wire` is one connection; the exchange that owns it says where a body goes when its head has come.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable

from trainmaster.runtime.ps.frames import HEAD_BYTES, Buffer, Head, text_frame, tune, unpack_head

CONNECT_TIMEOUT_S = 1.0
_BUFFERS_AT_ONCE = 64


class Wire:
    """Raises `OSError` when the connection is lost; it is then of no further use."""

    def __init__(self, address: str, hello: dict[str, str]) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S)
        tune(self.socket)
        self.address = address
        self._outgoing: deque[memoryview] = deque()
        self._head_bytes = memoryview(bytearray(HEAD_BYTES))
        self._head: Head | None = None
        self._left = self._head_bytes
        self.send(text_frame(0, dict(hello)))

    @property
    def wants_to_write(self) -> bool:
        return bool(self._outgoing)

    def send(self, *buffers: Buffer) -> None:
        self._outgoing.extend(memoryview(buffer) for buffer in buffers if len(buffer))

    def write(self) -> None:
        """As much as the kernel takes."""
        while self._outgoing:
            views = [self._outgoing[i] for i in range(min(len(self._outgoing), _BUFFERS_AT_ONCE))]
            try:
                sent = self.socket.sendmsg(views)
            except (BlockingIOError, InterruptedError):
                return
            while sent:
                first = self._outgoing[0]
                if sent < len(first):
                    self._outgoing[0] = first[sent:]
                    break
                sent -= len(first)
                self._outgoing.popleft()

    def read(self, body_for: Callable[[Head], memoryview], take: Callable[[Wire, Head, memoryview], None]) -> None:
        """As much as has come: `body_for` gives the memory of a body, `take` gets every whole frame."""
        body = memoryview(b"")
        while True:
            if len(self._left):
                try:
                    count = self.socket.recv_into(self._left)
                except (BlockingIOError, InterruptedError):
                    return
                if count == 0:
                    raise ConnectionError("the server hung up")
                self._left = self._left[count:]
                if len(self._left):
                    continue
            if self._head is None:
                self._head = unpack_head(self._head_bytes)
                self._body = body = body_for(self._head)
                self._left = body
                continue
            head, body = self._head, self._body
            self._head, self._left = None, self._head_bytes
            take(self, head, body)
            if self.socket.fileno() < 0:
                return  # the owner has closed it meanwhile

    def close(self) -> None:
        self.socket.close()

    _body: memoryview = memoryview(b"")

"""HTTP connections with a time limit on requests: who opens one and does not finish its request is cut off.

Uvicorn limits only the pause after an answer. Without this, half-open requests are kept for ever, until no file
descriptor is left for anybody else.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

REQUEST_S = 15.0
"""From the first byte, or the connection itself, to the end of a request's body."""
MAX_UNFINISHED = 512
"""Connections that wait for a whole request for longer than `PATIENCE_S`; of more, the oldest is closed."""
PATIENCE_S = 5.0
"""A thousand clients that come at once have sent their requests, and are read one after the other."""
MAX_OPEN = min(2048, max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2, MAX_UNFINISHED))
"""Connections that wait for a whole request, however short; of more, the oldest is closed. Half of the file descriptors
are for others."""
MAX_HEAD_BYTES = 1 << 16
"""Address and headers of a request."""


class TimedConnection(HttpToolsProtocol):
    """A connection that is closed when a request is not whole in time."""

    request_s = REQUEST_S
    unfinished: ClassVar[dict[TimedConnection, float]] = {}
    """Since when, in order of their beginning."""
    _timer: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_request()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._timer is None:  # a further request of the same connection
            self._await_request()

    def on_url(self, url: bytes) -> None:
        self._head_bytes = 0
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_message_complete(self) -> None:
        self._forget()
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _count(self, n_bytes: int) -> None:
        self._head_bytes += n_bytes
        if self._head_bytes > MAX_HEAD_BYTES:
            self._cut_off()

    def _await_request(self) -> None:
        self._timer = self.loop.call_later(self.request_s, self._cut_off)
        now_s = self.loop.time()
        self.unfinished[self] = now_s
        if len(self.unfinished) > MAX_UNFINISHED:
            oldest = next(iter(self.unfinished))
            if len(self.unfinished) > MAX_OPEN or now_s - self.unfinished[oldest] > PATIENCE_S:
                oldest._cut_off()

    def _forget(self) -> None:
        self.unfinished.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _cut_off(self) -> None:
        self._forget()
        self.transport.abort()

"""Where a launcher hears of a new leader: a small HTTP port in its pod, for clusters in which names do not resolve.

`POST /v1/leader` with {"token": ..., "address": "host:port"}. It only adds an address to those that are tried;
whoever serves there must still prove nothing to us: a lease from the wrong service would need the run's token.
"""

from __future__ import annotations

import contextlib
import hmac
import selectors
import socket

from trainmaster.launcher.settings import BadSettings, split_address
from trainmaster.model.foreign import parse_json

MAX_BYTES = 4096
MAX_CALLERS = 8
PATH = "/v1/leader"


class NoticePort:
    """If the port is taken (host network), there is none: names and known addresses must do."""

    def __init__(self, port: int, token: str) -> None:
        self._token = token.encode()
        self._selector = selectors.DefaultSelector()
        self._callers: dict[socket.socket, bytes] = {}
        self._listener: socket.socket | None = None
        with contextlib.suppress(OSError, OverflowError):
            self._listener = socket.create_server(("", port), backlog=8)
            self._listener.setblocking(False)
            self._selector.register(self._listener, selectors.EVENT_READ)

    def fileno(self) -> int:
        return self._selector.fileno() if self._listener is not None else -1  # type: ignore[attr-defined]

    def poll(self) -> list[str]:
        """Addresses that were told."""
        told: list[str] = []
        if self._listener is None:
            return told
        for key, _ in self._selector.select(0):
            if key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.fileobj, socket.socket):
                address = self._read(key.fileobj)
                if address:
                    told.append(address)
        return told

    def _accept(self) -> None:
        assert self._listener is not None
        with contextlib.suppress(OSError):
            caller, _ = self._listener.accept()
            caller.setblocking(False)
            if len(self._callers) >= MAX_CALLERS:  # the oldest has had its time
                self._drop(next(iter(self._callers)))
            self._callers[caller] = b""
            self._selector.register(caller, selectors.EVENT_READ)

    def _read(self, caller: socket.socket) -> str:
        if caller not in self._callers:
            return ""
        try:
            data = caller.recv(MAX_BYTES)
        except BlockingIOError:
            return ""
        except OSError:
            data = b""
        request = self._callers[caller] = self._callers[caller] + data
        head, found, body = request.partition(b"\r\n\r\n")
        length = _content_length(head) if found else -1
        if not found or length > len(body):
            if not data or len(request) > MAX_BYTES:
                self._drop(caller)
            return ""
        address = self._address(head, body[:length])
        status = b"200 OK" if address else b"403 Forbidden"
        with contextlib.suppress(OSError):
            caller.send(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        self._drop(caller)
        return address

    def _address(self, head: bytes, body: bytes) -> str:
        try:
            told = parse_json(body)
            if not head.startswith(f"POST {PATH} ".encode()):
                return ""
            if not hmac.compare_digest(str(told["token"]).encode(), self._token):
                return ""
            split_address(str(told["address"]))
            return str(told["address"])
        except (ValueError, KeyError, TypeError, BadSettings):
            return ""

    def _drop(self, caller: socket.socket) -> None:
        if self._callers.pop(caller, None) is not None:
            self._selector.unregister(caller)
            caller.close()


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length" and value.strip().isdigit() and len(value.strip()) < 10:
            return int(value)
    return 0

"""How a launcher reaches the service: every known address at once, each in a thread, since names resolve slowly.

The connection begins as HTTP/1.1 with `Upgrade`, so that whoever does not lead can say so, and goes on with the
lines of `trainmaster.gang.protocol`.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Sequence

from trainmaster.launcher.settings import split_address

PATH = "/agent/v1"
PROTOCOL = "trainmaster-agent"
CONNECT_TIMEOUT_S = 3.0
MAX_REPLY_BYTES = 8192


class NotServed(OSError):
    """The other side is there but does not serve launchers now."""


class Dialer:
    """`dial` starts attempts; `wake` is called, from another thread, when `take` may have something."""

    def __init__(self, services: Sequence[str], wake: Callable[[], None]) -> None:
        self._services: list[str] = list(services)
        self._wake = wake
        self._lock = threading.Lock()
        self._under_way: set[str] = set()
        self._found: list[tuple[str, socket.socket]] = []
        self.failure = ""

    def hear_of(self, address: str) -> None:
        """An address that serves now, or did: tried with the others from now on."""
        if address not in self._services:
            self._services.insert(0, address)
            del self._services[8:]

    def dial(self) -> None:
        for address in self._services:
            with self._lock:
                if address in self._under_way:
                    continue
                self._under_way.add(address)
            threading.Thread(target=self._attempt, args=(address,), daemon=True).start()

    def take(self) -> tuple[str, socket.socket] | None:
        """One that answered, and its socket; the others are closed."""
        with self._lock:
            found, self._found = self._found, []
        for _, extra in found[1:]:
            extra.close()
        return found[0] if found else None

    def _attempt(self, address: str) -> None:
        try:
            connected = connect(address)
        except (OSError, ValueError) as error:
            connected, self.failure = None, f"{address}: {error}"
        with self._lock:
            self._under_way.discard(address)
            if connected is not None:
                self._found.append((address, connected))
        if connected is not None:
            self._wake()


def connect(address: str, timeout_s: float = CONNECT_TIMEOUT_S) -> socket.socket:
    """A connection on which lines may be exchanged; `OSError` if there is none."""
    host, port = split_address(address)
    last: OSError = OSError("the name has no address")
    for family, kind, number, _, where in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        connection = socket.socket(family, kind, number)
        try:
            connection.settimeout(timeout_s)
            connection.connect(where)
            _upgrade(connection, address)
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setblocking(False)
            return connection
        except OSError as error:  # a headless service names all replicas, of which one leads
            connection.close()
            last = error
    raise last


def _upgrade(connection: socket.socket, address: str) -> None:
    lines = (f"GET {PATH} HTTP/1.1", f"Host: {address}", "Connection: Upgrade", f"Upgrade: {PROTOCOL}", "", "")
    request = "\r\n".join(lines)
    connection.sendall(request.encode())
    reply = b""
    while not reply.endswith(b"\r\n\r\n"):  # byte by byte at the end: what follows belongs to the lines
        byte = connection.recv(1)
        if not byte or len(reply) > MAX_REPLY_BYTES:
            raise NotServed("hung up without an answer")
        reply += byte
    status = reply.split(b"\r\n", 1)[0].decode("latin-1")
    if " 101 " not in status + " ":
        raise NotServed(status)

"""A listening socket for the members of one attempt: reads and writes messages, keeps no opinion.

Single-threaded: the owner calls `poll` in its loop. A member is known by its name after a `Hello` with the
right token; a second connection under the same name replaces the first (the process connected again).
A part of the launcher's bundle: Python 3.8 or newer.
"""

from __future__ import annotations

import selectors
import socket
from dataclasses import dataclass, field
from typing import Tuple, Union  # noqa: UP035

from trainmaster.gang.protocol import Hello, LineBuffer, Message, WireError, encode


@dataclass(eq=False)
class _Connection:
    socket: socket.socket
    buffer: LineBuffer = field(default_factory=LineBuffer)
    outgoing: bytes = b""
    member: str = ""


@dataclass(frozen=True)
class Gone:
    """A member's connection has ended (which does not say that the process has)."""


Inbound = Tuple[str, Union[Message, Gone]]  # noqa: UP006, UP007


class Endpoint:
    def __init__(self, listener: socket.socket, token: str) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._token = token.encode()
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._by_member: dict[str, _Connection] = {}

    def fileno(self) -> int:
        """Readable whenever `poll` has something to do, so that an owner can wait for other things too."""
        return self._selector.fileno()  # type: ignore[attr-defined]

    def poll(self, timeout_s: float) -> list[Inbound]:
        """What has come in, in order; waits at most `timeout_s` for something to come."""
        inbound: list[Inbound] = []
        for key, events in self._selector.select(timeout_s):
            if key.fileobj is self._listener:
                self._accept()
                continue
            connection: _Connection = key.data
            if events & selectors.EVENT_WRITE:
                self._flush(connection, inbound)
            if events & selectors.EVENT_READ:
                self._read(connection, inbound)
        return inbound

    def send(self, member: str, message: Message) -> bool:
        """False when the member is not connected."""
        connection = self._by_member.get(member)
        if connection is None:
            return False
        connection.outgoing += encode(message)
        self._selector.modify(connection.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)
        return True

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            self._selector.unregister(key.fileobj)
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except OSError:
            return
        accepted.setblocking(False)
        self._selector.register(accepted, selectors.EVENT_READ, _Connection(accepted))

    def _read(self, connection: _Connection, inbound: list[Inbound]) -> None:
        if connection.socket.fileno() < 0:
            return  # dropped by an earlier event of the same poll
        try:
            data = connection.socket.recv(1 << 16)
            messages = connection.buffer.feed(data)
        except BlockingIOError:
            return
        except (OSError, WireError):
            self._drop(connection, inbound)
            return
        for message in messages:
            if connection.member:
                inbound.append((connection.member, message))
            elif isinstance(message, Hello) and self._is_token(message.token):
                self._enter(connection, message, inbound)
            else:
                self._drop(connection, inbound)
                return
        if not data:
            self._drop(connection, inbound)

    def _is_token(self, token: str) -> bool:
        import hmac  # loads OpenSSL, which a supervisor whose members never speak need not

        return hmac.compare_digest(token.encode(), self._token)

    def _enter(self, connection: _Connection, hello: Hello, inbound: list[Inbound]) -> None:
        earlier = self._by_member.get(hello.member)
        if earlier is not None:
            self._drop(earlier, inbound)
        connection.member = hello.member
        self._by_member[hello.member] = connection
        inbound.append((hello.member, hello))

    def _flush(self, connection: _Connection, inbound: list[Inbound]) -> None:
        try:
            sent = connection.socket.send(connection.outgoing)
        except BlockingIOError:
            return
        except OSError:
            self._drop(connection, inbound)
            return
        connection.outgoing = connection.outgoing[sent:]
        if not connection.outgoing:
            self._selector.modify(connection.socket, selectors.EVENT_READ, connection)

    def _drop(self, connection: _Connection, inbound: list[Inbound]) -> None:
        if connection.socket.fileno() < 0:
            return
        self._selector.unregister(connection.socket)
        connection.socket.close()
        if connection.member and self._by_member.get(connection.member) is connection:
            del self._by_member[connection.member]
            inbound.append((connection.member, Gone()))

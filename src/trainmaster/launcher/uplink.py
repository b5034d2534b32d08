"""One connection of a launcher to the service: lines out and in, renewals and when they were sent. No opinion."""

from __future__ import annotations

import socket

from trainmaster.gang.protocol import Attach, LineBuffer, Message, Renew, Renewed, encode
from trainmaster.model.lease import LeaseRule

ATTACH_PATIENCE_MS = 5_000
MIN_PATIENCE_MS = 500
PATIENCE_SHARE = 6
"""A renewal without an answer for this part of the lease: the line is taken for dead, and another one is sought."""


class Uplink:
    def __init__(self, connection: socket.socket, attach: Attach, now_ms: int) -> None:
        self.socket = connection
        self.attached = False
        self._buffer = LineBuffer()
        self._outgoing = encode(attach)
        self._attach_sent_ms = now_ms
        self._rule: LeaseRule | None = None
        self._number = 0
        self._sent: dict[int, tuple[int, list[Message]]] = {}
        """Renewals under way: when they were sent, and what the runtime is told when they succeed."""
        self._next_ms = 0

    def welcome(self, lease_ms: int) -> int:
        """Attached. When what the lease counts from was sent."""
        self.attached = True
        self._rule = LeaseRule(lease_ms)
        self._next_ms = self._attach_sent_ms + self._rule.renew_every_ms
        return self._attach_sent_ms

    def send(self, message: Message) -> None:
        self._outgoing += encode(message)

    def renew_if_due(self, now_ms: int) -> None:
        if self._rule is not None and now_ms >= self._next_ms:
            self._renew(now_ms, [])

    def renew_for(self, renew: Renew, now_ms: int) -> None:
        """The runtime asks: ours is renewed now, in place of the next one that would have been due."""
        if self._rule is not None:
            self._renew(now_ms, [Renewed(renew.number)])

    def answered(self, message: Message) -> tuple[int, list[Message]] | None:
        """When the renewal that has succeeded was sent, and what to tell the runtime."""
        return self._sent.pop(message.number, None) if isinstance(message, Renewed) else None

    def dead(self, now_ms: int) -> str:
        """Why this line is of no use any more; empty while it is."""
        if self._rule is None:
            return "not welcomed" if now_ms > self._attach_sent_ms + ATTACH_PATIENCE_MS else ""
        oldest_ms = min((sent_ms for sent_ms, _ in self._sent.values()), default=now_ms)
        return "no answer to a renewal" if now_ms > oldest_ms + self._patience_ms() else ""

    def next_due_ms(self) -> int:
        if self._rule is None:
            return self._attach_sent_ms + ATTACH_PATIENCE_MS + 1
        oldest_ms = min((sent_ms for sent_ms, _ in self._sent.values()), default=self._next_ms)
        return min(self._next_ms, oldest_ms + self._patience_ms() + 1)

    def flush(self) -> bool:
        """Whether something is left to be sent."""
        while self._outgoing:
            try:
                sent = self.socket.send(self._outgoing)
            except BlockingIOError:
                return True
            self._outgoing = self._outgoing[sent:]
        return False

    def receive(self) -> list[Message]:
        """`OSError` at the end of the line, `WireError` (a `ValueError`) when it makes no sense."""
        try:
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionError("the service hung up")
        return self._buffer.feed(data)

    def _patience_ms(self) -> int:
        assert self._rule is not None
        return max(MIN_PATIENCE_MS, self._rule.lease_ms // PATIENCE_SHARE)

    def _renew(self, now_ms: int, for_runtime: list[Message]) -> None:
        assert self._rule is not None
        self._number += 1
        self._sent[self._number] = (now_ms, for_runtime)
        self._outgoing += encode(Renew(self._number))
        self._next_ms = now_ms + self._rule.renew_every_ms

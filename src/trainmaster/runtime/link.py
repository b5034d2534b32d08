"""A member's line to its agent: one background thread that renews the lease, reports, and hears what comes.

The training loop never waits for the agent: `report` leaves the newest figures for the thread to send,
`membership` and `stop_notice` are what has last been heard. The thread connects again when the line breaks,
and ends the process when the lease has run out (`trainmaster.model.lease`: counted from the moment the
renewal that succeeded was sent, on this process's own clock, which goes on while the machine sleeps).
Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from trainmaster.gang.linux import boot_clock_ms
from trainmaster.gang.protocol import (
    EXIT_LEASE_OVER,
    Hello,
    Joined,
    LineBuffer,
    Membership,
    Message,
    Progress,
    Renew,
    Renewed,
    StopNotice,
    Suspect,
    Welcome,
    WireError,
    encode,
)
from trainmaster.model.lease import LeaseRule
from trainmaster.runtime.errors import AgentUnreachable, LeaseOver

REPORT_EVERY_S = 0.5
CONNECT_TIMEOUT_S = 1.0
RETRY_S = 0.2
_UNIX_PATH_MAX = 107


def _end_process(why: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"trainmaster: {why}; this process ends itself\n")
        sys.stderr.flush()
    os._exit(EXIT_LEASE_OVER)  # the training thread may be stuck in a collective: no exception would reach it


class AgentLink:
    """`open` connects and waits for the welcome; `close` sends what is left."""

    def __init__(
        self,
        agent: str,
        hello: Hello,
        *,
        clock_ms: Callable[[], int] = boot_clock_ms,
        on_lease_over: Callable[[str], None] = _end_process,
        on_membership: Callable[[Membership], None] | None = None,
    ) -> None:
        self._agent = agent
        self._hello = hello
        self._clock_ms = clock_ms
        self._on_lease_over = on_lease_over
        self._on_membership = on_membership
        self._changed = threading.Condition()
        self._wake_out, self._wake_in = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="trainmaster-link", daemon=True)
        # Shared with the training thread, guarded by `_changed`.
        self._membership: Membership | None = None
        self._stop_notice: StopNotice | None = None
        self._lease: LeaseRule | None = None
        self._lease_ends_ms = 0
        self._queue: list[Message] = []
        self._progress: Progress | None = None
        self._joined: Joined | None = None
        self._failure = ""
        self._closing_by_s: float | None = None
        # The thread's own.
        self._socket: socket.socket | None = None
        self._outgoing = b""
        self._number = 0
        self._sent_ms: dict[int, int] = {}
        self._hello_sent_ms = 0
        self._next_renew_ms = 0
        self._next_try_s = 0.0

    # -- for the training thread ------------------------------------------------------------------

    def open(self, timeout_s: float = 30.0) -> None:
        self._thread.start()
        with self._changed:
            if not self._changed.wait_for(lambda: self._lease is not None, timeout_s):
                raise AgentUnreachable(
                    f"no welcome from the agent at {self._agent} within {timeout_s:g} s "
                    f"({self._failure or 'silence'}); "
                    "was this process started by hand with TRAINMASTER_AGENT set? Unset it to run unmanaged"
                )

    @property
    def membership(self) -> Membership | None:
        """The newest one heard of, whether or not this member has gone over to it."""
        return self._membership

    @property
    def stop_notice(self) -> StopNotice | None:
        return self._stop_notice

    @property
    def lease_left_s(self) -> float:
        return (self._lease_ends_ms - self._clock_ms()) / 1000.0

    def check_lease(self) -> None:
        """`LeaseOver` unless this process may change anything now."""
        if self.lease_left_s <= 0:
            member = self._hello.member
            raise LeaseOver(f"the lease of {member} has run out; nothing may be changed or saved any more")

    def wait(self, until: Callable[[], bool], timeout_s: float | None) -> bool:
        """Sleep until something heard makes `until()` true; False when the time is over first."""
        with self._changed:
            return self._changed.wait_for(until, timeout_s)

    def wait_for_membership(self, after_version: int, timeout_s: float | None) -> Membership | None:
        """The first membership newer than `after_version`; None when none came in time, or a stop did."""

        def newer() -> bool:
            return self._membership is not None and self._membership.version > after_version

        self.wait(lambda: newer() or self._stop_notice is not None, timeout_s)
        return self._membership if newer() else None

    def report(self, progress: Progress) -> None:
        """Replaces what has not been sent yet: only the newest figures matter."""
        with self._changed:
            self._progress = progress

    def joined(self, version: int) -> None:
        with self._changed:
            self._joined = Joined(version)
            self._queue.append(self._joined)
        self._wake()

    def suspect(self, version: int, members: tuple[str, ...]) -> None:
        with self._changed:
            self._queue.append(Suspect(version, members))
        self._wake()

    def close(self, timeout_s: float = 2.0) -> None:
        """Send the last report, then hang up."""
        with self._changed:
            self._closing_by_s = time.monotonic() + timeout_s
        self._wake()
        if self._thread.is_alive():
            self._thread.join(timeout_s + CONNECT_TIMEOUT_S + 1.0)

    # -- the thread -------------------------------------------------------------------------------

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it will wake anyway
            self._wake_in.send(b"x")

    def _run(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self._wake_out, selectors.EVENT_READ)
        buffer = LineBuffer()
        while not self._finished():
            self._check_lease()
            if self._socket is None:
                if not self._connect():
                    continue
                buffer = LineBuffer()
            assert self._socket is not None
            try:
                self._fill_outgoing()
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outgoing else 0)
                selector.register(self._socket, events)
                ready = selector.select(self._patience_s(REPORT_EVERY_S))
                selector.unregister(self._socket)
                for key, happened in ready:
                    if key.fileobj is self._wake_out:
                        with contextlib.suppress(BlockingIOError):
                            self._wake_out.recv(4096)
                        continue
                    if happened & selectors.EVENT_WRITE:
                        self._outgoing = self._outgoing[self._socket.send(self._outgoing) :]
                    if happened & selectors.EVENT_READ:
                        self._hear(self._socket, buffer)
            except (OSError, WireError) as error:
                self._hang_up(str(error))
        self._hang_up("closed")
        selector.close()

    def _patience_s(self, at_most_s: float) -> float:
        """How long the thread may sleep without missing the end of the lease."""
        if self._lease is None:
            return at_most_s
        return max(0.001, min(at_most_s, self.lease_left_s))

    def _finished(self) -> bool:
        if self._closing_by_s is None:
            return False
        unsent = bool(self._outgoing or self._queue or self._progress)
        return not (unsent and self._socket is not None and time.monotonic() < self._closing_by_s)

    def _connect(self) -> bool:
        pause_s = self._next_try_s - time.monotonic()
        if pause_s > 0:
            time.sleep(self._patience_s(min(pause_s, RETRY_S)))
            return False
        self._next_try_s = time.monotonic() + RETRY_S
        try:
            connection = _dial(self._agent, self._patience_s(CONNECT_TIMEOUT_S))
        except (OSError, ValueError) as error:
            self._failure = f"{error}"
            return False
        connection.setblocking(False)
        self._socket = connection
        self._hello_sent_ms = self._clock_ms()
        self._outgoing = encode(self._hello)
        self._sent_ms.clear()
        return True

    def _hang_up(self, why: str) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, self._outgoing, self._failure = None, b"", why

    def _fill_outgoing(self) -> None:
        now_ms = self._clock_ms()
        if self._lease is not None and now_ms >= self._next_renew_ms:
            self._number += 1
            self._sent_ms[self._number] = now_ms
            self._outgoing += encode(Renew(self._number))
            self._next_renew_ms = now_ms + self._lease.renew_every_ms
        if self._lease is None:
            return  # not welcomed yet: nothing may come before that
        with self._changed:
            messages, self._queue = self._queue, []
            if self._progress is not None:
                messages.append(self._progress)
                self._progress = None
        self._outgoing += b"".join(map(encode, messages))

    def _hear(self, connection: socket.socket, buffer: LineBuffer) -> None:
        data = connection.recv(1 << 16)
        if not data:
            raise ConnectionError("the agent hung up")
        for message in buffer.feed(data):
            before = self._membership
            with self._changed:
                self._take(message)
                self._changed.notify_all()
            if self._on_membership is not None and self._membership is not before and self._membership is not None:
                self._on_membership(self._membership)

    def _take(self, message: Message) -> None:
        if isinstance(message, Welcome):
            again = self._lease is not None
            self._lease = LeaseRule(lease_ms=int(message.lease_s * 1000))
            self._extend_lease(self._hello_sent_ms)
            self._next_renew_ms = self._hello_sent_ms + self._lease.renew_every_ms
            if message.membership is not None:
                self._take_membership(message.membership)
            if again and self._joined is not None:
                self._queue.append(self._joined)  # the agent may have missed it
        elif isinstance(message, Membership):
            self._take_membership(message)
        elif isinstance(message, StopNotice):
            self._stop_notice = message
        elif isinstance(message, Renewed):
            sent_ms = self._sent_ms.pop(message.number, None)
            if sent_ms is not None:
                self._extend_lease(sent_ms)

    def _take_membership(self, membership: Membership) -> None:
        if self._membership is None or membership.version > self._membership.version:
            self._membership = membership

    def _extend_lease(self, sent_ms: int) -> None:
        assert self._lease is not None
        self._lease_ends_ms = max(self._lease_ends_ms, self._lease.worker_ends_ms(sent_ms))

    def _check_lease(self) -> None:
        if self._lease is not None and self._clock_ms() >= self._lease_ends_ms:
            self._on_lease_over(f"the lease of {self._hello.member} ran out ({self._failure or 'no renewal came'})")


def _dial(agent: str, timeout_s: float) -> socket.socket:
    """Connect to `unix:/path` or `tcp:host:port`."""
    kind, _, rest = agent.partition(":")
    if kind == "tcp":
        host, _, port = rest.rpartition(":")
        return socket.create_connection((host, int(port)), timeout_s)
    if kind != "unix":
        raise ValueError(f"TRAINMASTER_AGENT is {agent!r}; expected unix:/path or tcp:host:port")
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(timeout_s)
    path = Path(rest)
    folder = -1
    try:
        if len(os.fsencode(rest)) > _UNIX_PATH_MAX:  # the kernel's limit: reach it through its open folder
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            rest = f"/proc/self/fd/{folder}/{path.name}"
        connection.connect(rest)
    except OSError:
        connection.close()
        raise
    finally:
        if folder >= 0:
            os.close(folder)
    return connection

"""The launcher's loop: one thread that hears service, runtime, kernel and clock, and never waits for any one of them.

What it holds to, whatever happens:
- The command is started once, and only under a lease.
- It is killed when the lease is over: `lease_ms` after the last renewal that succeeded was *sent*.
- When the launcher goes, nothing of the command is left, and its exit code is the command's. A command that was asked
  to end, and has not said that training is complete, is EXIT_STOPPED: nobody may take it for success.
"""

from __future__ import annotations

import contextlib
import selectors
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence

from trainmaster.gang import linux, processes
from trainmaster.gang.endpoint import Endpoint, Gone
from trainmaster.gang.linux import boot_clock_ms
from trainmaster.gang.processes import CannotStart, ProcessGroup
from trainmaster.gang.protocol import (
    EXIT_CANNOT_RUN,
    EXIT_LEASE_OVER,
    EXIT_NOT_RUN,
    EXIT_STOPPED,
    Attach,
    Began,
    Begin,
    Ended,
    Hello,
    Joined,
    Membership,
    Message,
    Noted,
    Progress,
    Refused,
    Renew,
    StopNotice,
    Welcome,
)
from trainmaster.launcher.dialing import Dialer
from trainmaster.launcher.notices import NoticePort
from trainmaster.launcher.settings import Settings, own_address
from trainmaster.launcher.start_mark import StartMark
from trainmaster.launcher.uplink import Uplink

LAST_CALL_SHARE = 0.15
LAST_CALL_S = 5.0
"""SIGTERM comes so long (or this share of the lease) before the lease ends: what saves then, saves under its lease."""
FAREWELL_S = 3.0
"""How long the service is given to hear of the end."""
DIAL_EVERY_S = 0.5
FORWARDED = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)


class Launcher:
    def __init__(self, settings: Settings, words: Sequence[str], env: Mapping[str, str]) -> None:
        self._settings = settings
        self._env = env
        self._words = list(words)
        self._group: ProcessGroup | None = None
        self._mark = StartMark(settings.run_dir)
        self._wake_out, self._wake_in = socket.socketpair()
        for end in (self._wake_out, self._wake_in):
            end.setblocking(False)
        self._dialer = Dialer(settings.services, self._wake)
        self._next_dial_s = 0.0
        self._uplink: Uplink | None = None
        listener = socket.create_server(("127.0.0.1", 0))
        self._agent = f"tcp:127.0.0.1:{listener.getsockname()[1]}"
        self._endpoint = Endpoint(listener, settings.token)
        self._notices = NoticePort(settings.notice_port, settings.token)
        self._selector = selectors.DefaultSelector()
        for source in (self._wake_out, self._endpoint, self._notices):
            if source.fileno() >= 0:
                self._selector.register(source, selectors.EVENT_READ)
        self._signals: list[int] = []
        self._host = settings.host
        # The lease, on this machine's own clock.
        self._lease_ms = 0
        self._lease_ends_ms = -1
        # What is repeated to a leader that has not heard it.
        self._hello: Hello | None = None
        self._welcomed = False
        self._membership: Membership | None = None
        self._joined: Joined | None = None
        self._progress: Progress | None = None
        self._renew: Renew | None = None
        """The runtime's, not passed on yet."""
        self._unsent: list[Message] = []
        self._ended: Ended | None = None
        self._noted = False
        # The order to end.
        self._stopping = ""
        self._lease_over = False

    def run(self) -> int:
        """The exit code."""
        if self._mark.exists:
            _say("this container was started again; the command ran before and is not run twice")
            return EXIT_NOT_RUN
        linux.adopt_orphans()
        self._listen_to_signals()
        try:
            while self._ended is None:
                self._turn()
            self._bid_farewell()
        finally:
            processes.end_descendants()
            self._hang_up()
        code = self._ended.code
        return code if code >= 0 else 128 - code  # as a shell says it

    @property
    def _started(self) -> bool:
        return self._group is not None

    @property
    def _alive(self) -> bool:
        return self._group is not None and self._group.alive

    # -- one turn --------------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._check_lease()
        self._keep_line()
        self._selector.select(self._patience_s())
        with contextlib.suppress(BlockingIOError):
            self._wake_out.recv(4096)
        self._hear_runtime()
        self._hear_service()
        for address in self._notices.poll():
            self._dialer.hear_of(address)
            self._next_dial_s = 0.0
        while self._signals:
            self._on_signal(self._signals.pop(0))
        while ended := processes.reap():
            if self._group is not None and ended[0] == self._group.pid:
                self._group.ended(ended[1])
                self._hear_runtime()  # what it said before it ended
                processes.end_descendants()
                self._end(ended[1])
                return
        if self._group is not None:
            self._group.escalate(time.monotonic())

    def _patience_s(self) -> float:
        now_s, now_ms = time.monotonic(), boot_clock_ms()
        due = [60.0 if self._group is None else min(60.0, self._group.due_s - now_s)]
        if self._lease_over:
            due.append(0.05)
        elif self._lease_ms and self._alive:
            due.append((self._lease_ends_ms - now_ms) / 1000.0)
            if not self._stopping:
                due.append((self._lease_ends_ms - self._last_call_ms() - now_ms) / 1000.0)
        if self._uplink is None:
            due.append(self._next_dial_s - now_s)
        else:
            due.append((self._uplink.next_due_ms() - now_ms) / 1000.0)
        return max(0.0, min(due))

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_in.send(b"x")

    # -- lease -----------------------------------------------------------------------------------------

    def _last_call_ms(self) -> int:
        return int(min(LAST_CALL_S * 1000, LAST_CALL_SHARE * self._lease_ms))

    def _check_lease(self) -> None:
        if not self._alive:
            return
        left_ms = self._lease_ends_ms - boot_clock_ms()
        if left_ms <= 0:
            self._signal(signal.SIGKILL)  # before any word of it: writing may block
            self._lease_over = True
            self._stopping = self._stopping or "the lease ran out"
        elif left_ms <= self._last_call_ms() and not self._stopping:
            self._order_stop(f"the lease could not be renewed ({self._failure()})", left_ms / 1000.0, now=True)

    def _renewed(self, sent_ms: int) -> None:
        self._lease_ends_ms = max(self._lease_ends_ms, sent_ms + self._lease_ms)

    def _failure(self) -> str:
        return self._dialer.failure or "no answer from the service"

    # -- the line to the service -----------------------------------------------------------------------

    def _keep_line(self) -> None:
        now_s = time.monotonic()
        if self._uplink is not None and (why := self._uplink.dead(boot_clock_ms())):
            self._hang_up(why)
        if self._uplink is None:
            found = self._dialer.take()
            if found is not None:
                self._attach(*found)
            elif now_s >= self._next_dial_s:
                self._next_dial_s = now_s + DIAL_EVERY_S
                self._dialer.dial()
        if self._uplink is not None:
            self._uplink.renew_if_due(boot_clock_ms())
            self._flush()

    def _attach(self, address: str, connection: socket.socket) -> None:
        self._dialer.hear_of(address)
        self._host = self._host or own_address(address)
        settings = self._settings
        attach = Attach(
            settings.token,
            settings.job_id,
            settings.generation,
            settings.member,
            settings.boot,
            self._host,
            self._started,
        )
        self._uplink = Uplink(connection, attach, boot_clock_ms())
        self._selector.register(connection, selectors.EVENT_READ)

    def _hang_up(self, why: str = "") -> None:
        if self._uplink is not None:
            self._selector.unregister(self._uplink.socket)
            self._uplink.socket.close()
            self._uplink = None
            self._dialer.failure = why

    def _flush(self) -> None:
        if self._uplink is None:
            return
        if self._uplink.attached and self._unsent:
            for message in self._unsent:
                self._uplink.send(message)
            self._unsent = []
        try:
            pending = self._uplink.flush()
        except OSError as error:
            self._hang_up(str(error))
            return
        self._selector.modify(self._uplink.socket, selectors.EVENT_READ | (selectors.EVENT_WRITE if pending else 0))

    def _hear_service(self) -> None:
        if self._uplink is None:
            return
        try:
            messages = self._uplink.receive()
        except (OSError, ValueError) as error:
            self._hang_up(str(error) or "hung up")
            return
        for message in messages:
            self._from_service(message)

    def _from_service(self, message: Message) -> None:
        uplink = self._uplink
        if uplink is None:
            return
        if isinstance(message, Welcome) and not uplink.attached:
            self._lease_ms = int(message.lease_s * 1000)
            self._renewed(uplink.welcome(self._lease_ms))
            self._repeat()
        elif isinstance(message, Welcome):
            if not self._welcomed:
                self._welcomed = self._endpoint.send(self._settings.member, message)
            elif message.membership is not None:
                self._endpoint.send(self._settings.member, message.membership)
            self._membership = message.membership or self._membership
        elif isinstance(message, Membership):
            self._membership = message
            self._endpoint.send(self._settings.member, message)
        elif isinstance(message, StopNotice):
            self._order_stop(message.why, message.grace_s)
        elif isinstance(message, Begin):
            self._begin(message)
        elif isinstance(message, Refused):
            self._refused(message.why)
        elif isinstance(message, Noted):
            self._noted = True
        else:
            answered = uplink.answered(message)
            if answered is not None:
                sent_ms, for_runtime = answered
                self._renewed(sent_ms)
                for reply in for_runtime:
                    self._endpoint.send(self._settings.member, reply)

    def _repeat(self) -> None:
        """To a leader that may not know: what was last said and heard."""
        again: list[Message] = []
        if self._started:
            again.append(Began(0))
        if self._hello is not None:
            # The membership before the hello: whoever hears that all are here must know where they stand.
            said = (self._membership, self._hello, self._joined, self._progress)
            again += [message for message in said if message is not None]
        if self._ended is not None:
            again.append(self._ended)
        self._unsent = again + [message for message in self._unsent if message not in again]
        if self._renew is not None and self._uplink is not None:
            self._uplink.renew_for(self._renew, boot_clock_ms())
            self._renew = None
        self._flush()

    def _refused(self, why: str) -> None:
        if self._ended is not None:
            self._noted = True
            return
        if not self._alive:
            _say(f"not run: {why}")
            self._end(EXIT_NOT_RUN, why, started=self._started)
            return
        left_s = (self._lease_ends_ms - boot_clock_ms()) / 1000.0
        self._lease_over = True
        if self._uplink is not None:
            self._uplink.attached = True  # its end is still listened to
        self._order_stop(why, max(0.0, min(self._settings.grace_s, left_s)), now=True)

    # -- the line to the runtime -----------------------------------------------------------------------

    def _hear_runtime(self) -> None:
        while inbound := self._endpoint.poll(0.0):
            for member, message in inbound:
                if member == self._settings.member:
                    self._from_runtime(message)

    def _from_runtime(self, message: Message | Gone) -> None:
        if isinstance(message, Gone):
            return
        if isinstance(message, Hello):
            self._hello, self._welcomed, self._joined = message, False, None
            if self._stopping:
                self._endpoint.send(
                    self._settings.member,
                    StopNotice(
                        self._stopping, 0.0 if self._group is None else self._group.grace_left_s(time.monotonic())
                    ),
                )
        if isinstance(message, Renew):
            # Answered when a renewal that was sent after it has been: so its lease ends no later than ours.
            if self._uplink is not None and self._uplink.attached:
                self._uplink.renew_for(message, boot_clock_ms())
                self._flush()
            else:
                self._renew = message
            return
        if isinstance(message, Joined):
            self._joined = message
        elif isinstance(message, Progress):
            self._progress = message
        self._unsent = [*(m for m in self._unsent if type(m) is not type(message)), message]
        self._flush()

    # -- the command -----------------------------------------------------------------------------------

    def _begin(self, order: Begin) -> None:
        if self._started or self._stopping or boot_clock_ms() >= self._lease_ends_ms:
            return
        if not self._mark.set():
            self._end(EXIT_NOT_RUN, "another start of this container has run the command", started=False)
            return
        env = {
            **self._env,
            **order.environment,
            "TRAINMASTER_AGENT": self._agent,
            "TRAINMASTER_AGENT_TOKEN": self._settings.token,
        }
        try:
            self._group = ProcessGroup(self._words, env)
        except CannotStart as error:
            _say(str(error))
            self._end(EXIT_CANNOT_RUN, str(error), started=False)
            return
        self._unsent.append(Began(self._group.pid))
        self._flush()

    def _order_stop(self, why: str, grace_s: float, now: bool = False) -> None:
        """Notice to a runtime that listens, SIGTERM to any other; a shorter grace counts. `now`: SIGTERM too."""
        self._stopping = self._stopping or why
        if self._group is None:
            self._end(EXIT_NOT_RUN, why, started=False)
            return
        now_s = time.monotonic()
        shorter = grace_s < self._group.grace_left_s(now_s)
        told = shorter and self._endpoint.send(self._settings.member, StopNotice(why, grace_s))
        self._group.terminate(grace_s, now_s, told and not now)

    def _signal(self, number: int) -> None:
        if self._group is not None:
            self._group.signal(number)

    # -- signals and the end ---------------------------------------------------------------------------

    def _listen_to_signals(self) -> None:
        signal.set_wakeup_fd(self._wake_in.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, *FORWARDED):
            signal.signal(number, lambda number, _: self._signals.append(number))

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGTERM:
            self._order_stop("the pod is being ended", self._settings.grace_s)
        else:
            self._signal(number)

    def _end(self, code: int, why: str = "", started: bool = True) -> None:
        """Nothing of the command lives any more."""
        if self._ended is not None:
            return
        complete = code == 0 and self._progress is not None and self._progress.complete
        if started and self._stopping and not complete:
            _say(f"{self._stopping}; the command was ended ({processes.describe_exit(code)})")
            code, why = EXIT_LEASE_OVER if self._lease_over else EXIT_STOPPED, self._stopping
        self._ended = Ended(code, why or self._stopping or processes.describe_exit(code), started)

    def _bid_farewell(self) -> None:
        """Tell the service, for a moment; the pod's own status says the same."""
        assert self._ended is not None
        until_s = time.monotonic() + FAREWELL_S
        self._unsent = [*(m for m in self._unsent if not isinstance(m, Ended)), self._ended]
        while not self._noted and time.monotonic() < until_s and self._lease_ms:
            self._keep_line()
            self._selector.select(max(0.0, min(0.2, until_s - time.monotonic())))
            with contextlib.suppress(BlockingIOError):
                self._wake_out.recv(4096)
            self._hear_service()


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"trainmaster: {text}\n")
        sys.stderr.flush()

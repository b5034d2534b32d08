"""All launchers of the cluster: their connections, renewals, and leases that lapse.

Lives in one asyncio loop. A renewal costs a few microseconds and touches nothing but its trainer's record: thousands
of trainers renew several times per lease. What launchers say otherwise is passed on; what they are told comes from the
attempt that they belong to.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import math
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from trainmaster.backends.kubernetes.attempts.observations import RunFacts, RunKey, run_token
from trainmaster.backends.kubernetes.launchers.connection import AgentLine
from trainmaster.backends.kubernetes.set_aside import SetAside
from trainmaster.gang.protocol import Attach, Began, Begin, Ended, Message, Noted, Refused, Renew, Renewed, Welcome
from trainmaster.launcher.notices import PATH as NOTICE_PATH
from trainmaster.launcher.settings import NOTICE_PORT
from trainmaster.model.lease import LeaseRule

LOOK_EVERY_S = 0.5
ATTACH_S = 10.0
"""Who has not introduced itself for so long is shut out."""
MAX_STRANGERS = 1024
"""Connections that have not shown a token; beyond it the oldest are closed. Launchers show theirs at once."""
HELD_UP_S = 1.0
NOTICE_EVERY_S = 1.0
NOTICE_TIMEOUT_S = 2.0
NOTICES_AT_ONCE = 100


class HubListener(Protocol):
    """What the backend is told. Calls come from the loop, one at a time, and must not block."""

    def attached(self, key: RunKey, member: str, host: str, begun: bool, /) -> None:
        """A launcher speaks for this member from now on. `begun`: its command was started before."""
        ...

    def detached(self, key: RunKey, member: str, /) -> None: ...

    def said(self, key: RunKey, member: str, message: Message, /) -> None:
        """Of the launcher itself (`Began`, `Ended`, `Membership` that it has heard of), or of its member."""
        ...

    def lapsed(self, key: RunKey, member: str, /) -> None:
        """Its lease has certainly run out: it has ended itself, and will not be renewed."""
        ...


@dataclass(eq=False)
class Trainer:
    """One member as its launcher shows it. `answered_ms` is in engine time."""

    name: str
    run: HubRun
    line: AgentLine | None = None
    boot: str = ""
    host: str = ""
    answered_ms: int | None = None
    """None: it has never had a lease, so its command has never run."""
    begun: bool = False
    """Its command was started, or it was told to."""
    ended: bool = False
    fenced: str = ""
    """Why it is not renewed any more; its end is still waited for."""
    lapsed: bool = False
    adopted: bool = False

    @property
    def over(self) -> bool:
        return self.ended or bool(self.fenced)

    @property
    def text(self) -> str:
        return f"{self.name} of {self.run.key.job_id}"


@dataclass(eq=False)
class HubRun:
    key: RunKey
    token: str
    trainers: dict[str, Trainer] = field(default_factory=dict)


class AgentHub:
    """`now_ms` is the engine's clock. Adopt what exists before `listen`: unknown launchers are refused for good."""

    def __init__(
        self,
        secret: bytes,
        lease: LeaseRule,
        now_ms: Callable[[], int],
        listener: HubListener | None = None,
        *,
        first_version: int = 1,
        notice_port: int = NOTICE_PORT,
        faults: SetAside | None = None,
    ) -> None:
        self._secret = secret
        self._lease = lease
        self._now_ms = now_ms
        self.listener: HubListener = listener  # type: ignore[assignment]
        """May be set later, before `listen`."""
        self._faults = faults or SetAside()
        self.first_version = first_version
        """Of memberships that this leader sends: beyond whatever the one before may have sent."""
        self._notice_port = notice_port
        self._runs: dict[RunKey, HubRun] = {}
        self._lines: set[AgentLine] = set()
        self._strangers: dict[AgentLine, None] = {}
        """Those of them that have shown no token, oldest first."""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._notices = asyncio.Semaphore(NOTICES_AT_ONCE)
        self._advertised = ""
        self._halted = False
        self._authority_ends_s = math.inf
        self.renewals = 0
        """Answered since the start."""

    # -- life --------------------------------------------------------------------------------------------

    async def listen(self, host: str, port: int, advertise: str = "") -> int:
        """`advertise`: host:port that launchers of adopted pods are told to turn to. Returns the port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: self._line(), host, port, backlog=4096)
        bound: int = self._server.sockets[0].getsockname()[1]
        self._advertised = advertise
        self._spawn(self._look_after_all())
        return bound

    async def close(self) -> None:
        self.halt()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def halt(self) -> None:
        """Leadership lost: nothing is renewed from now on, and launchers look for another leader."""
        self._halted = True
        if self._server is not None:
            self._server.close()
            self._server = None
        for line in list(self._lines):
            line.close()

    def authority_until(self, monotonic_s: float) -> None:
        """Renewals are answered up to this moment of `time.monotonic`: a process that was held up must not
        answer for a leadership that another may have taken."""
        self._authority_ends_s = monotonic_s

    # -- the backend's orders ----------------------------------------------------------------------------

    def open(self, facts: RunFacts) -> None:
        self._runs.setdefault(facts.key, HubRun(facts.key, facts.token))

    def admit(self, key: RunKey, member: str) -> Trainer:
        """A member whose pod is about to be made."""
        run = self._runs[key]
        return run.trainers.setdefault(member, Trainer(member, run))

    def adopt(self, key: RunKey, member: str, host: str = "") -> None:
        """A member whose pod was made by the leader before. It may hold a lease until what that one last answered
        has run out: at the latest now."""
        trainer = self.admit(key, member)
        trainer.adopted, trainer.answered_ms = True, self._now_ms()
        self.address(key, member, host)

    def address(self, key: RunKey, member: str, pod_ip: str) -> None:
        """The pod's address. An adopted launcher is told there who leads now."""
        trainer = self._trainer(key, member)
        if trainer is None or not pod_ip or trainer.line is not None:
            return
        trainer.host = trainer.host or pod_ip
        if trainer.adopted:
            trainer.adopted = False
            self._spawn(self._tell_leader(trainer, pod_ip))

    def send(self, key: RunKey, member: str, message: Message) -> bool:
        """False when its launcher is not attached: it will say where it stands when it is."""
        trainer = self._trainer(key, member)
        if trainer is None or trainer.line is None:
            return False
        trainer.begun = trainer.begun or isinstance(message, Begin)
        trainer.line.send(message)
        return True

    def fence(self, key: RunKey, members: Iterable[str] | None = None, why: str = "it is no longer wanted") -> None:
        """Promise: they are not renewed any more, whatever happens. Their connections stay, for their last word is
        better than the end of their leases."""
        run = self._runs.get(key)
        if run is None:
            return
        for name in run.trainers if members is None else members:
            trainer = run.trainers.get(name)
            if trainer is not None:
                trainer.fenced = trainer.fenced or why
                self.send(key, name, Refused(why))

    def close_run(self, key: RunKey) -> None:
        """Nothing of it lives; launchers that speak of it still are refused."""
        self.fence(key, None, "the attempt is over")
        self._runs.pop(key, None)

    # -- what may be asked -------------------------------------------------------------------------------

    def attached(self, key: RunKey, member: str) -> bool:
        trainer = self._trainer(key, member)
        return trainer is not None and trainer.line is not None

    def has_spoken(self, key: RunKey, member: str) -> bool:
        """Whether its launcher has turned to this leader, and not only to one before."""
        trainer = self._trainer(key, member)
        return trainer is not None and trainer.boot != ""

    def renews(self, key: RunKey, member: str) -> bool:
        """Whether its lease runs, and is to be renewed again."""
        trainer = self._trainer(key, member)
        if trainer is None or trainer.over or trainer.answered_ms is None:
            return False
        return self._now_ms() < trainer.answered_ms + self._lease.lease_ms

    def last_renewed_ms(self, key: RunKey, member: str) -> int | None:
        """When its last renewal was answered; None: it has never had a lease."""
        trainer = self._trainer(key, member)
        return None if trainer is None else trainer.answered_ms

    @property
    def trainers(self) -> int:
        """Launchers that are attached."""
        return len(self._lines)

    def _trainer(self, key: RunKey, member: str) -> Trainer | None:
        run = self._runs.get(key)
        return None if run is None else run.trainers.get(member)

    # -- lines -------------------------------------------------------------------------------------------

    def _line(self) -> AgentLine:
        line = AgentLine(self)
        self._lines.add(line)
        self._strangers[line] = None
        if len(self._strangers) > MAX_STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.close()
        return line

    def serving(self) -> bool:
        return not self._halted and time.monotonic() < self._authority_ends_s

    def heard(self, line: AgentLine, message: Message) -> None:
        if not self.serving():
            line.close()
            return
        trainer = line.owner
        if isinstance(trainer, Trainer):
            if isinstance(message, Renew):
                if not trainer.fenced:
                    trainer.answered_ms = self._now_ms()
                    self.renewals += 1
                    line.send(Renewed(message.number))
            else:
                self._pass_on(trainer, message)
        elif isinstance(message, Attach):
            self._attach(line, message)
        else:
            line.close()

    def _pass_on(self, trainer: Trainer, message: Message) -> None:
        if isinstance(message, Ended):
            self.send(trainer.run.key, trainer.name, Noted())
            if trainer.ended:
                return
            trainer.ended = True
        trainer.begun = trainer.begun or isinstance(message, Began)
        with self._faults.alone(f"{type(message).__name__} of {trainer.text}"):
            self.listener.said(trainer.run.key, trainer.name, message)

    def gone(self, line: AgentLine) -> None:
        self._lines.discard(line)
        self._strangers.pop(line, None)
        trainer = line.owner
        if isinstance(trainer, Trainer) and trainer.line is line:
            trainer.line = None
            with self._faults.alone(f"end of the connection of {trainer.text}"):
                self.listener.detached(trainer.run.key, trainer.name)

    def _attach(self, line: AgentLine, attach: Attach) -> None:
        key = RunKey(attach.job_id, attach.generation)
        if not hmac.compare_digest(attach.token.encode(), run_token(self._secret, key).encode()):
            line.close()
            return
        self._strangers.pop(line, None)
        run = self._runs.get(key)
        trainer = None if run is None else run.trainers.get(attach.member)
        if run is None:
            self._refuse(line, f"attempt {key.generation} of {key.job_id} is over")
        elif trainer is None:
            self._refuse(line, f"{attach.member} does not belong to attempt {key.generation} of {key.job_id}")
        elif trainer.over and (trainer.ended or trainer.lapsed):
            self._refuse(line, trainer.fenced or "its end was reported before")
        elif trainer.over:  # it still has a last word
            trainer.line, line.owner = line, trainer
            line.send(Refused(trainer.fenced))
        elif trainer.boot not in ("", attach.boot) and trainer.begun:
            self._refuse(line, "its container was started again")
        else:
            self._welcome(trainer, line, attach)

    def _refuse(self, line: AgentLine, why: str) -> None:
        line.send(Refused(why))
        line.close()

    def _welcome(self, trainer: Trainer, line: AgentLine, attach: Attach) -> None:
        if trainer.line is not None and trainer.line is not line:
            trainer.line.owner = None
            trainer.line.close()
        trainer.line, line.owner = line, trainer
        trainer.boot, trainer.host = attach.boot, attach.host or line.remote_host
        trainer.begun = trainer.begun or attach.begun
        trainer.answered_ms = self._now_ms()
        line.send(Welcome(self._lease.lease_ms / 1000))
        with self._faults.alone(f"Attach of {trainer.text}"):
            self.listener.attached(trainer.run.key, trainer.name, trainer.host, attach.begun)

    # -- time --------------------------------------------------------------------------------------------

    async def _look_after_all(self) -> None:
        while True:
            began_s = time.monotonic()
            await asyncio.sleep(LOOK_EVERY_S)
            now_ms, now_s = self._now_ms(), time.monotonic()
            if now_s - began_s > LOOK_EVERY_S + HELD_UP_S:
                continue  # this process was held up: renewals may be waiting to be read
            for line in [line for line in self._lines if line.owner is None and now_s > line.made_s + ATTACH_S]:
                line.close()
            over_ms = now_ms - self._lease.certainly_over_ms(0)
            for run in list(self._runs.values()):
                for trainer in list(run.trainers.values()):
                    renewed_ms = trainer.answered_ms
                    if renewed_ms is not None and renewed_ms <= over_ms and not trainer.ended and not trainer.lapsed:
                        self._lapse(trainer)

    def _lapse(self, trainer: Trainer) -> None:
        trainer.lapsed, trainer.fenced = True, trainer.fenced or "its lease ran out"
        if trainer.line is not None:
            trainer.line.close()
        with self._faults.alone(f"lease of {trainer.text}"):
            self.listener.lapsed(trainer.run.key, trainer.name)

    # -- telling adopted launchers who leads -------------------------------------------------------------

    async def _tell_leader(self, trainer: Trainer, host: str) -> None:
        """Until it has attached, or cannot any more."""
        while trainer.line is None and not trainer.over and not self._halted:
            if self._advertised:  # adopted before we listen
                body = json.dumps({"token": trainer.run.token, "address": self._advertised}).encode()
                head = f"POST {NOTICE_PATH} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                with contextlib.suppress(OSError, asyncio.TimeoutError):
                    async with self._notices:
                        await asyncio.wait_for(_post(host, self._notice_port, head + body), NOTICE_TIMEOUT_S)
                await asyncio.sleep(NOTICE_EVERY_S)
            else:
                await asyncio.sleep(NOTICE_EVERY_S / 10)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _post(host: str, port: int, request: bytes) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(request)
        await writer.drain()
        await reader.read(64)
    finally:
        writer.close()

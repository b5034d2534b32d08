"""One replica of the service on virtual time: the real `Service`, session, platform, election, journal and backend.

Exchanged are the threads, which become callbacks of the loop, the client's connections, and forecasts, which are not
made.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from trainmaster.backends.kubernetes.api.config import KubeConfig
from trainmaster.backends.kubernetes.api.loop_thread import LoopPortal
from trainmaster.backends.kubernetes.backend import KubernetesBackend
from trainmaster.dst.kubernetes.transport import SERVER, Line, LineClient
from trainmaster.dst.kubernetes.virtual_loop import VirtualLoop
from trainmaster.engine.ports import Archive, Commit, StoredState
from trainmaster.engine.records import Settings
from trainmaster.forecast.process import ForecastProcess
from trainmaster.model import event as ev
from trainmaster.model.command import Command
from trainmaster.model.policy import Policy
from trainmaster.service.control.control_plane import ControlPlane
from trainmaster.service.control.scheduler_thread import Driver
from trainmaster.service.kubernetes.platform import KubernetesPlatform
from trainmaster.service.kubernetes.session import KubernetesSession
from trainmaster.service.leader_session import SessionParts
from trainmaster.service.local.home import Home
from trainmaster.service.options import ServiceOptions
from trainmaster.service.platform import Fatal
from trainmaster.service.service import CLOSE_S, Service
from trainmaster.stores.mirror import MirroredJournal

NOWHERE = Path(os.devnull) / "home"
"""Cannot be written: the mirror of the journal, which only forecasts read, is given up."""
PORT = 8643
POLL_S = 0.05
LOG = structlog.wrap_logger(
    logging.getLogger("trainmaster.dst"), [structlog.stdlib.filter_by_level], structlog.stdlib.BoundLogger
)
LOG.setLevel(logging.CRITICAL + 1)  # the story tells what happens


class Died(BaseException):
    """The process is gone: unwinds what it was doing."""


class VirtualClock:
    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + self.elapsed_ms()

    def elapsed_ms(self) -> int:
        return int(self._loop.time() * 1000)


class _Wake:
    """In place of the scheduler thread's condition."""

    def __init__(self, notify: Callable[[], object]) -> None:
        self.notify = notify

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


class VirtualDriver(Driver):
    """The scheduler thread as callbacks of the loop; a batch may wait, and the loop goes on meanwhile."""

    def __init__(self, replica: Replica, plane: ControlPlane, fatal: Fatal) -> None:
        super().__init__(plane, fatal)
        self._replica, self._loop = replica, replica.loop
        self._condition = _Wake(lambda: self._loop.call_soon(self._turn))  # type: ignore[assignment]
        self._timer: asyncio.TimerHandle | None = None
        self.busy = False
        self._stopping = True

    def start(self) -> None:
        self._stopping = False
        self._replica.driver = self
        self._loop.call_soon(self._turn)

    def stop(self) -> None:
        """See `Replica.in_thread`, which waits for the batch that is under way."""
        self._stopping = True

    def deliver(self, event: ev.Event) -> None:
        self._replica.tell("event", event)
        super().deliver(event)

    def _turn(self) -> None:
        if self.busy or self._stopping:
            return
        self.busy = True
        try:
            while not self._stopping and (self._requests or self._events or self._sleep_s() <= 0):
                self._batch()
        except BaseException as error:
            self._fatal(error)
        finally:
            self.busy = False
        if self._timer is not None:
            self._timer.cancel()
        if not self._stopping:
            self._timer = self._loop.call_later(self._sleep_s(), self._turn)


class _Portal(LoopPortal):
    loop: VirtualLoop
    replica: Replica

    def call(self, work: Coroutine[Any, Any, Any], timeout_s: float | None = None) -> Any:
        self.loop.wait(self.replica.line.hold_up())
        outcome = self.loop.wait(asyncio.wait_for(work, timeout_s))
        if self.replica.dead:
            raise Died
        return outcome


class _NoForecasts(ForecastProcess):
    busy = True  # type: ignore[assignment]

    def __init__(self, *_: object) -> None: ...

    def close(self) -> None: ...


class SimulatedPlatform(KubernetesPlatform):
    def __init__(self, replica: Replica, options: ServiceOptions, line: Line, settings: Settings) -> None:
        super().__init__(options, Home(NOWHERE), KubeConfig(SERVER))
        self._replica, self._settings = replica, settings
        self.client = LineClient(line)
        self.identity, self.agent_bind = replica.identity, replica.name

    def portal_to(self, loop: asyncio.AbstractEventLoop) -> _Portal:  # type: ignore[override]
        portal = _Portal(loop)
        portal.replica = self._replica
        return portal

    def settings(self) -> Settings:
        return replace(super().settings(), lease=self._settings.lease, backoff_ms=self._settings.backoff_ms)

    def agent_addresses(self, local_address: str) -> tuple[str, ...]:  # noqa: ARG002
        return self._replica.addresses

    def session(self) -> KubernetesSession:
        session = super().session()
        on_commit, open_backend, open_store = session.on_commit, session.open_backend, session.open_store

        def committed(commit: Commit) -> None:
            on_commit(commit)
            self._replica.committed(commit)

        def opened(plane: ControlPlane, driver: Driver, stored_state: StoredState) -> KubernetesBackend:
            backend = open_backend(plane, driver, stored_state)
            perform = backend.perform

            def told(command: Command) -> None:
                self._replica.tell("command", command)
                perform(command)

            backend.perform = told
            return backend

        def stored() -> MirroredJournal:
            store = open_store()
            self._replica.took_over(store)
            return store

        session.on_commit, session.open_backend, session.open_store = committed, opened, stored
        return session


class Replica(Service):
    """It lives from the start; `die` or `leave` at any moment."""

    def __init__(
        self,
        loop: VirtualLoop,
        identity: str,
        line: Line,
        settings: Settings,
        policy: Callable[[str], Policy],
        addresses: tuple[str, ...],
        committed: Callable[[Commit], None],
        took_over: Callable[[Archive], None],
        tell: Callable[[str, Any], None],
        fault: Fatal,
    ) -> None:
        """`identity`: of this process; `committed` is told of each commit, `took_over` of the store that a new leader
        finds, `fault` of what ends the process."""
        self.loop, self.identity, self.line, self.addresses = loop, identity, line, addresses
        self.name = identity.rpartition(".")[0]
        self.committed, self.took_over, self.tell, self._told_fault = committed, took_over, tell, fault
        self.dead = False
        self.driver: VirtualDriver | None = None
        self.log = LOG
        self.parts = SessionParts(
            lambda: VirtualClock(loop), lambda plane, fatal: VirtualDriver(self, plane, fatal), _NoForecasts, policy
        )  # type: ignore[arg-type]
        options = ServiceOptions(NOWHERE, backend="kubernetes")
        super().__init__(options, SimulatedPlatform(self, options, line, settings))
        self._loop = loop
        self._tasks = [loop.create_task(self._live())]

    async def _live(self) -> None:
        while True:
            try:
                await self.platform.start("http://here:1", self._on_lead, self._on_lose, self._died)
                break
            except Exception as error:  # such a process ends, and is started again
                self.tell("not started", f"{self.name}: {error}")
                await asyncio.sleep(2.0)
        leading = asyncio.ensure_future(self._lead())
        self._tasks.append(leading)
        await self._stop.wait()
        await asyncio.wait([leading], timeout=CLOSE_S)
        await self.platform.close()
        self.tell("left", self.name)
        self.die()

    async def in_thread(self, work: Callable[[], None]) -> None:
        """A callback of the loop, for those may wait. While a session is open this ends it, after its last batch."""
        while self.driver is not None:
            self.driver.stop()
            if not self.driver.busy:
                self.driver = None
            else:
                await asyncio.sleep(POLL_S)
        done: asyncio.Future[None] = self.loop.create_future()

        def run() -> None:
            try:
                work()
                error = None
            except BaseException as fault:
                error = fault
            if not done.done():
                done.set_result(None) if error is None else done.set_exception(error)

        self.loop.call_soon(run)
        await done

    def _on_lead(self) -> None:
        self.tell("leads", self.name)
        super()._on_lead()

    def _on_lose(self) -> None:
        self.tell("lost", self.name)
        super()._on_lose()

    def _died(self, error: BaseException) -> None:
        if not isinstance(error, Died) and not self.dead:
            self._told_fault(error)

    def leave(self) -> None:
        """As by SIGTERM."""
        self._stop.set()

    def die(self) -> None:
        """As by SIGKILL: what it has sent may still arrive."""
        self.dead = self.line.cut = True
        platform = self.platform
        assert isinstance(platform, SimulatedPlatform)
        for task in (*self._tasks, *platform._tasks):
            task.cancel()
        if self.driver is not None:
            self.driver.stop()
        session, self._session = self._session, None
        if session is not None:
            session.halt()
        part = platform._session
        if part is not None and part._hub is not None:
            self.loop.create_task(part._hub.close())

"""The service as a process: one event loop for requests and the platform, a session while this process leads."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import uvicorn
import uvloop

from trainmaster import __version__
from trainmaster.forecast.forecast import Outlook
from trainmaster.forecast.process import Unforeseen
from trainmaster.model.errors import InputError, TrainmasterError
from trainmaster.service.api.app import build_app
from trainmaster.service.api.connections import TimedConnection
from trainmaster.service.api.problems import Unavailable
from trainmaster.service.api.routes.context import Context
from trainmaster.service.control.control_plane import Request
from trainmaster.service.leader_session import LeaderSession, SessionParts
from trainmaster.service.local.home import Home
from trainmaster.service.local.tokens import Tokens
from trainmaster.service.local.trust import check_trust
from trainmaster.service.log_setup import open_logbook
from trainmaster.service.options import ServiceOptions, check_options
from trainmaster.service.platform import Platform

T = TypeVar("T")
DEFAULT_PORT = 8642
STOP_S = 5.0
"""How long open requests may take when the service stops."""
CLOSE_S = 20.0
"""How long a session may take to close where another process can take over."""
RETRY_S, MAX_RETRY_S = 2.0, 30.0
"""Pause after a session that could not be opened; twice as long after each further one."""


class LeaderGateway:
    """A gateway to the session that is open; requests are refused while there is none."""

    def __init__(self) -> None:
        self.session: LeaderSession | None = None

    async def ask(self, request: Request[T]) -> T:
        session = self.session
        if session is None or session.driver is None:
            raise Unavailable("no leader at this moment", expected="a leader", remedy="Ask again in a few seconds.")
        return await session.driver.ask(request)

    async def ask_soon(self, request: Request[T], wait_s: float) -> T | None:
        try:
            return await asyncio.wait_for(self.ask(request), wait_s)
        except TimeoutError:
            return None

    async def news(self, wait_s: float) -> None:
        session = self.session
        if session is None or session.driver is None:
            await asyncio.sleep(min(wait_s, 1.0))
        else:
            await session.driver.news(wait_s)

    async def foretell(self, question: Mapping[str, Any]) -> dict[str, Outlook]:
        session = self.session
        if session is None or session.forecasts is None:
            raise Unforeseen("no leader at this moment")
        return await asyncio.to_thread(session.forecasts.inquire, question)


class Service:
    """`run` returns when the service was told to stop."""

    parts = SessionParts()

    def __init__(self, options: ServiceOptions, platform: Platform | None = None) -> None:
        check_options(options)
        self.options = options
        self.home = Home(options.home)
        self.platform = platform or platform_of(options, self.home)
        self.gateway = LeaderGateway()
        self._session: LeaderSession | None = None
        self._elected, self._lost, self._opened, self._stop = (asyncio.Event() for _ in range(4))
        self._fault: BaseException | None = None

    def run(self, ready: Callable[[str], None] = lambda _: None) -> None:
        """`ready` is told the address once requests are answered."""
        options = self.options
        os.umask(0o077)  # database, logs and sockets are the owner's alone
        self.home.claim()
        try:
            if not is_loopback(options.host) and self.platform.tokens_needed():
                raise InputError(
                    f"{options.host} can be reached from other machines, and no tokens are set",
                    "a file `tokens` in the home folder with a token for each user",
                    f"Write `ROLE NAME TOKEN` lines into {self.home.path / 'tokens'} (chmod 600), "
                    "or stay on 127.0.0.1.",
                    column="--host",
                )
            principals = self.home.principals()
            if options.backend == "local":
                check_trust((who for _, who in principals), self.home.accounts(), options)
            tokens = Tokens(principals)
            self.log = open_logbook(self.home.logs, options.log_level, options.quiet)
            loop = asyncio.Runner(loop_factory=uvloop.new_event_loop)
            with listen(options.host, options.port) as listener, loop as runner:
                runner.run(self._run(listener, tokens, ready))
        finally:
            self.home.release()
        if isinstance(self._fault, TrainmasterError):
            raise self._fault
        if self._fault is not None:
            raise TrainmasterError(f"the control plane failed: {self._fault!r}") from self._fault

    async def _run(self, listener: socket.socket, tokens: Tokens, ready: Callable[[str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stop.set)
        address = address_of(self.options.host, listener)
        leading: asyncio.Task[None] | None = None
        try:
            await self.platform.start(address, self._on_lead, self._on_lose, self._died)
            leading = asyncio.create_task(self._lead())
            if self.platform.alone:
                await _first(self._opened, self._stop)
            if not self._stop.is_set():
                await self._serve(listener, address, tokens, ready)
        finally:
            self._stop.set()
            if leading is not None:
                await asyncio.wait([leading], timeout=None if self.platform.alone else CLOSE_S)
            await self.platform.close()
            self.log.info("stopped", jobs="stopped" if self.options.stop_jobs else "go on")

    # -- leading -------------------------------------------------------------------------------------

    async def in_thread(self, work: Callable[[], None]) -> None:
        """Wait for it in a thread that does not keep the process from ending."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def settle(error: BaseException | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        def run() -> None:
            fault: BaseException | None = None
            try:
                work()
            except BaseException as error:
                fault = error
            with contextlib.suppress(RuntimeError):  # the loop may be closed
                loop.call_soon_threadsafe(settle, fault)

        threading.Thread(target=run, name="leader-session", daemon=True).start()
        await done

    async def _lead(self) -> None:
        """A session whenever this process is elected, until the service stops."""
        try:
            await self.in_thread(self.platform.prepare)
            self.log.info("prepared to lead")
            pause_s = RETRY_S
            while True:
                await _first(self._elected, self._stop)
                if self._stop.is_set():
                    return
                self._lost.clear()
                if await self._hold_session():
                    pause_s = RETRY_S
                elif not self._stop.is_set():
                    await _first(self._stop, wait_s=pause_s)
                    pause_s = min(2 * pause_s, MAX_RETRY_S)
        except TrainmasterError as error:
            self._fault = error
            self._stop.set()
        except Exception as error:
            self._died(error)

    async def _hold_session(self) -> bool:
        """False: it could not be opened, and may be tried again."""
        begun_s = time.monotonic()
        session = self._session = LeaderSession(self.options, self.platform, self.log, self._died, self.parts)
        try:
            await self.in_thread(session.open)
            if self.platform.leading() and session.driver is not None:
                plane = session.driver.plane
                self.gateway.session = session
                self._opened.set()
                self.log.info(
                    "leader ready",
                    after_s=round(time.monotonic() - begun_s, 2),
                    policy=plane.policy_name,
                    cluster=plane.cluster.nodes_text(),
                    emulated=plane.emulated,
                )
                await _first(self._lost, self._stop)
            return True
        except (TrainmasterError, TimeoutError) as error:
            if self.platform.alone:
                raise
            self.log.warning("could not take over", why=str(error))
            return False
        finally:
            self._end_session(session)
            await self.in_thread(session.close)

    def _end_session(self, session: LeaderSession | None) -> None:
        self.gateway.session = self._session = None
        if session is not None:
            session.halt()

    def _on_lead(self) -> None:
        self.log.info("elected leader")
        self._elected.set()

    def _on_lose(self) -> None:
        self.log.warning("leadership lost")
        self._elected.clear()
        self._end_session(self._session)
        self._lost.set()

    def _died(self, error: BaseException) -> None:
        """From any thread."""
        self._fault = error
        self.log.error("the control plane failed", exc_info=error)
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop.set)

    # -- answering -----------------------------------------------------------------------------------

    async def _serve(self, listener: socket.socket, address: str, tokens: Tokens, ready: Callable[[str], None]) -> None:
        job_api = self.platform.job_api(self.gateway, tokens)
        app = build_app(Context(self.gateway, job_api, self.platform.name, self.gateway.foretell))
        config = uvicorn.Config(
            self.platform.wrap(app),
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=int(STOP_S),
            timeout_keep_alive=30,
            http=TimedConnection,
        )
        server = uvicorn.Server(config)
        task = asyncio.create_task(server._serve([listener]))  # `serve` would install its own signal handlers
        task.add_done_callback(lambda _: self._stop.set())
        while not server.started and not task.done():
            await asyncio.sleep(0.005)
        self.home.write("address", address)
        session = self.gateway.session
        facts = {} if session is None or session.driver is None else {"policy": session.driver.plane.policy_name}
        self.log.info(
            "ready", address=address, platform=self.platform.describe(), version=__version__, pid=os.getpid(), **facts
        )
        ready(address)
        await self._stop.wait()
        server.should_exit = True
        await task


def platform_of(options: ServiceOptions, home: Home) -> Platform:
    if options.backend != "kubernetes":
        from trainmaster.service.local.platform import LocalPlatform

        return LocalPlatform(options, home)
    try:
        from trainmaster.service.kubernetes.platform import KubernetesPlatform
    except ImportError as error:
        if error.name not in ("aiohttp", "orjson"):
            raise
        raise InputError(
            f"the module {error.name} is missing",
            "the extra `kubernetes`",
            "Install it: pip install 'trainmaster[kubernetes]'",
            column="--backend",
        ) from None
    return KubernetesPlatform(options, home)


async def _first(*events: asyncio.Event, wait_s: float | None = None) -> None:
    """Wait for any of them, for so long at most."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int | None) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    wanted = (DEFAULT_PORT, 0) if port is None else (port,)
    for number in wanted:
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, number))
            listener.listen(1024)
            listener.setblocking(False)
            return listener
        except OSError as error:
            listener.close()
            if number == wanted[-1]:
                raise InputError(
                    f"cannot listen on {host} port {number}: {error.strerror}",
                    "a free port on an own address",
                    "Choose another with --port, or --port 0 for any.",
                    column="--port",
                ) from None
    raise AssertionError("unreachable")


def address_of(host: str, listener: socket.socket) -> str:
    port = listener.getsockname()[1]
    shown = "127.0.0.1" if host == "0.0.0.0" else "::1" if host == "::" else host
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"

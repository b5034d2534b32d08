"""The service as a process: put the parts together, serve until told to stop, leave everything in order."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import uvicorn
import uvloop

from trainmaster import __version__
from trainmaster.engine.ports import LogEntry
from trainmaster.engine.records import Settings
from trainmaster.estimate.accelerators import find_accelerator
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.estimate.prices import PRICE_PER_GPU_HOUR
from trainmaster.estimate.profiles import LearningEstimator
from trainmaster.foresight.process import ForecastProcess
from trainmaster.model import event as ev
from trainmaster.model.cluster import Cluster, parse_cluster
from trainmaster.model.command import Command
from trainmaster.model.errors import InputError, TrainmasterError
from trainmaster.model.placement import parse_strategy
from trainmaster.policies.registry import create
from trainmaster.service.app import build_app
from trainmaster.service.auth import Tokens
from trainmaster.service.clock import SystemClock
from trainmaster.service.control import ControlPlane, Retention
from trainmaster.service.driver import Driver
from trainmaster.service.home import Home
from trainmaster.service.logbook import open_logbook
from trainmaster.service.logs import LogFolder
from trainmaster.service.prospect import Prospect
from trainmaster.service.routes.context import Context
from trainmaster.sim.run import load_kernels
from trainmaster.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from trainmaster.service.learning import Learning

DEFAULT_PORT = 8642
STOP_S = 5.0
"""How long open requests may take when the service stops."""


@dataclass(frozen=True)
class ServiceOptions:
    """What the operator chose, in the command's words and units."""

    home: Path
    host: str = "127.0.0.1"
    port: int | None = None
    """None: the usual one, or any free one if that is taken."""
    policy: str | None = None
    """None: the one that was last in force, else fifo."""
    nodes: str | None = None
    round_s: float | None = None
    placement: str = "pack"
    backend: str = "local"
    kubeconfig: Path | None = None
    namespace: str | None = None
    """Of the service's own state; default: that of the pod, outside a cluster trainmaster-system."""
    agent_host: str = ""
    agent_port: int = 8643
    lease_s: float = 30.0
    stop_jobs: bool = False
    reset_nodes: bool = False
    quiet: bool = False
    log_level: str = "info"
    retention: Retention = field(default_factory=Retention)
    restart_cost_s: float = 2.0
    """What policies are told that a restart costs."""
    resize_cost_s: float = 0.5
    learn: bool = False
    """Go on training policy dl2 on the jobs that end."""


class LiveBackend(Protocol):
    def start(self) -> None: ...

    def perform(self, command: Command) -> None: ...

    def observe(self) -> None: ...

    def close(self, end_jobs: bool = False) -> None: ...


class _Slot:
    """Stands in for the backend until it is made: plane and backend need each other."""

    def __init__(self) -> None:
        self.backend: LiveBackend | None = None

    def perform(self, command: Command) -> None:
        assert self.backend is not None
        self.backend.perform(command)

    def observe(self) -> None:
        assert self.backend is not None
        self.backend.observe()


class Service:
    """`run` returns when the service was told to stop."""

    def __init__(self, options: ServiceOptions) -> None:
        self.options = options
        check_options(options)
        self.cluster, self.slowdown, self.emulated = _machine(options)
        self.home = Home(options.home)
        self.stop_asked = threading.Event()
        self._fault: BaseException | None = None

    def run(self, ready: Callable[[str], None] = lambda _: None) -> None:
        """`ready` is told the address once requests are answered."""
        options = self.options
        os.umask(0o077)  # database, logs and sockets are the owner's alone
        self.home.claim()
        try:
            if not is_loopback(options.host) and not self.home.has_tokens_file:
                raise InputError(
                    f"{options.host} can be reached from other machines, and no tokens are set",
                    "a file `tokens` in the home folder with a token for each user",
                    f"Write `ROLE NAME TOKEN` lines into {self.home.path / 'tokens'} (chmod 600), "
                    "or stay on 127.0.0.1.",
                    column="--host",
                )
            tokens = Tokens(self.home.principals())
            self.log = open_logbook(self.home.logs, options.log_level, options.quiet)
            listener = listen(options.host, options.port)
            try:
                self._serve(listener, tokens, ready)
            finally:
                listener.close()
        finally:
            self.home.release()
        if self._fault is not None:
            raise TrainmasterError(f"the control plane failed: {self._fault!r}") from self._fault

    def _serve(self, listener: socket.socket, tokens: Tokens, ready: Callable[[str], None]) -> None:
        options, log = self.options, self.log
        store = SqliteStore(self.home.database)
        slot = _Slot()
        try:
            prospect = Prospect(LearningEstimator(DeclaredSpeeds()), self.home.database)
            forecasts = ForecastProcess(prospect.answered, self._no_forecast(prospect))
            prospect.forecaster = forecasts
            plane = self._plane(store, slot, prospect)
            driver = Driver(plane, self._died)
            backend = slot.backend = self._backend(plane, driver.deliver)
            plane.prepare_nodes(options.reset_nodes)
            backend.start()
            plane.open()
            load_kernels(create(plane.policy_name))  # now, rather than while the first job waits
            driver.start()
            learning = self._learning(driver)
            try:
                foretell = partial(asyncio.to_thread, forecasts.inquire)
                context = Context(driver, tokens, LogFolder(self.home.path), options.backend, foretell)
                self._answer(listener, context, ready, plane.policy_name)
            finally:
                if learning is not None:
                    learning.stop()
                driver.stop()
                forecasts.close()
                backend.close(end_jobs=options.stop_jobs)
        finally:
            store.close()
            log.info("stopped", jobs="stopped" if options.stop_jobs else "go on")

    def _learning(self, driver: Driver) -> Learning | None:
        if not self.options.learn:
            return None
        from trainmaster.service.learning import Learning

        settings = driver.plane.settings
        learning = Learning(driver, self.home.path / "learning", self.cluster, settings.round_ms, self.log.info)
        learning.start()
        return learning

    def _no_forecast(self, prospect: Prospect) -> Callable[[str], None]:
        def failed(why: str) -> None:
            prospect.failed(why)
            self.log.warning("no forecast", why=why)

        return failed

    def _plane(self, store: SqliteStore, slot: _Slot, prospect: Prospect) -> ControlPlane:
        options = self.options
        settings = Settings(
            placement=parse_strategy(options.placement),
            round_ms=None if options.round_s is None else max(round(options.round_s * 1000), 1),
            restart_cost_ms=round(options.restart_cost_s * 1000),
            resize_cost_ms=round(options.resize_cost_s * 1000),
        )
        return ControlPlane(
            self.cluster, store, slot, SystemClock(), prospect.estimator, settings, options.policy or "fifo",
            emulated=self.emulated, retention=options.retention, told=self._tell, force_policy=options.policy,
            prospect=prospect,
        )  # fmt: skip

    def _backend(self, plane: ControlPlane, deliver: Callable[[ev.Event], None]) -> LiveBackend:
        options = self.options
        if options.backend == "simulated":
            from trainmaster.service.rehearsal import RehearsalBackend

            return RehearsalBackend(self.cluster, plane.settings.lease, deliver, lambda: plane.now_ms)
        from trainmaster.backends.local.backend import LocalBackend

        return LocalBackend(
            self.cluster, self.home.path, plane.settings.lease, deliver, lambda: plane.now_ms, self.slowdown,
            find=find_accelerator,
        )  # fmt: skip

    def _answer(self, listener: socket.socket, context: Context, ready: Callable[[str], None], policy: str) -> None:
        address = address_of(self.options.host, listener)
        config = uvicorn.Config(
            build_app(context), log_config=None, access_log=False, lifespan="off", server_header=False,
            timeout_graceful_shutdown=int(STOP_S), timeout_keep_alive=30,
        )  # fmt: skip
        server = uvicorn.Server(config)

        async def serve() -> None:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self.stop_asked.set)
            task = asyncio.create_task(server._serve([listener]))  # `serve` would install its own signal handlers
            while not server.started and not task.done():
                await asyncio.sleep(0.005)
            self.home.write("address", address)
            self.log.info("ready", address=address, policy=policy, cluster=self.cluster.describe(),
                          emulated=self.emulated, version=__version__, pid=os.getpid())  # fmt: skip
            ready(address)
            while not self.stop_asked.is_set() and not task.done():
                await asyncio.sleep(0.1)
            server.should_exit = True
            await task

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve())

    def _died(self, error: BaseException) -> None:
        self._fault = error
        self.log.error("the control plane failed", exc_info=error)
        self.stop_asked.set()

    def _tell(self, entries: Sequence[LogEntry]) -> None:
        if not self.log.isEnabledFor(20):
            return
        submitted = [entry.job_id for entry in entries if entry.kind == "submitted"]
        if len(submitted) > 1:  # a burst of submissions is one line
            self.log.info(f"{len(submitted)} jobs submitted", kind="submitted", first=submitted[0], last=submitted[-1])
            entries = [entry for entry in entries if entry.kind != "submitted"]
        for entry in entries[:MAX_TOLD]:
            self.log.info(entry.text, kind=entry.kind, job=entry.job_id)
        if len(entries) > MAX_TOLD:
            self.log.info("and more", entries=len(entries) - MAX_TOLD)


MAX_TOLD = 20
"""Log entries of one batch that are told one by one."""


def check_options(options: ServiceOptions) -> None:
    if options.policy is not None:
        create(options.policy)
    parse_strategy(options.placement)
    if options.learn:
        from trainmaster.service.learning import check_learning

        check_learning(options.policy)
    if options.round_s is not None and not 0.001 <= options.round_s < 1e9:
        raise InputError(f"{options.round_s} s", "a positive number of seconds", column="--round")
    if options.port is not None and not 0 <= options.port < 65536:
        raise InputError(f"{options.port}", "0 to 65535", column="--port")
    if options.backend not in ("local", "simulated", "kubernetes"):
        raise InputError(f"'{options.backend}'", "local, simulated or kubernetes", column="--backend")


def _machine(options: ServiceOptions) -> tuple[Cluster, dict[str, float], bool]:
    if options.backend == "simulated":
        return parse_cluster(options.nodes or "cpu=4x4", PRICE_PER_GPU_HOUR), {}, True
    from trainmaster.backends.local.devices import describe

    nodes = None if options.nodes is None else parse_cluster(options.nodes, PRICE_PER_GPU_HOUR)
    cluster, slowdown, emulated = describe(nodes, find_accelerator)
    return replace(cluster, price_per_hour={**PRICE_PER_GPU_HOUR, **cluster.price_per_hour}), slowdown, emulated


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
                    f"cannot listen on {host} port {number}: {error.strerror}", "a free port on an own address",
                    "Choose another with --port, or --port 0 for any.", column="--port",
                ) from None  # fmt: skip
    raise AssertionError("unreachable")


def address_of(host: str, listener: socket.socket) -> str:
    port = listener.getsockname()[1]
    shown = "127.0.0.1" if host == "0.0.0.0" else "::1" if host == "::" else host
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"

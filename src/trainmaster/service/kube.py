"""The service on a Kubernetes cluster, inside or outside of it: watches always, acts while it leads, answers anyway.

Several replicas may run; one leads (`backends.kubernetes.election`). A replica that does not lead passes requests on
to the one that does. When leadership is lost everything that acts stops at once, and the process stands by again.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import uvicorn

from trainmaster import __version__
from trainmaster.backends.kubernetes import paths
from trainmaster.backends.kubernetes.blobs import ConfigMapBlobs
from trainmaster.backends.kubernetes.client import ApiError, Conflict, Forbidden, KubeClient, NotFound, Object
from trainmaster.backends.kubernetes.cluster_watch import ClusterWatch
from trainmaster.backends.kubernetes.config import KubeConfig, load_config
from trainmaster.backends.kubernetes.election import Election
from trainmaster.backends.kubernetes.loop_thread import LoopThread
from trainmaster.backends.kubernetes.reflector import Change, Reflector
from trainmaster.engine.ports import LogEntry
from trainmaster.engine.records import Settings
from trainmaster.foresight.forecast import Outlook
from trainmaster.foresight.process import Unforeseen
from trainmaster.model.errors import InputError, TrainmasterError
from trainmaster.model.lease import LeaseRule
from trainmaster.model.placement import parse_strategy
from trainmaster.policies.registry import create
from trainmaster.service.app import build_app
from trainmaster.service.auth import Tokens
from trainmaster.service.control import Request
from trainmaster.service.forwarding import Forwarding
from trainmaster.service.home import Home
from trainmaster.service.kube_desk import KubeDesk
from trainmaster.service.logbook import open_logbook
from trainmaster.service.logs import LogFolder
from trainmaster.service.problems import Unavailable
from trainmaster.service.reign import Reign, ReignOptions
from trainmaster.service.routes.context import Context
from trainmaster.service.run import (
    MAX_TOLD,
    STOP_S,
    ServiceOptions,
    address_of,
    check_options,
    is_loopback,
    listen,
)
from trainmaster.sim.run import load_kernels
from trainmaster.stores.journal import JournalStore

T = TypeVar("T")
NAMESPACE = "trainmaster-system"
NAME = "trainmaster"
SECRET_NAME = "trainmaster-agent"
AGAIN_S = 2.0
CONNECTIONS = 64
RESEND_MS = 20_000
"""Commands reach the backend in this process without fail, and a start may take a while when thousands do at once."""


class Leadership:
    """A gateway to the reign that is; requests are refused while there is none."""

    def __init__(self) -> None:
        self.reign: Reign | None = None
        self.leader = ""

    async def ask(self, request: Request[T]) -> T:
        reign = self.reign
        if reign is None or reign.driver is None:
            raise Unavailable(
                "no replica leads at this moment" if not self.leader else f"{self.leader} leads, not this replica",
                expected="a leader",
                remedy="Ask again in a few seconds.",
            )
        try:
            return await reign.driver.ask(request)
        except RuntimeError as error:
            raise Unavailable(f"the leadership has just ended: {error}", remedy="Ask again.") from None

    async def news(self, wait_s: float) -> None:
        reign = self.reign
        if reign is None or reign.driver is None:
            await asyncio.sleep(min(wait_s, 1.0))
        else:
            await reign.driver.news(wait_s)


class KubeService:
    """`run` returns when the service was told to stop."""

    def __init__(self, options: ServiceOptions) -> None:
        self.options = options
        check_options(options)
        self.config: KubeConfig = load_config(options.kubeconfig)
        self.namespace = options.namespace or (self.config.namespace if self.config.in_cluster else NAMESPACE)
        self.home = Home(options.home)
        self.stop_asked = threading.Event()
        self.identity = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._fault: BaseException | None = None
        self._leads = threading.Condition()
        self._wanted = False
        self.leadership = Leadership()
        self.election: Election | None = None

    def run(self, ready: Callable[[str], None] = lambda _: None) -> None:
        """`ready` is told the address once requests are answered."""
        options = self.options
        os.umask(0o077)
        self.home.claim()
        try:
            if not is_loopback(options.host) and not self.home.has_tokens_file and not self.config.in_cluster:
                raise InputError(
                    f"{options.host} can be reached from other machines, and no tokens are set",
                    "a file `tokens` in the home folder with a token for each user",
                    f"Write `ROLE NAME TOKEN` lines into {self.home.path / 'tokens'} (chmod 600), "
                    "or stay on 127.0.0.1.",
                    column="--host",
                )  # fmt: skip
            self.log = open_logbook(self.home.logs, options.log_level, options.quiet)
            listener = listen(options.host, options.port)
            try:
                self._serve(listener, Tokens(self.home.principals()), ready)
            finally:
                listener.close()
        finally:
            self.home.release()
        if self._fault is not None:
            raise TrainmasterError(f"the control plane failed: {self._fault!r}") from self._fault

    def _serve(self, listener: socket.socket, tokens: Tokens, ready: Callable[[str], None]) -> None:
        self.address = address_of(self.options.host, listener)
        thread = LoopThread()
        ruling = threading.Thread(target=self._rule, args=(thread,), name="reign", daemon=True)
        try:
            thread.call(self._begin(), 60.0)
            ruling.start()
            self._answer(listener, tokens, ready)
        finally:
            with self._leads:
                self.stop_asked.set()
                self._leads.notify_all()
            if ruling.ident is not None:
                ruling.join(20.0)
            with contextlib.suppress(Exception):
                thread.call(self._finish(), 10.0)
            thread.close()
            self.log.info("stopped", jobs="go on")

    # -- watching and being elected ----------------------------------------------------------------------

    async def _begin(self) -> None:
        client = self.client = await KubeClient(self.config, connections=CONNECTIONS).open()
        await self._check_rights()
        self.secret = await self._secret()
        self.watch = ClusterWatch(client, on_new_nodes=self._new_nodes)
        self.jobs = Reflector(client, paths.training_jobs(), self._job_changed)
        advertised = os.environ.get("POD_IP", "")
        port = self.address.rpartition(":")[2]
        self.election = Election(
            client, self.namespace, NAME, self.identity,
            address=f"http://{advertised}:{port}" if advertised else self.address,
            on_lead=self._lead, on_lose=self._lose, renewed=self._renewed,
        )  # fmt: skip
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(work) for work in (self.watch.run(), self.jobs.run(), self.election.run())]
        for task in self._tasks:
            task.add_done_callback(self._task_ended)

    async def _finish(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.election is not None:
            await self.election.release()
        await self.client.close()

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._died(task.exception() or RuntimeError("a watch ended"))

    async def _check_rights(self) -> None:
        """One clear message now, rather than a service that waits for ever."""
        try:
            await self.client.get(paths.training_jobs(), limit="1")
            await self.client.get(paths.nodes(), limit="1")
            await self.client.get(paths.pods(), limit="1")
            try:
                await self.client.get(paths.core("namespaces", None, self.namespace))
            except NotFound:
                await self.client.create(paths.core("namespaces"), {"metadata": {"name": self.namespace}})
            except Forbidden:
                pass  # what matters is whether it may write there, which shows next
        except NotFound:
            raise InputError(
                f"{self.config.server} does not know TrainingJobs", "the resource trainingjobs.trainmaster.dev",
                "Install it: trainmaster kube manifests | kubectl apply -f -", column="--kubeconfig",
            ) from None  # fmt: skip
        except Forbidden as error:
            raise InputError(
                f"a right is missing: {error}", "the rights that `trainmaster kube manifests` lists",
                "Run as the service account trainmaster, or ask an administrator.", column="--kubeconfig",
            ) from None  # fmt: skip
        except ApiError as error:
            raise InputError(f"{error}", "an API server that answers", column="--kubeconfig") from None

    async def _secret(self) -> bytes:
        """What launchers' tokens are made from; the first replica makes it up."""
        path = paths.core("secrets", self.namespace)
        body: Object = {
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET_NAME},
            "data": {"key": base64.b64encode(secrets.token_bytes(32)).decode()},
        }  # fmt: skip
        try:
            try:
                found = await self.client.get(f"{path}/{SECRET_NAME}")
            except NotFound:
                try:
                    found = await self.client.create(path, body)
                except Conflict:
                    found = await self.client.get(f"{path}/{SECRET_NAME}")
        except ApiError as error:
            raise InputError(
                f"the Secret {self.namespace}/{SECRET_NAME} cannot be had: {error}", "the right to read and create it",
                "Install the roles: trainmaster kube manifests | kubectl apply -f -", column="--namespace",
            ) from None  # fmt: skip
        return base64.b64decode(found["data"]["key"])

    # -- told in the loop --------------------------------------------------------------------------------

    def _job_changed(self, kind: Change, job: Object, before: Object | None) -> None:
        reign = self._current
        if reign is not None:
            reign.job_changed(kind, job, before)

    def _new_nodes(self) -> None:
        reign = self._current
        if reign is not None:
            reign.nodes_changed()

    def _renewed(self, until_s: float) -> None:
        self._authority_s = until_s
        reign = self._current
        if reign is not None:
            reign.authority_until(until_s)

    def _lead(self) -> None:
        self.log.info("leads", identity=self.identity)
        with self._leads:
            self._wanted = True
            self._leads.notify_all()

    def _lose(self) -> None:
        self.log.warning("leads no more", identity=self.identity)
        reign, self._current = self._current, None
        self.leadership.reign = None
        if reign is not None:
            reign.halt()
        with self._leads:
            self._wanted = False
            self._leads.notify_all()

    # -- reigning ------------------------------------------------------------------------------------------

    _current: Reign | None = None
    _authority_s = float("-inf")

    def _rule(self, thread: LoopThread) -> None:
        """A thread of its own: begins a reign when it is our turn, and clears up after it."""
        try:
            load_kernels(create(self.options.policy or self._last_policy(thread)))  # now, not when it is our turn
            self.log.info("is prepared", identity=self.identity)
            while True:
                with self._leads:
                    while not self._wanted and not self.stop_asked.is_set():
                        self._leads.wait(1.0)
                    if self.stop_asked.is_set():
                        return
                self._reign(thread)
        except BaseException as error:
            self._died(error)

    def _last_policy(self, thread: LoopThread) -> str:
        """The policy by which the leader decides, as far as it has written down."""
        blobs = ConfigMapBlobs(self.client, thread, self.namespace, NAME, may_write=lambda: False)
        try:
            meta = JournalStore(blobs, self.identity).load_active().meta or {}
        except (TrainmasterError, TimeoutError):
            return "fifo"
        return str(meta.get("service", {}).get("policy", "fifo"))

    def _reign(self, thread: LoopThread) -> None:
        assert self.election is not None
        reign = Reign(
            self._reign_options(), self.client, thread, self.watch, self.jobs, identity=self.identity,
            secret=self.secret, may_write=self.election.leading, told=self._tell, fatal=self._died, home=self.home.path,
        )  # fmt: skip
        reign.authority_until(self._authority_s)
        self._current = reign
        begun_s = time.monotonic()
        try:
            reign.begin()
        except (TrainmasterError, TimeoutError) as error:
            self.log.warning("could not take over", why=str(error))
            thread.call(_in_loop(reign.halt), 5.0)
            self._current = None
            reign.end()
            self.stop_asked.wait(AGAIN_S)
            return
        if self.election.leading():
            self.leadership.reign = reign
            self.log.info("reigns", after_s=round(time.monotonic() - begun_s, 2), jobs=len(self.jobs.objects),
                          cluster=reign.driver.plane.cluster.describe() if reign.driver else "")  # fmt: skip
        with self._leads:
            while self._wanted and self._current is reign and not self.stop_asked.is_set():
                self._leads.wait(1.0)
        self.leadership.reign = None
        thread.call(_in_loop(reign.halt), 5.0)
        self._current = None
        reign.end()

    def _reign_options(self) -> ReignOptions:
        options = self.options
        settings = Settings(
            placement=parse_strategy(options.placement),
            round_ms=None if options.round_s is None else max(round(options.round_s * 1000), 1),
            lease=LeaseRule(lease_ms=round(options.lease_s * 1000)),
            resend_ms=RESEND_MS,
            restart_cost_ms=round(options.restart_cost_s * 1000),
            resize_cost_ms=round(options.resize_cost_s * 1000),
        )
        extra = tuple(filter(None, os.environ.get("TRAINMASTER_AGENT_ADDRESSES", "").split(",")))
        return ReignOptions(
            self.namespace, NAME, options.policy, settings, agent_port=options.agent_port,
            agent_host=options.agent_host or os.environ.get("POD_IP", ""), agents=extra,
        )  # fmt: skip

    # -- answering -----------------------------------------------------------------------------------------

    def _answer(self, listener: socket.socket, tokens: Tokens, ready: Callable[[str], None]) -> None:
        desk = KubeDesk(self.leadership, KubeClient(self.config, connections=8), tokens)
        context = Context(
            self.leadership, tokens, LogFolder(self.home.path), "kubernetes", self._foretell, own_desk=desk
        )
        app = Forwarding(build_app(context), self._leader_elsewhere, lambda: self.watch.nodes.synced.is_set())
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", server_header=False,
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
            self.home.write("address", self.address)
            self.log.info("ready", address=self.address, namespace=self.namespace, version=__version__, pid=os.getpid())
            ready(self.address)
            while not self.stop_asked.is_set() and not task.done():
                await asyncio.sleep(0.1)
            server.should_exit = True
            await task
            await app.close()

        asyncio.run(serve())

    async def _foretell(self, question: Mapping[str, Any]) -> dict[str, Outlook]:
        reign = self.leadership.reign
        if reign is None or reign.forecasts is None:
            raise Unforeseen("no replica leads at this moment")
        return await asyncio.to_thread(reign.forecasts.inquire, question)

    def _leader_elsewhere(self) -> str:
        """Where the leader answers; empty: here, or nobody knows."""
        election = self.election
        if election is None or election.leading() or election.leader in ("", self.identity):
            return ""
        self.leadership.leader = election.leader
        return election.leader_address

    def _died(self, error: BaseException) -> None:
        self._fault = error
        self.log.error("the control plane failed", exc_info=error)
        self.stop_asked.set()
        with self._leads:
            self._leads.notify_all()

    def _tell(self, entries: Sequence[LogEntry]) -> None:
        if not self.log.isEnabledFor(20):
            return
        for entry in entries[:MAX_TOLD]:
            self.log.info(entry.text, kind=entry.kind, job=entry.job_id)
        if len(entries) > MAX_TOLD:
            self.log.info("and more", entries=len(entries) - MAX_TOLD)


async def _in_loop(act: Callable[[], None]) -> None:
    act()

"""A Kubernetes cluster, from inside or outside: watches always, stands for election, passes requests to the leader.

Several replicas may run and one leads (`backends.kubernetes.election`). When leadership is lost everything that acts
stops at once, and the process stands by again.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from trainmaster.backends.kubernetes.api import paths
from trainmaster.backends.kubernetes.api.client import ApiError, Conflict, Forbidden, KubeClient, NotFound, Object
from trainmaster.backends.kubernetes.api.config import KubeConfig, load_config
from trainmaster.backends.kubernetes.api.loop_thread import LoopPortal
from trainmaster.backends.kubernetes.api.reflector import Change, Reflector
from trainmaster.backends.kubernetes.config_map_blobs import ConfigMapBlobs
from trainmaster.backends.kubernetes.election import Election
from trainmaster.backends.kubernetes.nodes.cluster_watch import ClusterWatch
from trainmaster.engine.records import Settings
from trainmaster.model.errors import InputError, TrainmasterError
from trainmaster.model.lease import LeaseRule
from trainmaster.policies.registry import create
from trainmaster.service.control.control_plane import Retention
from trainmaster.service.control.experience import IN_JOURNAL
from trainmaster.service.control.gateway import Gateway
from trainmaster.service.kubernetes.forwarding import Forwarding
from trainmaster.service.kubernetes.job_writer import KubernetesJobApi
from trainmaster.service.kubernetes.session import NAME, KubernetesSession
from trainmaster.service.local.home import Home
from trainmaster.service.local.platform import settings_of
from trainmaster.service.local.tokens import Tokens
from trainmaster.service.options import ServiceOptions
from trainmaster.service.platform import Fatal, Platform
from trainmaster.stores.journal import JournalStore

NAMESPACE = "trainmaster-system"
SECRET_NAME = "trainmaster-agent"
CONNECTIONS = 64
AGENT_PORT = 8643
LEASE_S = 30.0
RESEND_MS = 20_000
"""Commands reach the backend in this process without fail, and a start may take a while when thousands do at once."""
RETENTION = Retention(days=14, ended_jobs=5_000, log_lines=5_000)


class KubernetesPlatform(Platform):
    name = "kubernetes"
    alone = False
    emulated = False
    follow_nodes = True
    agent_bind = "0.0.0.0"
    portal_to: type[LoopPortal] = LoopPortal

    def __init__(self, options: ServiceOptions, home: Home, config: KubeConfig | None = None) -> None:
        self.options = options
        self.home = home
        self.config = config or load_config(options.kubeconfig)
        self.namespace = options.namespace or (self.config.namespace if self.config.in_cluster else NAMESPACE)
        self.identity = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self.experience = IN_JOURNAL
        self.retention = replace(RETENTION, days=options.keep_days or RETENTION.days)
        self.client = KubeClient(self.config, connections=CONNECTIONS)
        self.authority_s = float("-inf")
        """Until when this process may act, by the monotonic clock, as of the last renewal."""
        self._election: Election | None = None
        self._session: KubernetesSession | None = None
        self._forwarding: Forwarding | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def settings(self) -> Settings:
        lease = LeaseRule(lease_ms=round((self.options.lease_s or LEASE_S) * 1000))
        return replace(settings_of(self.options), lease=lease, resend_ms=RESEND_MS)

    def describe(self) -> str:
        return f"cluster {self.config.server}, state in namespace {self.namespace}"

    def tokens_needed(self) -> bool:
        return not self.home.has_tokens_file and not self.config.in_cluster

    def agent_addresses(self, local_address: str) -> Sequence[str]:
        """Where launchers find this process, and others that may lead."""
        host = self.options.agent_host or os.environ.get("POD_IP") or local_address or "127.0.0.1"
        others = filter(None, os.environ.get("TRAINMASTER_AGENT_ADDRESSES", "").split(","))
        return (f"{host}:{self.agent_port}", *others)

    @property
    def agent_port(self) -> int:
        return self.options.agent_port or AGENT_PORT

    # -- life ----------------------------------------------------------------------------------------

    async def start(self, address: str, on_lead: Callable[[], None], on_lose: Callable[[], None], fatal: Fatal) -> None:
        loop = asyncio.get_running_loop()
        self.portal = self.portal_to(loop)
        client = await self.client.open()
        await self._check_rights()
        self.secret = await self._secret()
        self.watch = ClusterWatch(client, on_new_nodes=self._new_nodes)
        self.jobs = Reflector(client, paths.training_jobs(), self._job_changed)
        advertised = os.environ.get("POD_IP", "")
        self._election = Election(
            client,
            self.namespace,
            NAME,
            self.identity,
            on_lead=on_lead,
            on_lose=on_lose,
            renewed=self._renewed,
            address=f"http://{advertised}:{address.rpartition(':')[2]}" if advertised else address,
        )
        self._tasks = [loop.create_task(work) for work in (self.watch.run(), self.jobs.run(), self._election.run())]

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled():
                fatal(task.exception() or RuntimeError("a watch ended"))

        for task in self._tasks:
            task.add_done_callback(ended)

    async def close(self) -> None:
        if self._election is not None:
            await self._election.release()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._forwarding is not None:
            await self._forwarding.close()
        await self.client.close()

    def prepare(self) -> None:
        create(self.options.policy or self._last_policy())  # its modules are loaded now, not when it is our turn

    def _last_policy(self) -> str:
        """The policy by which the leader decides, as far as it is stored."""
        blobs = ConfigMapBlobs(self.client, self.portal, self.namespace, NAME, may_write=lambda: False)
        try:
            meta = JournalStore(blobs, self.identity).load_active().meta or {}
        except (TrainmasterError, TimeoutError):
            return "fifo"
        return str(meta.get("service", {}).get("policy", "fifo"))

    async def _check_rights(self) -> None:
        """One clear message now, rather than a service that waits for ever."""
        try:
            await self.client.get(paths.training_jobs(), limit="1")
            await self.client.get(paths.nodes(), limit="1")
            await self.client.get(paths.pods(), limit="1")
            try:
                await self.client.get(paths.core("namespaces", None, self.namespace))
            except NotFound:
                with contextlib.suppress(Conflict):  # another replica was faster
                    await self.client.create(paths.core("namespaces"), {"metadata": {"name": self.namespace}})
            except Forbidden:
                pass  # what matters is whether it may write there, which shows next
        except NotFound:
            raise InputError(
                f"{self.config.server} does not know TrainingJobs",
                "the resource trainingjobs.trainmaster.dev",
                "Install it: trainmaster kube manifests | kubectl apply -f -",
                column="--kubeconfig",
            ) from None
        except Forbidden as error:
            raise InputError(
                f"a right is missing: {error}",
                "the rights that `trainmaster kube manifests` lists",
                "Run as the service account trainmaster, or ask an administrator.",
                column="--kubeconfig",
            ) from None
        except ApiError as error:
            raise InputError(f"{error}", "an API server that answers", column="--kubeconfig") from None

    async def _secret(self) -> bytes:
        """What launchers' tokens are made from; the first replica makes it up."""
        path = paths.core("secrets", self.namespace)
        body: Object = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": SECRET_NAME},
            "data": {"key": base64.b64encode(secrets.token_bytes(32)).decode()},
        }
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
                f"the Secret {self.namespace}/{SECRET_NAME} is not accessible: {error}",
                "rights to get and create it",
                "Install the roles: trainmaster kube manifests | kubectl apply -f -",
                column="--namespace",
            ) from None
        return base64.b64decode(found["data"]["key"])

    # -- leadership ----------------------------------------------------------------------------------

    def leading(self) -> bool:
        return self._election is not None and self._election.leading()

    def session(self) -> KubernetesSession:
        self._session = KubernetesSession(self)
        return self._session

    def _job_changed(self, kind: Change, job: Object, before: Object | None) -> None:
        if self._session is not None:
            self._session.job_changed(kind, job, before)

    def _new_nodes(self) -> None:
        if self._session is not None:
            self._session.nodes_changed()

    def _renewed(self, until_s: float) -> None:
        self.authority_s = until_s
        if self._session is not None:
            self._session.authority_until(until_s)

    # -- requests ------------------------------------------------------------------------------------

    def job_api(self, gateway: Gateway, tokens: Tokens) -> KubernetesJobApi:
        return KubernetesJobApi(gateway, self.client, tokens, self._verdict)

    async def _verdict(self, job_id: str) -> InputError | None:
        session = self._session
        return None if session is None or session.source is None else await session.source.verdict(job_id)

    def wrap(self, app: Any) -> Forwarding:
        self._forwarding = Forwarding(
            app, self._leader_elsewhere, lambda: self.watch.nodes.synced.is_set(), self.leading
        )
        return self._forwarding

    def _leader_elsewhere(self) -> str:
        """Where the leader answers; empty: here, or nobody knows."""
        election = self._election
        if election is None or election.leading() or election.leader in ("", self.identity):
            return ""
        return election.leader_address

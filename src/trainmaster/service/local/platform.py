"""One machine: this process leads from the start, the store is a SQLite file, jobs are processes (or simulated)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from trainmaster.backends.local.snapshots import SnapshotStore
from trainmaster.engine import queries
from trainmaster.engine.ports import Archive, Commit, StoredState
from trainmaster.engine.records import Settings
from trainmaster.estimate.accelerators import find_accelerator
from trainmaster.estimate.catalogue import load_catalogue
from trainmaster.estimate.pairs import PairSlowdowns
from trainmaster.estimate.prices import PRICE_PER_GPU_HOUR
from trainmaster.jobspec.model import JobRequest
from trainmaster.model.cluster import Cluster, parse_cluster
from trainmaster.model.command import Command
from trainmaster.model.errors import InputError
from trainmaster.model.placement import parse_strategy
from trainmaster.service.api.job_api import LocalJobApi
from trainmaster.service.control.control_plane import ControlPlane, Retention
from trainmaster.service.control.experience import IN_DATABASE
from trainmaster.service.control.gateway import Gateway
from trainmaster.service.control.quarantine import DOCUMENT as QUARANTINE
from trainmaster.service.control.scheduler_thread import Driver
from trainmaster.service.local.home import Home
from trainmaster.service.local.logs import LogFolder
from trainmaster.service.local.tokens import Tokens
from trainmaster.service.options import ServiceOptions
from trainmaster.service.platform import Fatal
from trainmaster.stores.sqlite import SqliteStore

KEEP_DAYS = 30.0


class ProcessBackend(Protocol):
    """The local backend, or the simulated one."""

    def start(self) -> None: ...

    def perform(self, command: Command) -> None: ...

    def observe(self) -> None: ...

    def close(self, end_jobs: bool = False) -> None: ...


class LocalPlatform:
    """See `trainmaster.service.platform.Platform`."""

    alone = True
    follow_nodes = False

    def __init__(self, options: ServiceOptions, home: Home) -> None:
        self.options = options
        self.home = home
        self.name = options.backend
        self.nodes, self.slowdown, self.emulated = _machine(options)
        self.experience = IN_DATABASE
        self.pairs = PairSlowdowns(load_catalogue(options.throughputs or "builtin")) if self.emulated else None
        """How jobs on one emulated device really fare."""
        self.retention = Retention(days=options.keep_days or KEEP_DAYS)
        self.snapshots = SnapshotStore(home.path)

    def settings(self) -> Settings:
        return settings_of(self.options)

    def describe(self) -> str:
        return self.nodes.nodes_text() + (" (emulated speeds)" if self.emulated else "")

    async def start(self, address: str, on_lead: Callable[[], None], on_lose: Any, fatal: Fatal) -> None:  # noqa: ARG002
        on_lead()

    def prepare(self) -> None:
        pass

    def leading(self) -> bool:
        return True

    def session(self) -> LocalSession:
        return LocalSession(self)

    def job_api(self, gateway: Gateway, tokens: Tokens) -> LocalJobApi:
        take = None if self.name == "simulated" else self._snapshot
        return LocalJobApi(gateway, tokens, LogFolder(self.home.path), take)

    def _snapshot(self, request: JobRequest, user: str) -> str:
        """Copy the work folder of a request, as the account under which its user's jobs run."""
        accounts = self.home.accounts()
        if accounts is not None and user not in accounts:
            raise InputError(f"user '{user}' has no account on this machine", "an entry of `accounts`")
        assert request.workdir is not None
        taken = self.snapshots.take(request.workdir, None if accounts is None else accounts[user])
        for word in (*request.command, *(request.server_command or ())):
            if os.path.isabs(word) and os.path.relpath(word, request.workdir) in taken.paths:
                raise InputError(
                    f"'{word}' is a file of the work folder, and would not come from the snapshot",
                    f"its relative path, '{os.path.relpath(word, request.workdir)}'", column="command",
                )  # fmt: skip
        return taken.name

    def wrap(self, app: Any) -> Any:
        return app

    def tokens_needed(self) -> bool:
        return not self.home.has_tokens_file

    async def close(self) -> None:
        pass


class LocalSession:
    """See `trainmaster.service.platform.PlatformSession`."""

    def __init__(self, platform: LocalPlatform) -> None:
        self._platform = platform
        self._home = platform.home
        self.database = platform.home.database
        self._backend: ProcessBackend | None = None

    def open_store(self) -> Archive:
        return SqliteStore(self.database)

    def cluster(self, stored_state: StoredState) -> Cluster:  # noqa: ARG002 - the nodes are those of this machine
        return self._platform.nodes

    def open_backend(self, plane: ControlPlane, driver: Driver, stored_state: StoredState) -> ProcessBackend:
        self._plane = plane
        backend = self._made(plane, driver)
        plane.prepare_nodes(self._platform.options.reset_nodes)
        backend.start()
        self._backend = backend
        if stored_state.meta is not None:
            next_job = int(stored_state.meta.get("service", {}).get("next_job", 1))
            known = {*stored_state.jobs, *stored_state.ended, *(plane.store.document(QUARANTINE) or {})}
            payloads = [record["spec"].get("payload") or {} for record in stored_state.jobs.values()]
            self._remove(self._home.orphans(known, next_job), payloads)
        return backend

    def _made(self, plane: ControlPlane, driver: Driver) -> ProcessBackend:
        cluster, lease, pairs = plane.cluster, plane.settings.lease, self._platform.pairs
        if self._platform.name == "simulated":
            from trainmaster.service.local.realtime_simulation import RealtimeSimulation

            return RealtimeSimulation(cluster, lease, driver.deliver, lambda: plane.now_ms, pairs=pairs)
        from trainmaster.backends.local.accounts import open_home
        from trainmaster.backends.local.backend import LocalBackend
        from trainmaster.backends.local.devices import machine
        from trainmaster.backends.local.site import Options

        plane.machine = machine()

        accounts = self._home.accounts()
        if accounts is not None:
            open_home(self._home.path)
        return LocalBackend(
            cluster, self._home.path, lease, driver.deliver, lambda: plane.now_ms, self._platform.slowdown,
            find=find_accelerator,
            options=Options(accounts=accounts, kept_beside=None if pairs is None else pairs.kept_beside),
        )  # fmt: skip

    def opened(self, driver: Driver) -> None:
        pass

    def on_commit(self, commit: Commit) -> None:
        pass

    def on_forecast(self, finish_s: Mapping[str, float], now_s: float) -> None:
        pass

    def forget_jobs(self, job_ids: Sequence[str]) -> None:
        """In a thread of its own: checkpoints may be large. What a crash leaves is found at the next start."""
        self._remove(job_ids, [spec.payload for spec in queries.active_specs(self._plane.live)])

    def _remove(self, job_ids: Sequence[str], active: Sequence[Mapping[str, Any]]) -> None:
        """`active`: payloads of the jobs whose snapshots are needed."""
        used = {str(payload["snapshot"]) for payload in active if payload.get("snapshot")}

        def remove() -> None:
            self._home.remove_jobs(job_ids)
            self._platform.snapshots.sweep(used)

        threading.Thread(target=remove, name="remove-jobs", daemon=True).start()

    def halt(self) -> None:
        pass

    def close(self) -> None:
        if self._backend is not None:
            self._backend.close(end_jobs=self._platform.options.stop_jobs)


def settings_of(options: ServiceOptions) -> Settings:
    settings = Settings(
        placement=parse_strategy(options.placement),
        round_ms=None if options.round_s is None else max(round(options.round_s * 1000), 1),
        restart_cost_ms=round(options.restart_cost_s * 1000),
        resize_cost_ms=round(options.resize_cost_s * 1000),
        elastic_fill=options.elastic_fill,
        ask_after_start=True,
        notice_ms=round(options.preempt_notice_s * 1000),
        loss_max_ms=round(options.preempt_loss_s * 1000),
    )
    return settings if options.min_run_s is None else replace(settings, min_run_ms=round(options.min_run_s * 1000))


def _machine(options: ServiceOptions) -> tuple[Cluster, dict[str, float], bool]:
    """Nodes, slowdown of emulated types, and whether any is emulated."""
    if options.backend == "simulated":
        return parse_cluster(options.nodes or "cpu=4x4", PRICE_PER_GPU_HOUR), {}, True
    from trainmaster.backends.local.devices import describe

    nodes = None if options.nodes is None else parse_cluster(options.nodes, PRICE_PER_GPU_HOUR)
    cluster, slowdown, emulated = describe(nodes, find_accelerator)
    return replace(cluster, price_per_hour={**PRICE_PER_GPU_HOUR, **cluster.price_per_hour}), slowdown, emulated

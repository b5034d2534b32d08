# ruff: noqa: ARG002 (methods that leave out what a platform has nothing to do about)
"""What a service needs of the place it runs on: election, store, backend, access to jobs, logs.

`local` is one machine, where this process always leads; `kubernetes` elects one leader among replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from trainmaster.engine.ports import Archive, Backend, Commit, StoredState
from trainmaster.engine.records import Settings
from trainmaster.model.cluster import Cluster
from trainmaster.service.api.job_api import JobApi
from trainmaster.service.control.control_plane import ControlPlane, Retention
from trainmaster.service.control.experience import Bounds
from trainmaster.service.control.gateway import Gateway
from trainmaster.service.control.scheduler_thread import Driver
from trainmaster.service.local.tokens import Tokens

Fatal = Callable[[BaseException], None]
"""Told, from any thread, of a fault after which the service must end."""


class PlatformSession(Protocol):
    """The platform's part of one leadership. All but `halt` block, and are called from a thread of their own. What a
    platform has nothing to do about it leaves as it is here."""

    database: Path
    """The SQLite file from which forecasts read the jobs."""

    def open_store(self) -> Archive: ...

    def cluster(self, stored_state: StoredState) -> Cluster:
        """The nodes, given what the store says of those that jobs are on."""
        ...

    def open_backend(self, plane: ControlPlane, driver: Driver, stored_state: StoredState) -> Backend: ...

    def opened(self, driver: Driver) -> None:
        """The scheduler thread runs: begin to take in jobs and to publish."""
        return

    def on_commit(self, commit: Commit) -> None:
        """In the scheduler thread, after each commit."""
        return

    def on_forecast(self, finish_s: Mapping[str, float], now_s: float) -> None:
        """In any thread: when jobs are expected to finish, in seconds since the epoch."""
        return

    def forget_jobs(self, job_ids: Sequence[str]) -> None:
        """The history no longer holds these jobs. On Kubernetes objects, pods and their logs are the cluster's."""
        return

    def halt(self) -> None:
        """In the event loop: leadership is lost. Nothing acts when this returns."""
        return

    def close(self) -> None: ...


class Platform(Protocol):
    name: str
    alone: bool
    """There is one process, which leads from the start and for good; a fault at the start ends it."""
    emulated: bool
    retention: Retention
    experience: Bounds
    follow_nodes: bool
    """Nodes may be others than when the store was written."""

    def settings(self) -> Settings: ...

    def describe(self) -> str: ...

    async def start(self, address: str, on_lead: Callable[[], None], on_lose: Callable[[], None], fatal: Fatal) -> None:
        """Connect and stand for election. `on_lead` and `on_lose` are called in the event loop."""
        ...

    def prepare(self) -> None:
        """Blocks: what can be done before being elected."""
        return

    def leading(self) -> bool: ...

    def session(self) -> PlatformSession: ...

    def job_api(self, gateway: Gateway, tokens: Tokens) -> JobApi: ...

    def wrap(self, app: Any) -> Any:
        """The application as requests from outside meet it."""
        return app

    def tokens_needed(self) -> bool:
        """Whether a service that others can reach needs a file of tokens."""
        ...

    async def close(self) -> None:
        return

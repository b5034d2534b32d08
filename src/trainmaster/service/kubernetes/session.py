"""The cluster's part of one leadership: journal, backend, launchers' hub, job source, status writer.

`halt` stops all of it within the turn of the loop in which leadership was lost; `close` gives back what is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainmaster.backends.kubernetes.api.client import Object
from trainmaster.backends.kubernetes.api.reflector import Change
from trainmaster.backends.kubernetes.backend import KubernetesBackend, PodOptions
from trainmaster.backends.kubernetes.config_map_blobs import ConfigMapBlobs
from trainmaster.backends.kubernetes.gangs.gang_scheduler import GangRuns
from trainmaster.backends.kubernetes.launchers.hub import AgentHub
from trainmaster.backends.kubernetes.nodes.cluster_watch import ClusterWatch
from trainmaster.backends.kubernetes.nodes.fit import KnownRoom
from trainmaster.backends.kubernetes.nodes.node_sets import NodeSets
from trainmaster.backends.kubernetes.resources.template_check import TemplateCheck
from trainmaster.backends.kubernetes.resources.training_job import job_id_of_object
from trainmaster.engine import queries
from trainmaster.engine.ports import Commit, StoredState
from trainmaster.estimate.prices import PRICE_PER_GPU_HOUR
from trainmaster.model.cluster import Cluster, Node
from trainmaster.model.codec import allocation_from_json, spec_from_json
from trainmaster.model.command import Launch
from trainmaster.model.errors import InputError, TrainmasterError
from trainmaster.model.job import JobSpec
from trainmaster.service.api.problems import Unavailable
from trainmaster.service.control.control_plane import ControlPlane
from trainmaster.service.control.remap_nodes import followed
from trainmaster.service.control.requests import Read
from trainmaster.service.control.scheduler_thread import Driver
from trainmaster.service.kubernetes.gang_status_writer import GangStatusWriter
from trainmaster.service.kubernetes.job_source import JobSource, ReviewRoom
from trainmaster.service.kubernetes.namespace_teams import parse_bindings
from trainmaster.service.kubernetes.status_writer import StatusWriter
from trainmaster.service.platform import PlatformSession
from trainmaster.stores.mirror import MirroredJournal

if TYPE_CHECKING:
    from trainmaster.service.kubernetes.platform import KubernetesPlatform

SETS_GATHER_S = 0.1
NODES_GATHER_S = 1.0
"""New nodes are gathered for so long: an autoscaler brings several."""
NAME = "trainmaster"
"""Of the Lease and the state."""
GRACE_S = 20.0


@dataclass
class ChangeNodes:
    """The cluster has more nodes than the engine knows, or others. Those that jobs are on become others later."""

    watch: ClusterWatch
    backend: KubernetesBackend
    changes = True

    def prepare(self, plane: ControlPlane) -> None:
        cluster = Cluster(self.watch.present(plane.cluster.nodes, _in_use(plane)), PRICE_PER_GPU_HOUR)
        if cluster.nodes != plane.cluster.nodes:
            plane.take_nodes(cluster)
            self.backend.set_nodes(cluster)

    def answer(self, plane: ControlPlane) -> None:  # noqa: ARG002 - part of the protocol
        return None


def _in_use(plane: ControlPlane) -> set[str]:
    """Nodes that jobs are on, or were given."""
    return {plane.cluster.nodes[node].id for node in queries.nodes_in_use(plane.live)}


class KubernetesSession(PlatformSession):
    def __init__(self, platform: KubernetesPlatform) -> None:
        self._platform = platform
        self._client, self._portal = platform.client, platform.portal
        self._watch, self._jobs = platform.watch, platform.jobs
        self._secret = platform.secret
        self.database = platform.home.path / "mirror.db"
        self._halted = False
        self._tasks: list[asyncio.Task[Any]] = []
        self._nodes_due = False
        self._nodes_left = False
        """Nodes are others than they were, but jobs are on them: looked at again when something has changed."""
        self._sets_due = False
        self._driver: Driver | None = None
        self._backend: KubernetesBackend | None = None
        self._hub: AgentHub | None = None
        self._status_writer: StatusWriter | None = None
        self.source: JobSource | None = None
        self._ids: dict[str, tuple[str, str]] = {}

    # -- taking over -----------------------------------------------------------------------------------

    def open_store(self) -> MirroredJournal:
        self._portal.call(self._refresh(), 120.0)
        platform = self._platform
        blobs = ConfigMapBlobs(self._client, self._portal, platform.namespace, NAME, may_write=self._writes)
        store = MirroredJournal(blobs, f"{platform.identity}-{secrets.token_hex(3)}", self.database)
        store.claim()
        return store

    def cluster(self, stored_state: StoredState) -> Cluster:
        listed = _listed(stored_state)
        return Cluster(self._watch.present(listed, {node.id for node in listed}), PRICE_PER_GPU_HOUR)

    def open_backend(self, plane: ControlPlane, driver: Driver, stored_state: StoredState) -> KubernetesBackend:
        expected = _answered_for(followed(stored_state, plane.cluster, plane.estimator))
        active = [spec_from_json(record["spec"]) for record in stored_state.jobs.values()]
        backend = self._portal.call(self._adopt(plane, driver, active, expected), 60.0)
        plane.slow_starts = backend.slow_starts.words
        plane.is_gone = self._watch.is_gone
        return backend

    def opened(self, driver: Driver) -> None:
        self._portal.call(self._go(driver), 60.0)

    def _nodes(self) -> list[Object]:
        return list(self._watch.nodes.objects.values())

    async def _refresh(self) -> None:
        """A standby's copies may be out of date: jobs that they lack would be cancelled, pods taken for gone."""
        await asyncio.gather(self._watch.refresh(), self._jobs.refresh())

    def _writes(self) -> bool:
        return not self._halted and self._platform.leading()

    async def _adopt(
        self, plane: ControlPlane, driver: Driver, active: list[JobSpec], expected: list[Launch]
    ) -> KubernetesBackend:
        if self._halted:
            raise TrainmasterError("leadership lost")
        lease, port = plane.settings.lease, self._platform.agent_port
        self._watch.list_nodes(plane.cluster)
        self._sets = NodeSets(self._watch)
        self._room = KnownRoom(self._nodes, self._sets.asked)
        version, faults = max(1, plane.now_ms // 1000), self._watch.faults
        hub = self._hub = AgentHub(self._secret, lease, lambda: plane.now_ms, first_version=version, faults=faults)
        hub.authority_until(self._platform.authority_s)
        agents = tuple(self._platform.agent_addresses(self._watch.local_address()))
        backend = self._backend = KubernetesBackend(
            self._client,
            self._watch,
            lease,
            driver.deliver,
            lambda: plane.now_ms,
            secret=self._secret,
            hub=hub,
            job_of=lambda ns, name: self._jobs.objects.get((ns, name)),
            options=PodOptions(grace_s=GRACE_S, agents=agents),
            issued=lambda: queries.last_command_seq(plane.live),
        )
        hub.listener = backend.launcher_words
        backend.start(expected)
        backend.gangs = self._gangs(plane, driver, active, expected)
        await hub.listen(self._platform.agent_bind, port, advertise=agents[0])
        return backend

    def _gangs(self, plane: ControlPlane, driver: Driver, active: list[JobSpec], expected: list[Launch]) -> GangRuns:
        """Pods of other controllers that name our scheduler."""

        def node_set(spec: JobSpec, pod: Object) -> str:
            wanted = {"template": {"spec": pod["spec"]}, "gpuResource": spec.payload["gpu_resource"]}
            name = self._sets.name_for({"spec": {**wanted, **({} if spec.worker.gpu_milli else {"gpusPerWorker": 0})}})
            for event in self._sets.new():
                driver.deliver(event)
            return name

        gangs = GangRuns(
            self._client,
            driver.deliver,
            lambda: plane.now_ms,
            plane.time.epoch_ms,
            self._watch.name_of,
            node_set,
            self._room.lacks,
        )
        gangs.faults = self._watch.faults
        gangs.start(self._watch.foreign_pods(), active, expected)
        self._watch.foreign = gangs.pod_changed
        return gangs

    async def _go(self, driver: Driver) -> None:
        backend = self._backend
        if self._halted or backend is None:
            return
        self._driver = driver
        for reflector in (self._watch.nodes, self._watch.pods, self._jobs):
            for key, error in reflector.set_aside.items():
                self._set_aside("/".join(key), error)
            reflector.on_set_aside = self._set_aside
        for job in self._jobs.objects.values():
            self._ids[job_id_of_object(job)] = (job["metadata"]["namespace"], job["metadata"]["name"])
        status_writer = self._status_writer = StatusWriter(
            self._client, driver, self._object_for, busy=backend.is_making_pods
        )
        status_writer.faults = self._watch.faults
        self._watch.faults.told = self._set_aside
        backend.slow_starts.on_change = status_writer.look_at
        if backend.gangs is not None:
            gang_writer = GangStatusWriter(self._client, backend.gangs, status_writer)
            status_writer.also = gang_writer.tell
            self._tasks.append(asyncio.ensure_future(gang_writer.run()))
        bound = self._platform.options.bind_teams
        self.source = JobSource(
            driver,
            self._room,
            self._sets,
            self._refused,
            TemplateCheck(self._client),
            None if bound is None else parse_bindings(bound),
        )
        self._watch.on_nodes = self._look_at_sets
        self._look_at_sets()  # what changed since the gangs' sets were made was told to nobody
        self.source.begin(self._jobs.objects.values())
        status_writer.everything(self._ids)
        self._tasks.append(asyncio.ensure_future(status_writer.run()))
        if self._watch.outgrown():
            self.nodes_changed()

    # -- told in the loop --------------------------------------------------------------------------------

    def job_changed(self, kind: Change, job: Object, before: Object | None) -> None:
        if self._halted:
            return
        self._ids[job_id_of_object(job)] = (job["metadata"]["namespace"], job["metadata"]["name"])
        if self.source is not None:
            self.source.changed(kind, job, before)
        if kind == "DELETED":
            self._ids.pop(job_id_of_object(job), None)

    def _set_aside(self, what: str, error: Exception) -> None:
        """An object that anybody may have written: operators hear of it as of everything that is set aside."""
        if not self._halted and self._driver is not None:
            with contextlib.suppress(Unavailable):
                self._driver.put(Read(lambda views: views.plane.set_aside(what, None, error)), lambda _: None)

    def nodes_changed(self) -> None:
        if self._halted or self._nodes_due or self._driver is None:
            return
        self._nodes_due = True
        asyncio.get_running_loop().call_later(NODES_GATHER_S, self._take_nodes)

    def _look_at_sets(self) -> None:
        """Labels or taints have changed, or the list of nodes: who may go where is another matter now."""
        if not self._sets_due and not self._halted:
            self._sets_due = True
            asyncio.get_running_loop().call_later(SETS_GATHER_S, self._tell_sets)

    def _review_room(self) -> None:
        """What would fit is another matter now."""
        self._room.forget()
        if not self._halted and self._driver is not None:
            with contextlib.suppress(Unavailable):
                self._driver.put(ReviewRoom(self._room), lambda _: None)

    def _tell_sets(self) -> None:
        self._sets_due = False
        if not self._halted and self._driver is not None:
            for news in self._sets.news():
                self._driver.deliver(news)
        self._review_room()

    def _take_nodes(self) -> None:
        self._nodes_due = False
        if self._halted or self._driver is None or self._backend is None or not self._watch.outgrown():
            return
        loop = asyncio.get_running_loop()

        def answered(outcome: Any) -> None:
            if isinstance(outcome, BaseException):
                loop.call_soon_threadsafe(self.nodes_changed)
            else:
                loop.call_soon_threadsafe(loop.call_soon, self._look_at_rest)  # the backend has listed them by then

        with contextlib.suppress(RuntimeError):
            self._driver.put(ChangeNodes(self._watch, self._backend), answered)

    def _look_at_rest(self) -> None:
        self._nodes_left = self._watch.outgrown()
        self._review_room()

    def authority_until(self, monotonic_s: float) -> None:
        if self._hub is not None and not self._halted:
            self._hub.authority_until(monotonic_s)

    def _object_for(self, job_id: str) -> Object | None:
        key = self._ids.get(job_id)
        return None if key is None else self._jobs.objects.get(key)

    def _refused(self, job: Object, error: InputError) -> None:
        if self._status_writer is not None and not self._halted:
            self._tasks = [task for task in self._tasks if not task.done()]
            self._tasks.append(asyncio.ensure_future(self._status_writer.reject(job, error)))

    # -- from other threads ------------------------------------------------------------------------------

    def on_commit(self, commit: Commit) -> None:
        status_writer, driver = self._status_writer, self._driver
        if status_writer is not None and driver is not None and not self._halted:
            status_writer.stepped(queries.status_keys(driver.plane.live, {*commit.jobs, *commit.ended}), commit.log)
        if self._nodes_left and not self._halted:
            self._nodes_left = False
            self._portal.loop.call_soon_threadsafe(self.nodes_changed)

    def on_forecast(self, finish_s: Mapping[str, float], now_s: float) -> None:
        if self._status_writer is not None and not self._halted:
            self._status_writer.foreseen(finish_s, now_s)

    # -- the end -----------------------------------------------------------------------------------------

    def halt(self) -> None:
        self._halted = True
        self._watch.listener = None
        self._watch.foreign = None
        self._watch.on_nodes = None
        if self.source is not None:
            self.source.stop()
        if self._backend is not None:
            self._backend.halt()
        elif self._hub is not None:
            self._hub.halt()
        for task in self._tasks:
            task.cancel()

    def close(self) -> None:
        if self._hub is not None:
            with contextlib.suppress(TimeoutError):
                self._portal.call(self._hub.close(), 5.0)


def _listed(stored_state: StoredState) -> list[Node]:
    """The nodes that the state speaks of, as far as jobs are on them or may still be: they keep their place.

    How large they are is asked of the nodes themselves; one that is gone has nothing to give.
    """
    if stored_state.meta is None:
        return []
    held = {
        part[0]
        for record in stored_state.jobs.values()
        for allocation in (record["allocation"], record["held"])
        if allocation is not None
        for part in allocation["parts"]
    }
    shape = stored_state.meta.get("service", {}).get("shape") or []
    return [Node(name, kind, gpus, 0, 0) for k, (name, kind, gpus) in enumerate(shape) if k in held]


def _answered_for(stored_state: StoredState) -> list[Launch]:
    """Attempts that hold something and whose last command was answered."""
    found = []
    for record in stored_state.jobs.values():
        if record["held"] is None or record["command"] is not None:
            continue
        spec = spec_from_json(record["spec"])
        allocation = allocation_from_json(record["held"])
        found.append(Launch(spec.id, record["ints"]["generation"], record["last_seq"], allocation, spec))
    return found

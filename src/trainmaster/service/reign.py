"""One leadership on a cluster: from taking over the state to handing it on.

Everything that acts belongs to a reign: store, control plane, driver, backend, launchers' hub, job source, teller.
`halt` stops all of it within the turn of the loop in which leadership was lost; `end` gives back what is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainmaster.backends.kubernetes.agent_hub import AgentHub
from trainmaster.backends.kubernetes.backend import KubernetesBackend, PodOptions
from trainmaster.backends.kubernetes.blobs import ConfigMapBlobs
from trainmaster.backends.kubernetes.client import KubeClient, Object
from trainmaster.backends.kubernetes.cluster_watch import ClusterWatch
from trainmaster.backends.kubernetes.fit import KnownRoom
from trainmaster.backends.kubernetes.gang_runs import GangRuns
from trainmaster.backends.kubernetes.loop_thread import LoopThread
from trainmaster.backends.kubernetes.node_sets import NodeSets
from trainmaster.backends.kubernetes.reflector import Change, Reflector
from trainmaster.backends.kubernetes.template_check import TemplateCheck
from trainmaster.backends.kubernetes.translate import job_id_of_object
from trainmaster.engine import queries
from trainmaster.engine.ports import Commit, Image, LogEntry
from trainmaster.engine.records import Settings
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.estimate.prices import PRICE_PER_GPU_HOUR
from trainmaster.estimate.profiles import LearningEstimator
from trainmaster.foresight.forecast import Outlook
from trainmaster.foresight.process import ForecastProcess
from trainmaster.model.cluster import Cluster, Node
from trainmaster.model.codec import allocation_from_json, spec_from_json
from trainmaster.model.command import Command, Launch
from trainmaster.model.errors import InputError
from trainmaster.model.job import JobSpec
from trainmaster.policies.registry import create
from trainmaster.service.clock import SystemClock
from trainmaster.service.control import ControlPlane, Retention
from trainmaster.service.driver import Driver
from trainmaster.service.gang_telling import GangTeller
from trainmaster.service.job_source import JobSource
from trainmaster.service.kube_telling import Teller
from trainmaster.service.prospect import Prospect
from trainmaster.service.renode import followed
from trainmaster.sim.run import load_kernels
from trainmaster.stores.journal import JournalStore
from trainmaster.stores.mirror import MirroredJournal

SETS_GATHER_S = 0.1
NODES_GATHER_S = 1.0
"""New nodes are gathered for so long: an autoscaler brings several."""


@dataclass(frozen=True)
class ReignOptions:
    """What the operator chose."""

    namespace: str
    name: str = "trainmaster"
    policy: str | None = None
    settings: Settings = field(default_factory=Settings)
    retention: Retention = field(default_factory=lambda: Retention(days=14, ended_jobs=5_000, log_lines=5_000))
    agent_bind: str = "0.0.0.0"
    agent_port: int = 8643
    agent_host: str = ""
    agents: tuple[str, ...] = ()
    """Further addresses (host:port) that launchers may try, such as a Service's name."""
    grace_s: float = 20.0


class _Slot:
    """Stands in for the backend until it is made: plane and backend need each other."""

    backend: KubernetesBackend | None = None

    def perform(self, command: Command) -> None:
        assert self.backend is not None
        self.backend.perform(command)

    def observe(self) -> None:
        assert self.backend is not None
        self.backend.observe()


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
            self.backend.recast(cluster)

    def answer(self, plane: ControlPlane) -> None:  # noqa: ARG002 - part of the protocol
        return None


def _in_use(plane: ControlPlane) -> set[str]:
    """Nodes that jobs are on, or were given."""
    return {plane.cluster.nodes[node].id for node in queries.nodes_in_use(plane.live)}


class Reign:
    """`begin` and `end` are called from a thread other than the loop's, `halt` in the loop."""

    def __init__(
        self,
        options: ReignOptions,
        client: KubeClient,
        thread: LoopThread,
        watch: ClusterWatch,
        jobs: Reflector,
        *,
        identity: str,
        secret: bytes,
        may_write: Callable[[], bool],
        told: Callable[[Sequence[LogEntry]], None],
        fatal: Callable[[BaseException], None],
        home: Path,
    ) -> None:
        self.options = options
        self._client = client
        self._thread = thread
        self._watch = watch
        self._jobs = jobs
        self._secret = secret
        self._may_write = may_write
        self._told = told
        self._fatal = fatal
        self._home = home
        self._writer = f"{identity}-{secrets.token_hex(3)}"
        self._halted = False
        self._authority_s: float | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self._nodes_due = False
        self._nodes_left = False
        """Nodes are others than they were, but jobs are on them: looked at again when something has changed."""
        self._sets_due = False
        self._room = KnownRoom(self._nodes)
        """For gangs of other controllers."""
        self.driver: Driver | None = None
        self.forecasts: ForecastProcess | None = None
        self.store: JournalStore | None = None
        self.backend: KubernetesBackend | None = None
        self.hub: AgentHub | None = None
        self.teller: Teller | None = None
        self.source: JobSource | None = None
        self._ids: dict[str, tuple[str, str]] = {}

    # -- taking over -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Blocks until requests are answered. Raises when the state cannot be had."""
        self._thread.call(self._synced(), 120.0)
        blobs = ConfigMapBlobs(
            self._client, self._thread, self.options.namespace, self.options.name, may_write=self._writes
        )
        mirror = self._home / "mirror.db"
        store = self.store = MirroredJournal(blobs, self._writer, mirror)
        store.claim()
        image = store.load_active()
        listed = _listed(image)
        cluster = Cluster(self._watch.present(listed, {node.id for node in listed}), PRICE_PER_GPU_HOUR)
        slot = _Slot()
        prospect = Prospect(LearningEstimator(DeclaredSpeeds()), mirror)
        prospect.forecaster = self.forecasts = ForecastProcess(self._foresee(prospect), prospect.failed)
        policy = self.options.policy
        plane = ControlPlane(
            cluster, store, slot, SystemClock(), prospect.estimator, self.options.settings, policy or "fifo",
            retention=self.options.retention, told=self._told, committed=self._committed, force_policy=policy,
            prospect=prospect, follow_nodes=True,
        )  # fmt: skip
        driver = Driver(plane, self._fatal)
        plane.set_time(image)
        expected = _answered_for(followed(image, cluster, prospect.estimator))
        active = [spec_from_json(record["spec"]) for record in image.jobs.values()]
        slot.backend = self._thread.call(self._adopt(plane, driver, cluster, active, expected), 60.0)
        plane.slow_starts = slot.backend.slow_starts.words
        plane.open()
        if plane.policy_name != (policy or "fifo"):
            load_kernels(create(plane.policy_name))  # now, rather than while the first job waits
        driver.start()
        self.driver = driver
        self._thread.call(self._go(driver), 60.0)

    def _foresee(self, prospect: Prospect) -> Callable[[int, float, dict[str, Outlook], float], None]:
        """What takes forecasts, in a thread of their own: the service, and then the objects' statuses."""

        def answered(now_ms: int, cpu_s: float, outlooks: dict[str, Outlook], widening: float) -> None:
            prospect.answered(now_ms, cpu_s, outlooks, widening)
            teller, driver = self.teller, self.driver
            if teller is None or driver is None or self._halted:
                return
            now_s = driver.plane.time.instant_s(now_ms)
            known = {job_id: outlook.finish for job_id, outlook in outlooks.items() if outlook.known}
            teller.foreseen({job_id: now_s + band.p50_s for job_id, band in known.items() if band is not None}, now_s)

        return answered

    def _nodes(self) -> list[Object]:
        return list(self._watch.nodes.objects.values())

    async def _synced(self) -> None:
        await self._watch.synced()
        await self._jobs.synced.wait()

    def _writes(self) -> bool:
        return not self._halted and self._may_write()

    async def _adopt(
        self, plane: ControlPlane, driver: Driver, cluster: Cluster, active: list[JobSpec], expected: list[Launch]
    ) -> KubernetesBackend:
        options, lease = self.options, self.options.settings.lease
        self._watch.list_nodes(cluster)
        self._sets = NodeSets(self._watch)
        listener = _Later()
        self.hub = AgentHub(
            self._secret, lease, lambda: plane.now_ms, listener,  # type: ignore[arg-type]
            first_version=max(1, plane.now_ms // 1000),
        )  # fmt: skip
        if self._authority_s is not None:
            self.hub.authority_until(self._authority_s)
        host = options.agent_host or self._watch.local_address() or "127.0.0.1"
        own = f"{host}:{options.agent_port}"
        self.backend = KubernetesBackend(
            self._client, self._watch, lease, driver.deliver, lambda: plane.now_ms,
            secret=self._secret, hub=self.hub, job_of=lambda ns, name: self._jobs.objects.get((ns, name)),
            options=PodOptions(grace_s=options.grace_s, agents=(own, *options.agents)),
            issued=lambda: queries.last_command_seq(plane.live),
        )  # fmt: skip
        listener.target = self.backend.launcher_words
        self.backend.start(expected)
        self.backend.gangs = self._gangs(plane, driver, active, expected)
        await self.hub.listen(options.agent_bind, options.agent_port, advertise=own)
        return self.backend

    def _gangs(self, plane: ControlPlane, driver: Driver, active: list[JobSpec], expected: list[Launch]) -> GangRuns:
        """Pods of other controllers that name our scheduler."""

        def check(spec: JobSpec, pod: Object) -> None:
            self._room.check(spec, {"spec": pod["spec"]})

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
            check,
            node_set,
        )
        gangs.start(self._watch.foreign_pods(), active, expected)
        self._watch.foreign = gangs.pod_changed
        return gangs

    async def _go(self, driver: Driver) -> None:
        if self._halted:
            return
        for job in self._jobs.objects.values():
            self._ids[job_id_of_object(job)] = (job["metadata"]["namespace"], job["metadata"]["name"])
        assert self.backend is not None
        self.teller = Teller(self._client, driver, self._object_for, busy=self.backend.is_making_pods)
        self.backend.slow_starts.on_change = self.teller.look_at
        if self.backend.gangs is not None:
            gang_teller = GangTeller(self._client, self.backend.gangs, self.teller)
            self.teller.also = gang_teller.tell
            self._tasks.append(asyncio.ensure_future(gang_teller.run()))
        self.source = JobSource(
            driver, self._nodes, self._sets, self._refused,
            TemplateCheck(self._client),
        )  # fmt: skip
        self._watch.on_nodes = self._look_at_sets
        self._look_at_sets()  # what changed since the gangs' sets were made was told to nobody
        self.source.begin(self._jobs.objects.values())
        self.teller.everything(self._ids)
        self._tasks.append(asyncio.ensure_future(self.teller.run()))
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

    def nodes_changed(self) -> None:
        if self._halted or self._nodes_due or self.driver is None:
            return
        self._nodes_due = True
        asyncio.get_running_loop().call_later(NODES_GATHER_S, self._take_nodes)

    def _look_at_sets(self) -> None:
        """Labels or taints have changed, or the list of nodes: who may go where is another matter now."""
        if not self._sets_due and not self._halted:
            self._sets_due = True
            asyncio.get_running_loop().call_later(SETS_GATHER_S, self._tell_sets)

    def _forget_room(self) -> None:
        """What would fit is another matter now."""
        self._room.forget()
        if self.source is not None:
            self.source.nodes_changed()

    def _tell_sets(self) -> None:
        self._sets_due = False
        self._forget_room()
        if not self._halted and self.driver is not None:
            for news in self._sets.news():
                self.driver.deliver(news)

    def _take_nodes(self) -> None:
        self._nodes_due = False
        if self._halted or self.driver is None or self.backend is None or not self._watch.outgrown():
            return
        self._forget_room()
        loop = asyncio.get_running_loop()

        def answered(outcome: Any) -> None:
            if isinstance(outcome, BaseException):
                loop.call_soon_threadsafe(self.nodes_changed)
            else:
                loop.call_soon_threadsafe(loop.call_soon, self._look_at_rest)  # the backend has listed them by then

        with contextlib.suppress(RuntimeError):
            self.driver.put(ChangeNodes(self._watch, self.backend), answered)

    def _look_at_rest(self) -> None:
        self._nodes_left = self._watch.outgrown()

    def authority_until(self, monotonic_s: float) -> None:
        self._authority_s = monotonic_s
        if self.hub is not None:
            self.hub.authority_until(monotonic_s)

    def _object_for(self, job_id: str) -> Object | None:
        key = self._ids.get(job_id)
        return None if key is None else self._jobs.objects.get(key)

    def _refused(self, job: Object, error: InputError) -> None:
        if self.teller is not None and not self._halted:
            self._tasks.append(asyncio.ensure_future(self.teller.reject(job, error)))
            self._tasks = [task for task in self._tasks if not task.done()]

    def _committed(self, commit: Commit) -> None:
        """In the driver's thread."""
        teller, driver = self.teller, self.driver
        if teller is not None and driver is not None and not self._halted:
            teller.stepped(queries.status_keys(driver.plane.live, {*commit.jobs, *commit.ended}), commit.log)
        if self._nodes_left and not self._halted:
            self._nodes_left = False
            self._thread.loop.call_soon_threadsafe(self.nodes_changed)

    # -- the end -----------------------------------------------------------------------------------------

    def halt(self) -> None:
        self._halted = True
        self._watch.listener = None
        self._watch.foreign = None
        self._watch.on_nodes = None
        if self.source is not None:
            self.source.stop()
        if self.backend is not None:
            self.backend.halt()
        elif self.hub is not None:
            self.hub.halt()
        for task in self._tasks:
            task.cancel()

    def end(self) -> None:
        if self.driver is not None:
            self.driver.stop()
        if self.forecasts is not None:
            self.forecasts.close()
        if self.hub is not None:
            with contextlib.suppress(TimeoutError):
                self._thread.call(self.hub.close(), 5.0)
        if self.store is not None:
            self.store.close()


class _Later:
    """Passes what launchers say to a backend that is made after the hub."""

    target: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)


def _listed(image: Image) -> list[Node]:
    """The nodes that the state speaks of, as far as jobs are on them or may still be: they keep their place.

    How large they are is asked of the nodes themselves; one that is gone has nothing to give.
    """
    if image.meta is None:
        return []
    held = {
        part[0]
        for record in image.jobs.values()
        for allocation in (record["allocation"], record["held"])
        if allocation is not None
        for part in allocation["parts"]
    }
    shape = image.meta.get("service", {}).get("shape") or []
    return [Node(name, kind, gpus, 0, 0) for k, (name, kind, gpus) in enumerate(shape) if k in held]


def _answered_for(image: Image) -> list[Launch]:
    """Incarnations that hold something and whose last command was answered."""
    found = []
    for record in image.jobs.values():
        if record["held"] is None or record["command"] is not None:
            continue
        spec = spec_from_json(record["spec"])
        allocation = allocation_from_json(record["held"])
        found.append(Launch(spec.id, record["ints"]["generation"], record["last_seq"], allocation, spec))
    return found

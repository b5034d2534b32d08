"""One replica of the service: real client, watches, election, journal, control plane, backend and hub, in one thread.

It does what `service` does around them, and no more: elects, takes over, submits new TrainingJobs, hands events to the
control plane, stops when it does not lead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from trainmaster.backends.kubernetes import paths
from trainmaster.backends.kubernetes.agent_hub import AgentHub
from trainmaster.backends.kubernetes.backend import KubernetesBackend, PodOptions
from trainmaster.backends.kubernetes.blobs import ConfigMapBlobs
from trainmaster.backends.kubernetes.cluster_watch import ClusterWatch
from trainmaster.backends.kubernetes.election import Election
from trainmaster.backends.kubernetes.reflector import Reflector
from trainmaster.backends.kubernetes.translate import job_id_of_object, spec_of_trainingjob
from trainmaster.dst.kubernetes.transport import Line, client_of
from trainmaster.dst.kubernetes.virtual_loop import VirtualLoop
from trainmaster.engine import queries
from trainmaster.engine.ports import Commit, Image, StoreError
from trainmaster.engine.records import Settings
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.model import event as ev
from trainmaster.model.cluster import Cluster
from trainmaster.model.codec import allocation_from_json, spec_from_json
from trainmaster.model.command import Command, Launch
from trainmaster.model.policy import Policy
from trainmaster.service.control.control_plane import ControlPlane
from trainmaster.stores.journal import JournalStore

NAMESPACE = "trainmaster-system"
SECRET = b"simulated"
PORT = 8643
LOOK_S = 2.0
"""How often new TrainingJobs are looked for."""


class Died(BaseException):
    """The process is gone: unwinds what it was doing."""


class VirtualClock:
    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + self.elapsed_ms()

    def elapsed_ms(self) -> int:
        return int(self._loop.time() * 1000)


class _Later:
    """Passes on what launchers say to a backend that is made after the hub."""

    target: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)


class Session:
    """One leadership."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._loop = replica.loop
        self.halted = False
        self._events: list[ev.Event] = []
        self._wake: asyncio.TimerHandle | None = None
        self._busy = False
        self.plane: ControlPlane | None = None
        self.backend: KubernetesBackend | None = None
        self.hub: AgentHub | None = None

    def call(self, work: Coroutine[Any, Any, Any], _timeout_s: float | None = None) -> Any:
        """As a `LoopThread`'s: the journal waits for the API server."""
        outcome = self._loop.wait(work)
        if self._replica.dead:
            raise Died
        return outcome

    def begin(self) -> None:
        replica = self._replica
        self.call(replica.watch.synced())
        self.call(replica.jobs.synced.wait())
        blobs = ConfigMapBlobs(replica.client, self, NAMESPACE, "trainmaster", may_write=self._writes)  # type: ignore[arg-type]
        self.store = JournalStore(blobs, replica.name, snapshot_entries=60)
        self.store.claim()
        image = self.store.load_active()
        cluster = Cluster(replica.watch.present(), {})
        plane = ControlPlane(
            cluster, self.store, self, VirtualClock(self._loop), DeclaredSpeeds(), replica.settings, replica.policy,
            policies=replica.policies, committed=replica.committed,
        )  # fmt: skip
        plane.set_time(image)
        if self.halted:
            return
        self.call(self._adopt(plane, cluster, _answered_for(image)))
        if self.halted:
            return
        plane.open()
        self.plane = plane
        self._look()
        self.turn()

    async def _adopt(self, plane: ControlPlane, cluster: Cluster, expected: list[Launch]) -> None:
        replica, lease = self._replica, self._replica.settings.lease
        if self.halted:
            return
        replica.watch.list_nodes(cluster)
        listener = _Later()
        self.hub = AgentHub(
            SECRET, lease, lambda: plane.now_ms, listener,  # type: ignore[arg-type]
            first_version=max(1, plane.now_ms // 1000),
        )  # fmt: skip
        self.hub.authority_until(replica.until_s)
        self.backend = KubernetesBackend(
            replica.client, replica.watch, lease, self.deliver, lambda: plane.now_ms, secret=SECRET, hub=self.hub,
            job_of=lambda namespace, name: replica.jobs.objects.get((namespace, name)),
            options=PodOptions(grace_s=5.0, hello_wait_s=2.0, agents=replica.agents),
            issued=lambda: queries.last_command_seq(plane.live),
        )  # fmt: skip
        listener.target = self.backend.launcher_words
        self.backend.start(expected)
        await self.hub.listen(replica.name, PORT, advertise=f"{replica.name}:{PORT}")

    def _writes(self) -> bool:
        return not self.halted and not self._replica.dead and self._replica.election.leading()

    def halt(self) -> None:
        """Nothing acts from now on."""
        self.halted = True
        if self._replica.session in (None, self):
            self._replica.watch.listener = None
        if self.backend is not None:
            self.backend.halt()
        if self.hub is not None:
            self.hub.halt()
            self._loop.create_task(self.hub.close())

    # -- the driver ----------------------------------------------------------------------------------

    def perform(self, command: Command) -> None:
        assert self.backend is not None
        self._replica.tell("command", command)
        self.backend.perform(command)

    def observe(self) -> None:
        assert self.backend is not None
        self.backend.observe()

    def deliver(self, event: ev.Event) -> None:
        self._replica.tell("event", event)
        self._events.append(event)
        self._loop.call_soon(self.turn)

    def _look(self) -> None:
        """New TrainingJobs are submitted, and cancellations passed on."""
        if self.halted or self.plane is None:
            return
        self._loop.call_later(LOOK_S, self._look)
        if self.plane.engine is None:
            return
        for job in self._replica.jobs.objects.values():
            job_id = job_id_of_object(job)
            if not queries.was_submitted(self.plane.engine, job_id) and self.store.find_ended(job_id) is None:
                self.deliver(ev.JobSubmitted(spec_of_trainingjob(job, self.plane.time.epoch_ms)))
            elif job["metadata"]["name"] in self._replica.cancelled and queries.is_active(self.plane.engine, job_id):
                self.deliver(ev.JobCancelled(job_id))

    def turn(self) -> None:
        """A callback of the loop: may wait."""
        if self._busy or self.halted or self.plane is None:
            return
        self._busy = True
        try:
            while not self.halted:
                events, self._events = self._events, []
                self.plane.batch([], events)
                if not self._events and self.plane.next_wake_ms > self.plane.now_ms:
                    break
        finally:
            self._busy = False
        if not self.halted:
            if self._wake is not None:
                self._wake.cancel()
            wait_s = min(max((self.plane.next_wake_ms - self.plane.now_ms) / 1000, 0.001), 60.0)
            self._wake = self._loop.call_later(wait_s, self.turn)


class Replica:
    """`start`, then `die` at any moment."""

    def __init__(
        self, loop: VirtualLoop, name: str, line: Line, settings: Settings, policy: str,
        policies: Callable[[str], Policy], agents: tuple[str, ...], cancelled: set[str],
        committed: Callable[[Commit], None], tell: Callable[[str, Any], None],
    ) -> None:  # fmt: skip
        self.loop, self.name, self.line = loop, name, line
        self.settings, self.policy, self.policies = settings, policy, policies
        self.agents, self.cancelled, self.committed, self.tell = agents, cancelled, committed, tell
        self.dead = False
        self.until_s = 0.0
        self.session: Session | None = None
        self.client = client_of(line)
        self.watch = ClusterWatch(self.client)
        self.jobs = Reflector(self.client, paths.training_jobs(), lambda *_: None)
        self.election = Election(
            self.client, NAMESPACE, "trainmaster", name, on_lead=self._lead, on_lose=self._lose, renewed=self._renewed
        )
        runs = (self.watch.run(), self.jobs.run(), self.election.run())
        self._tasks = [loop.create_task(run) for run in runs]

    def _renewed(self, until_s: float) -> None:
        self.until_s = until_s
        if self.session is not None and self.session.hub is not None:
            self.session.hub.authority_until(until_s)

    def _lead(self) -> None:
        self.tell("leads", self.name)
        self.session = Session(self)
        self.loop.call_soon(self._begin, self.session)

    def _begin(self, session: Session) -> None:
        try:
            if not session.halted and not self.dead:
                session.begin()
        except Died:
            return
        except StoreError:
            session.halt()
            if self.session is session and not self.dead and self.election.leading():
                self.session = Session(self)
                self.loop.call_later(1.0, self._begin, self.session)

    def _lose(self) -> None:
        self.tell("lost", self.name)
        if self.session is not None:
            self.session.halt()
            self.session = None

    def die(self) -> None:
        """As by SIGKILL: what it has sent may still arrive."""
        self.dead = True
        self.line.cut = True
        for task in self._tasks:
            task.cancel()
        if self.session is not None:
            self.session.halt()
            self.session = None


def _answered_for(image: Image) -> list[Launch]:
    """Incarnations that hold something and whose last command was answered."""
    found = []
    for record in image.jobs.values():
        if record["held"] is not None and record["command"] is None:
            spec, held = spec_from_json(record["spec"]), allocation_from_json(record["held"])
            found.append(Launch(spec.id, record["ints"]["generation"], record["last_seq"], held, spec))
    return found

"""The Kubernetes backend: turns commands into pods and what pods and launchers say into events.

Everything happens in one event loop; `perform` and `observe` only leave a note for it, in order. What it knows is in
the API server, in pods' labels and annotations; so another process finds all attempts again (`start` adopts them).

    commands ──> commands ─────┐                                ┌──> pod_actions ──> API server
    watch ─────> pod_observer ─┼──> pod_attempt, gang.attempt ──> driver ──> launchers
    launchers ─> driver ───────┘                                └──> reports ──> events
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from trainmaster.backends.kubernetes.api.client import KubeClient, Object
from trainmaster.backends.kubernetes.attempts import pod_objects as p
from trainmaster.backends.kubernetes.attempts.commands import CommandHandler
from trainmaster.backends.kubernetes.attempts.driver import RunDriver
from trainmaster.backends.kubernetes.attempts.observations import RunKey
from trainmaster.backends.kubernetes.attempts.pod_actions import PodWork
from trainmaster.backends.kubernetes.attempts.pod_attempt import Run
from trainmaster.backends.kubernetes.attempts.pod_observer import PodObserver
from trainmaster.backends.kubernetes.attempts.registry import AttemptRegistry, PodOptions
from trainmaster.backends.kubernetes.attempts.reports import RunReports
from trainmaster.backends.kubernetes.attempts.slow_starts import SlowStarts
from trainmaster.backends.kubernetes.gangs.gang_scheduler import GangRuns
from trainmaster.backends.kubernetes.launchers.hub import AgentHub
from trainmaster.backends.kubernetes.nodes.cluster_watch import ClusterWatch
from trainmaster.model import event as ev
from trainmaster.model.cluster import Cluster
from trainmaster.model.command import Command, Launch
from trainmaster.model.lease import LeaseRule

__all__ = ["KubernetesBackend", "PodOptions"]


class KubernetesBackend:
    """See `trainmaster.engine.ports.Backend`. All methods but `perform`, `observe` and `set_nodes` belong to the event
    loop."""

    def __init__(
        self,
        client: KubeClient,
        watch: ClusterWatch,
        lease: LeaseRule,
        deliver: Callable[[ev.Event], None],
        now_ms: Callable[[], int],
        *,
        secret: bytes,
        hub: AgentHub,
        job_of: Callable[[str, str], Object | None],
        options: PodOptions | None = None,
        issued: Callable[[], int] | None = None,
    ) -> None:
        """`job_of(namespace, name)` is the TrainingJob. `issued` tells, in the driver's thread, the number of the last
        command that was handed over; without it an inventory speaks for the commands seen by this process alone."""
        self._watch = watch
        self._issued = issued
        self._registry = AttemptRegistry(watch, lease, hub, secret, options or PodOptions(), job_of)
        self.slow_starts = SlowStarts(self._registry)
        self._reports = RunReports(self._registry, deliver, now_ms)
        self._work = PodWork(self._registry, client, self.slow_starts)
        self._driver = RunDriver(self._registry, self._reports, self._work, self.slow_starts)
        self._commands = CommandHandler(self._registry, self._reports, self._driver, self._work)
        self._pod_observer = PodObserver(self._registry, self._reports, self._driver, self._work, self.slow_starts)
        self.launcher_words = self._driver
        """Whom the hub tells."""
        self.gangs: GangRuns | None = None
        """Gangs of other controllers, if they are scheduled too."""

    @property
    def runs(self) -> dict[RunKey, Run]:
        return self._registry.runs

    # -- for the driver ------------------------------------------------------------------------------

    def perform(self, command: Command) -> None:
        self._registry.loop.call_soon_threadsafe(self._take, command)

    def observe(self) -> None:
        vouched = None if self._issued is None else self._issued()
        self._registry.loop.call_soon_threadsafe(self._take_inventory, vouched)

    def set_nodes(self, cluster: Cluster) -> None:
        """The engine knows these nodes from now on; indices that it knew before mean the same."""
        self._registry.loop.call_soon_threadsafe(self._watch.list_nodes, cluster)

    # -- life ----------------------------------------------------------------------------------------

    def start(self, expected: Iterable[Launch] = ()) -> None:
        """Adopt every pod that is there. The watch has been synchronised.

        `expected` are attempts that have been answered for: what they hold, by their last command.
        """
        self._registry.adopting = True
        for launch in expected:
            if launch.spec.payload.get("kind") != "Gang":
                self._commands.expect(launch)
        pods = list(self._watch.our_pods())
        for pod in sorted(pods, key=p.is_over):  # who lives first (see `Run.adopt`)
            self._pod_observer.pod_changed(pod, gone=False)
        self._registry.adopting = False
        self._watch.listener = self._pod_observer
        self._watch.tell_all()
        for run in list(self.runs.values()):
            if run.started and run.empty_seats() and not (run.facts.launcher and run.facts.spec.elastic and run.alive):
                self._pod_observer.vanished(run)
                run.attempt.stop("its pods vanished while nobody watched")
            elif not run.started:
                self.slow_starts.bound(run)
            self._driver.advance(run)

    def halt(self) -> None:
        """This process does not lead any more: nothing is written from now on."""
        if self.gangs is not None:
            self.gangs.halt()
        self._registry.halt()

    def is_making_pods(self) -> bool:
        return self._work.gate.busy

    # -- in the loop ---------------------------------------------------------------------------------

    def _take(self, command: Command) -> None:
        if self._registry.halted:
            return
        self._registry.seen_seq = max(self._registry.seen_seq, command.seq)
        with self._registry.faults.alone(f"{type(command).__name__} of {command.job_id}"):
            if self.gangs is not None and self.gangs.owns(command.job_id):
                self.gangs.take(command)
            else:
                self._commands.take(command)

    def _take_inventory(self, vouched: int | None) -> None:
        self._reports.inventory(vouched, () if self.gangs is None else self.gangs.observed())

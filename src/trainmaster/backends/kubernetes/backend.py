"""The Kubernetes backend: turns commands into pods and what pods and launchers say into events.

Everything happens in one event loop; `perform` and `observe` only leave a note for it, in order. What it knows is in
the API server, in pods' labels and annotations; so another process finds all attempts again (`start` adopts them).

    commands ──> orders ────┐                              ┌──> pod_work ──> API server
    watch ─────> sightings ─┼──> run, gang.attempt ──> run_driver ──> launchers
    launchers ─> run_driver ┘                              └──> run_reports ──> events
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from trainmaster.backends.kubernetes import pods as p
from trainmaster.backends.kubernetes.client import KubeClient, Object
from trainmaster.backends.kubernetes.cluster_watch import ClusterWatch
from trainmaster.backends.kubernetes.facts import RunKey
from trainmaster.backends.kubernetes.gang_runs import GangRuns
from trainmaster.backends.kubernetes.orders import Orders
from trainmaster.backends.kubernetes.pod_work import PodWork
from trainmaster.backends.kubernetes.run import Run
from trainmaster.backends.kubernetes.run_book import Launchers, NoLaunchers, PodOptions, RunBook
from trainmaster.backends.kubernetes.run_driver import RunDriver
from trainmaster.backends.kubernetes.run_reports import RunReports
from trainmaster.backends.kubernetes.sightings import Sightings
from trainmaster.backends.kubernetes.slow_starts import SlowStarts
from trainmaster.model import event as ev
from trainmaster.model.cluster import Cluster
from trainmaster.model.command import Command, Launch
from trainmaster.model.lease import LeaseRule

__all__ = ["KubernetesBackend", "PodOptions"]


class KubernetesBackend:
    """See `trainmaster.engine.ports.Backend`. All methods but `perform`, `observe` and `recast` belong to the event
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
        hub: Launchers | None = None,
        job_of: Callable[[str, str], Object | None],
        options: PodOptions | None = None,
        issued: Callable[[], int] | None = None,
    ) -> None:
        """`job_of(namespace, name)` is the TrainingJob. `issued` tells, in the driver's thread, the number of the last
        command that was handed over; without it an inventory speaks for the commands seen by this process alone."""
        launchers: Launchers = NoLaunchers() if hub is None else hub  # type: ignore[assignment]
        self._watch = watch
        self._issued = issued
        self._book = RunBook(watch, lease, launchers, secret, options or PodOptions(), job_of)
        self.slow_starts = SlowStarts(self._book)
        self._reports = RunReports(self._book, deliver, now_ms)
        self._work = PodWork(self._book, client, self.slow_starts)
        self._driver = RunDriver(self._book, self._reports, self._work, self.slow_starts)
        self._orders = Orders(self._book, self._reports, self._driver, self._work)
        self._sightings = Sightings(self._book, self._reports, self._driver, self._work, self.slow_starts)
        self.launcher_words = self._driver
        """Whom the hub tells."""
        self.gangs: GangRuns | None = None
        """Gangs of other controllers, if they are scheduled too."""

    @property
    def runs(self) -> dict[RunKey, Run]:
        return self._book.runs

    # -- for the driver ------------------------------------------------------------------------------

    def perform(self, command: Command) -> None:
        self._book.loop.call_soon_threadsafe(self._take, command)

    def observe(self) -> None:
        vouched = None if self._issued is None else self._issued()
        self._book.loop.call_soon_threadsafe(self._take_inventory, vouched)

    def recast(self, cluster: Cluster) -> None:
        """The engine knows these nodes from now on; indices that it knew before mean the same."""
        self._book.loop.call_soon_threadsafe(self._watch.list_nodes, cluster)

    # -- life ----------------------------------------------------------------------------------------

    def start(self, expected: Iterable[Launch] = ()) -> None:
        """Adopt every pod that is there. The watch has been synchronised.

        `expected` are attempts that have been answered for: what they hold, by their last command.
        """
        self._book.adopting = True
        for launch in expected:
            if launch.spec.payload.get("kind") != "Gang":
                self._orders.expect(launch)
        pods = list(self._watch.our_pods())
        for pod in sorted(pods, key=p.is_over):  # who lives first (see `Run.adopt`)
            self._sightings.pod_changed(pod, gone=False)
        self._book.adopting = False
        self._watch.listener = self._sightings
        self._watch.tell_all()
        for run in list(self.runs.values()):
            if run.started and run.empty_seats() and not (run.facts.launcher and run.facts.spec.elastic and run.alive):
                self._sightings.vanished(run)
                run.attempt.stop("its pods vanished while nobody watched")
            self._driver.advance(run)

    def halt(self) -> None:
        """This process does not lead any more: nothing is written from now on."""
        if self.gangs is not None:
            self.gangs.halt()
        self._book.halt()

    def is_making_pods(self) -> bool:
        return self._work.gate.busy

    # -- in the loop ---------------------------------------------------------------------------------

    def _take(self, command: Command) -> None:
        if self._book.halted:
            return
        self._book.seen_seq = max(self._book.seen_seq, command.seq)
        if self.gangs is not None and self.gangs.owns(command.job_id):
            self.gangs.take(command)
        else:
            self._orders.take(command)

    def _take_inventory(self, vouched: int | None) -> None:
        self._reports.inventory(vouched, () if self.gangs is None else self.gangs.observed())

"""A backend that starts nothing: the simulated one, moved by the real clock. Jobs advance at their declared speed.

For rehearsals (`trainmaster up --backend simulated`) and load tests. It forgets everything when the service ends;
the engine then finds its jobs gone and starts them again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from trainmaster.estimate.pairs import PairSlowdowns
from trainmaster.model import event as ev
from trainmaster.model.cluster import Cluster
from trainmaster.model.command import Command
from trainmaster.model.lease import LeaseRule
from trainmaster.model.units import MS_PER_S, NEVER_MS
from trainmaster.sim.backend import SimulatedBackend
from trainmaster.sim.truth import Truth, TruthOptions

REPORT_MS = 5_000
MAX_SLEEP_S = 60.0


class RealtimeSimulation:
    def __init__(
        self,
        cluster: Cluster,
        lease: LeaseRule,
        deliver: Callable[[ev.Event], None],
        now_ms: Callable[[], int],
        options: TruthOptions | None = None,
        pairs: PairSlowdowns | None = None,
    ) -> None:
        options = options or TruthOptions(report_ms=REPORT_MS, report_period_ms=REPORT_MS)
        self._world = SimulatedBackend(cluster, Truth(cluster, options, 0, pairs), lease)
        self._deliver = deliver
        self._now_ms = now_ms
        self._condition = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="rehearsal", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def perform(self, command: Command) -> None:
        with self._condition:
            self._catch_up()
            self._world.perform(command)
            self._condition.notify()

    def observe(self) -> None:
        with self._condition:
            self._catch_up()
            self._world.observe()
            self._condition.notify()

    def close(self, end_jobs: bool = False) -> None:  # noqa: ARG002 - nothing outlives it
        with self._condition:
            self._closed = True
            self._condition.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _catch_up(self) -> None:
        for event in self._world.advance(max(self._now_ms(), self._world.now_ms)):
            self._deliver(event)

    def _run(self) -> None:
        with self._condition:
            while not self._closed:
                self._catch_up()
                next_ms = self._world.next_ms
                due_s = MAX_SLEEP_S if next_ms >= NEVER_MS // 4 else (next_ms - self._now_ms()) / MS_PER_S
                if due_s > 0:
                    self._condition.wait(min(due_s + 0.001, MAX_SLEEP_S))

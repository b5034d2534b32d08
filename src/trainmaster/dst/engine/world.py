"""The fault simulation: the real engine and a real store in a simulated world that misbehaves by a seed.

`python -m trainmaster.dst.engine.world --seeds 1000 --processes 2` runs seeds and fails on any violation;
`--replay SEED` tells one of them event by event. See docs/testing.md.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from trainmaster.dst.engine.faults import CrashPoint, Faults, draw_rates
from trainmaster.dst.engine.faulty_world import FaultyWorld, Outcome
from trainmaster.dst.engine.invariants import Checker, Violation
from trainmaster.dst.engine.scenario import draw_scenario
from trainmaster.engine.engine import Engine
from trainmaster.engine.persistence import Recorder, restore
from trainmaster.engine.ports import Store
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.model import event as ev
from trainmaster.model.command import Command
from trainmaster.model.placement import Strategy
from trainmaster.sim.backend import SimulatedBackend
from trainmaster.sim.truth import Truth
from trainmaster.stores.memory import MemoryStore

OBSERVE_MS = 15_000


class World(FaultyWorld[ev.UserEvent]):
    """The engine and its store; users are events."""

    def __init__(self, seed: int, store: Store | None = None) -> None:
        rng = np.random.Generator(np.random.PCG64([seed, 20]))
        self.scenario = scenario = draw_scenario(rng, seed)
        self.store: Store = store or MemoryStore()
        truth = Truth(scenario.cluster, scenario.truth, seed)
        backend = SimulatedBackend(scenario.cluster, truth, scenario.settings.lease)
        faults = Faults(draw_rates(rng), rng, backend, scenario.settings.lease)
        checker = Checker(backend, scenario.specs, scenario.settings.placement == Strategy.COUNT)
        super().__init__(Outcome(seed, scenario.policy_name), backend, faults, checker)
        self.estimator = DeclaredSpeeds(scenario.truth.spread_penalty)
        for at_ms, event in scenario.actions:
            self.ask_at(at_ms, event)
        self.policy, self._policies_to_come = scenario.policy, list(scenario.later_policies)
        self.engine: Engine | None = Engine(scenario.cluster, self.policy, self.estimator, scenario.settings)
        self.recorder = Recorder.of_new(self.engine)
        self.next_observe_ms = OBSERVE_MS

    @property
    def up(self) -> bool:
        return self.engine is not None

    @property
    def live_engine(self) -> Engine | None:
        return self.engine

    @property
    def wake_ms(self) -> int:
        assert self.engine is not None
        return min(self.engine.next_wake_ms, self.next_observe_ms)

    @property
    def all_over(self) -> bool:
        return len(self.checker.ended) == len(self.scenario.specs)

    def start(self) -> None:
        scenario = self.scenario
        engine = restore(self.store.load(), scenario.cluster, self.policy, self.estimator, scenario.settings)
        self.story.add(self.now_ms, "restart", f"{len(engine.columns.job_index_of)} active jobs")
        self.engine = engine
        self.recorder = Recorder(engine)
        self._dispatch(engine.pending_commands())
        self.next_observe_ms = self.now_ms

    def step(self, reports: list[ev.Event], requests: list[ev.UserEvent]) -> None:
        assert self.engine is not None
        self._step(self.engine, [*reports, *requests])

    def after_turn(self) -> None:
        if self.engine is not None and self.now_ms >= self.next_observe_ms:
            self.next_observe_ms = self.now_ms + OBSERVE_MS
            self.world.observe()

    def resumptions(self) -> Iterable[tuple[int, ev.UserEvent]]:
        return [(spec.submit_ms, ev.JobResumed(spec.id)) for spec in self.scenario.specs]

    def final(self) -> None:
        assert self.engine is not None
        self.checker.check_final(self.engine)

    # -- one step of the service ---------------------------------------------------------------------

    def _step(self, engine: Engine, events: list[ev.Event]) -> None:
        """Take events, step, commit, dispatch; the process may die in between."""
        now_ms = self.now_ms
        crash = self.faults.crash_point()
        for event in events:
            self.story.add(now_ms, "event", event)
            if isinstance(event, ev.JobCancelled):
                self.checker.cancelled.add(event.job_id)
            elif isinstance(event, ev.JobRangeChanged):
                self.checker.ranges[event.job_id].append((event.workers_min, event.workers_max))
        changes = sum(isinstance(event, ev.PolicyChanged) for event in events)
        if changes:
            engine.policy = self._policies_to_come[changes - 1][1]
        refused = engine.plans_refused
        commands = engine.step(now_ms, *events)
        if engine.plans_refused > refused:
            raise Violation(engine.notes[-1])
        if crash == CrashPoint.BEFORE_COMMIT:
            self._crash(crash, events)
            return
        ended = engine.drain_ended()
        self.store.commit(self.recorder.changes(ended))
        self.policy, self._policies_to_come = engine.policy, self._policies_to_come[changes:]
        for event in events:
            if isinstance(event, ev.JobSubmitted):
                self.checker.accepted.add(event.spec.id)
        for end in ended:
            self.story.add(now_ms, "end", f"{end.spec.id} {end.phase.name.lower()}")
            self.checker.note_end(end, self.faults.blamed.get(end.spec.id, 0))
        if crash == CrashPoint.AFTER_COMMIT:
            commands = []
        elif crash == CrashPoint.MID_DISPATCH:
            commands = commands[: len(commands) // 2]
        self._dispatch(commands)
        if crash is not None:
            self._crash(crash, [])

    def _dispatch(self, commands: list[Command]) -> None:
        for command in commands:
            self.story.add(self.now_ms, "command", command)
            self.checker.check_command(command)
            self.world.perform(command)

    def _crash(self, point: CrashPoint, events: list[ev.Event]) -> None:
        self.engine = None
        self.died(point.value, [event for event in events if isinstance(event, ev.UserEvent)])

    def about(self) -> str:
        settings, scenario = self.scenario.settings, self.scenario
        placed = f"placement {settings.placement.name.lower()}, round {settings.round_ms} ms"
        drawn = f"faults: {self.faults.rates}\ntruth: {scenario.truth}"
        return f"cluster {scenario.cluster.nodes_text()}, {placed}\n{drawn}"


def run_world(seed: int) -> tuple[World, Outcome]:
    world = World(seed)
    return world, world.run()


def run_seed(seed: int) -> Outcome:
    return run_world(seed)[1]


if __name__ == "__main__":
    from trainmaster.dst.engine import world_cli

    world_cli.main("trainmaster.dst.engine.world", run_seed, run_world)

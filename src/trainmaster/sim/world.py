"""The fault simulation: the real engine and a real store in a simulated world that misbehaves by a seed.

`python -m trainmaster.sim.world --seeds 1000 --processes 2` runs seeds and fails on any violation;
`--replay SEED` tells one of them event by event. See docs/testing.md.
"""

from __future__ import annotations

import heapq
import traceback
from dataclasses import dataclass, field

import numpy as np

from trainmaster.engine.core import Engine
from trainmaster.engine.image import Recorder, restore
from trainmaster.engine.ports import Store
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.model import event as ev
from trainmaster.model.command import Command
from trainmaster.model.job import Phase
from trainmaster.model.placement import Strategy
from trainmaster.model.units import NEVER_MS
from trainmaster.sim.backend import SimulatedBackend
from trainmaster.sim.faults import CrashPoint, Faults, draw_rates
from trainmaster.sim.invariants import Checker, Violation
from trainmaster.sim.scenario import draw_scenario
from trainmaster.sim.story import Story
from trainmaster.sim.truth import Truth
from trainmaster.stores.memory import MemoryStore

OBSERVE_MS = 15_000
RETRY_MS = 1_000
RESUME_AFTER_MS = 30_000
"""So long after the faults users resume what they had paused."""
QUIET_MS = 60_000
"""Time for strays to go before the books are closed."""
PATIENCE_MS = 4 * 3_600_000
MAX_STEPS = 20_000


@dataclass
class Outcome:
    seed: int
    policy: str
    steps: int = 0
    restarts: int = 0
    end_ms: int = 0
    ends: dict[str, int] = field(default_factory=dict)
    violation: str = ""
    """Empty: all was well."""
    story: list[str] = field(default_factory=list)


class World:
    """One seed. `run` goes on until every job is over and the books are checked, or something is wrong."""

    def __init__(self, seed: int, store: Store | None = None) -> None:
        rng = np.random.Generator(np.random.PCG64([seed, 20]))
        self.scenario = scenario = draw_scenario(rng, seed)
        self.store: Store = store or MemoryStore()
        truth = Truth(scenario.cluster, scenario.truth, seed)
        self.backend = SimulatedBackend(scenario.cluster, truth, scenario.settings.lease)
        self.faults = Faults(draw_rates(rng), rng, self.backend, scenario.settings.lease)
        self.estimator = DeclaredSpeeds(scenario.truth.spread_penalty)
        self.checker = Checker(self.backend, scenario.specs, scenario.settings.placement == Strategy.COUNT)
        self.story = Story()
        self.outcome = Outcome(seed, scenario.policy_name)
        self.now_ms = 0
        self.users: list[tuple[int, int, ev.UserEvent]] = []
        for at_ms, event in scenario.actions:
            self._ask(at_ms, event)
        self.policy, self._policies_to_come = scenario.policy, list(scenario.later_policies)
        self.engine: Engine | None = Engine(scenario.cluster, self.policy, self.estimator, scenario.settings)
        self.recorder = Recorder.of_new(self.engine)
        self.restart_ms = NEVER_MS
        self.next_observe_ms = OBSERVE_MS
        self.faults_over = False
        self.quiet_until_ms = NEVER_MS

    def run(self) -> Outcome:
        try:
            while not self._done():
                self._advance()
            assert self.engine is not None
            self.checker.check_final(self.engine)
        except Violation as violation:
            self._tell(str(violation), violation.job_id)
        except Exception as error:  # a fault of the engine itself is a violation too
            where = traceback.format_exception(error)[-3:]
            self._tell(f"{type(error).__name__}: {error}\n{''.join(where)}", None)
        outcome = self.outcome
        outcome.end_ms = self.now_ms
        for end in self.checker.ended.values():
            name = end.phase.name.lower()
            outcome.ends[name] = outcome.ends.get(name, 0) + 1
        return outcome

    def _tell(self, what: str, job_id: str | None) -> None:
        self.outcome.violation = what
        self.outcome.story = self.story.lines(job_id, last=80)

    # -- time ----------------------------------------------------------------------------------------

    def _ask(self, at_ms: int, event: ev.UserEvent) -> None:
        heapq.heappush(self.users, (at_ms, self.outcome.steps * 1000 + len(self.users), event))

    def _done(self) -> bool:
        if self.outcome.steps > MAX_STEPS or self.now_ms > self.faults.rates.until_ms + PATIENCE_MS:
            raise Violation(*self._stalled())
        return self.now_ms >= self.quiet_until_ms

    def _stalled(self) -> tuple[str, str | None]:
        if self.engine is None:
            return "the engine is down for ever", None
        phases = self.engine.columns.ints["phase"]
        left = [(job_id, Phase(int(phases[slot])).name) for job_id, slot in self.engine.columns.slot_of.items()]
        shown = ", ".join(f"{job_id} is {phase}" for job_id, phase in sorted(left))
        return f"no end in sight: {shown or 'some jobs were never accepted'}", min(left)[0] if left else None

    def _next_ms(self) -> int:
        upcoming = min(self.backend.next_ms, self.faults.next_ms if not self.faults_over else NEVER_MS)
        if self.engine is None:
            upcoming = min(upcoming, self.restart_ms)
        else:
            upcoming = min(upcoming, self.engine.next_wake_ms, self.next_observe_ms)
            if self.users:
                upcoming = min(upcoming, self.users[0][0])
        return max(upcoming, self.now_ms)

    def _advance(self) -> None:
        now_ms = self.now_ms = self._next_ms()
        self.outcome.steps += 1
        reports = self.backend.advance(now_ms)
        for misfortune in self.faults.act(now_ms):
            self.story.add(now_ms, "FAULT", misfortune)
        if not self.faults_over and self.faults.over:
            self._end_faults()
        if self.engine is None:
            for report in reports:
                self.story.add(now_ms, "unheard", report)
            if now_ms >= self.restart_ms:
                self._restart()
        else:
            self._step(self.engine, [*reports, *self._users_due()])
        self.checker.check(self.engine)
        if self.faults_over and self.engine is not None:
            self.checker.check_patience(self.engine, now_ms)
        self._observe_if_due()
        everyone = len(self.checker.ended) == len(self.scenario.specs)
        if everyone and self.faults_over and not self.users and self.quiet_until_ms == NEVER_MS:
            self.quiet_until_ms = now_ms + QUIET_MS

    def _observe_if_due(self) -> None:
        if self.engine is not None and self.now_ms >= self.next_observe_ms:
            self.next_observe_ms = self.now_ms + OBSERVE_MS
            self.backend.observe()

    def _end_faults(self) -> None:
        self.story.add(self.now_ms, "FAULT", "the faults are over")
        self.faults.end()
        self.faults_over = True
        for spec in self.scenario.specs:
            self._ask(max(self.now_ms, spec.submit_ms) + RESUME_AFTER_MS, ev.JobResumed(spec.id))

    # -- one step of the service ---------------------------------------------------------------------

    def _users_due(self) -> list[ev.UserEvent]:
        due = []
        while self.users and self.users[0][0] <= self.now_ms:
            due.append(heapq.heappop(self.users)[2])
        return due

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
            self.backend.perform(command)

    def _crash(self, point: CrashPoint, events: list[ev.Event]) -> None:
        """The process is gone and with it what it had not committed. Users who got no answer ask again."""
        self.story.add(self.now_ms, "CRASH", point.value)
        self.engine = None
        self.outcome.restarts += 1
        self.restart_ms = self.now_ms + self.faults.down_ms()
        for event in events:
            if isinstance(event, ev.UserEvent):
                self._ask(self.restart_ms + RETRY_MS, event)

    def _restart(self) -> None:
        scenario = self.scenario
        engine = restore(self.store.load(), scenario.cluster, self.policy, self.estimator, scenario.settings)
        self.story.add(self.now_ms, "restart", f"{len(engine.columns.slot_of)} active jobs")
        self.engine = engine
        self.recorder = Recorder(engine)
        self.restart_ms = NEVER_MS
        self._dispatch(engine.pending_commands())
        self.next_observe_ms = self.now_ms


def run_seed(seed: int) -> Outcome:
    return World(seed).run()


if __name__ == "__main__":
    from trainmaster.sim.world_cli import main

    main()

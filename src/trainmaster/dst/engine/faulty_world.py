"""What every fault simulation shares: time, misfortunes, users who ask again, and when to close the books.

A world says what its service is and how it starts, steps and dies; here is the life around it. Faults come first; then
they stop, users resume what they had paused, and everything must come to its end within the time of a patient user.
"""

from __future__ import annotations

import heapq
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from trainmaster.dst.engine.faults import Faults
from trainmaster.dst.engine.invariants import Checker, Violation
from trainmaster.dst.engine.story import Story
from trainmaster.engine.engine import Engine
from trainmaster.model import event as ev
from trainmaster.model.job import Phase
from trainmaster.model.units import NEVER_MS
from trainmaster.sim.backend import SimulatedBackend

RETRY_MS = 1_000
RESUME_AFTER_MS = 30_000
"""So long after the faults users resume what they had paused."""
QUIET_MS = 60_000
"""Time for strays to go before the books are closed."""
PATIENCE_MS = 4 * 3_600_000
MAX_STEPS = 20_000
UserRequest = TypeVar("UserRequest")


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


class FaultyWorld(ABC, Generic[UserRequest]):
    """One seed. `run` goes on until every job is over and the books are checked, or something is wrong."""

    def __init__(self, outcome: Outcome, backend: SimulatedBackend, faults: Faults, checker: Checker) -> None:
        self.outcome = outcome
        self.world = backend
        self.faults = faults
        self.checker = checker
        self.story = Story()
        self.now_ms = 0
        self.users: list[tuple[int, int, UserRequest]] = []
        self._asked = 0
        self.faults_over = False
        self.quiet_until_ms = NEVER_MS
        self.restart_ms = NEVER_MS

    # -- what a world is -----------------------------------------------------------------------------

    @property
    @abstractmethod
    def up(self) -> bool:
        """Whether the service's process lives."""

    @property
    @abstractmethod
    def live_engine(self) -> Engine | None:
        """The engine, if the service has one."""

    @property
    @abstractmethod
    def wake_ms(self) -> int:
        """When the service, which is up, wants to act by itself."""

    @property
    @abstractmethod
    def all_over(self) -> bool:
        """Whether every job that was asked for has come to its end."""

    @abstractmethod
    def start(self) -> None:
        """A new process: everything is read from the store."""

    @abstractmethod
    def step(self, reports: list[ev.Event], requests: list[UserRequest]) -> None:
        """One turn of the service, which is up; it may die in it."""

    @abstractmethod
    def resumptions(self) -> Iterable[tuple[int, UserRequest]]:
        """What users ask for when the faults are over, and not before when."""

    @abstractmethod
    def final(self) -> None:
        """Check the books once everything is quiet."""

    def after_turn(self) -> None:
        """What a world does when the service has had its turn and nothing is wrong."""

    def close(self) -> None:
        """Leave nothing behind."""

    # -- life ----------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        try:
            if not self.up:
                self.start()
            while not self._done():
                self._advance()
            self.final()
        except Violation as violation:
            self._tell(str(violation), violation.job_id)
        except Exception as error:  # a fault of the product itself is a violation too
            where = traceback.format_exception(error)[-4:]
            self._tell(f"{type(error).__name__}: {error}\n{''.join(where)}", None)
        finally:
            self.close()
        outcome = self.outcome
        outcome.end_ms = self.now_ms
        for end in self.checker.ended.values():
            name = end.phase.name.lower()
            outcome.ends[name] = outcome.ends.get(name, 0) + 1
        return outcome

    def ask_at(self, at_ms: int, request: UserRequest) -> None:
        self._asked += 1
        heapq.heappush(self.users, (at_ms, self._asked, request))

    def died(self, point: str, unanswered: Iterable[UserRequest]) -> None:
        """The process is gone and with it what it had not committed. Users who got no answer ask again."""
        self.story.add(self.now_ms, "CRASH", point)
        self.outcome.restarts += 1
        self.restart_ms = self.now_ms + self.faults.down_ms()
        for request in unanswered:
            self.ask_at(self.restart_ms + RETRY_MS, request)

    def _tell(self, what: str, job_id: str | None) -> None:
        self.outcome.violation = what
        self.outcome.story = self.story.lines(job_id, last=80)

    def _done(self) -> bool:
        if self.outcome.steps > MAX_STEPS or self.now_ms > self.faults.rates.until_ms + PATIENCE_MS:
            raise Violation(*self._stalled())
        return self.now_ms >= self.quiet_until_ms

    def _stalled(self) -> tuple[str, str | None]:
        engine = self.live_engine
        if engine is None:
            return "the service is down for ever", None
        phases = engine.columns.ints["phase"]
        left = [
            (job_id, Phase(int(phases[job_index])).name) for job_id, job_index in engine.columns.job_index_of.items()
        ]
        shown = ", ".join(f"{job_id} is {phase}" for job_id, phase in sorted(left))
        return f"no end in sight: {shown or 'some requests were never granted'}", min(left)[0] if left else None

    def _next_ms(self) -> int:
        upcoming = min(self.world.next_ms, self.faults.next_ms if not self.faults_over else NEVER_MS)
        if not self.up:
            upcoming = min(upcoming, self.restart_ms)
        else:
            upcoming = min(upcoming, self.wake_ms)
            if self.users:
                upcoming = min(upcoming, self.users[0][0])
        return max(upcoming, self.now_ms)

    def _advance(self) -> None:
        now_ms = self.now_ms = self._next_ms()
        self.outcome.steps += 1
        reports = self.world.advance(now_ms)
        for misfortune in self.faults.act(now_ms):
            self.story.add(now_ms, "FAULT", misfortune)
        if not self.faults_over and self.faults.over:
            self._end_faults()
        if self.up:
            self.step(reports, self._due())
        else:
            for report in reports:
                self.story.add(now_ms, "unheard", report)
            if now_ms >= self.restart_ms:
                self.restart_ms = NEVER_MS
                self.start()
        engine = self.live_engine
        self.checker.check(engine)
        if self.faults_over and engine is not None:
            self.checker.check_patience(engine, now_ms)
        self.after_turn()
        if self.faults_over and self.all_over and not self.users and self.quiet_until_ms == NEVER_MS:
            self.quiet_until_ms = now_ms + QUIET_MS

    def _due(self) -> list[UserRequest]:
        due = []
        while self.users and self.users[0][0] <= self.now_ms:
            due.append(heapq.heappop(self.users)[2])
        return due

    def _end_faults(self) -> None:
        self.story.add(self.now_ms, "FAULT", "the faults are over")
        self.faults.end()
        self.faults_over = True
        for not_before_ms, request in self.resumptions():
            self.ask_at(max(self.now_ms, not_before_ms) + RESUME_AFTER_MS, request)

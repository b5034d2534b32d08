"""The fault simulation of the whole control plane: routes, control plane, engine and SQLite store in a bad world.

As `trainmaster.sim.world`, but users speak HTTP to the real application, everything is kept in a real database, and
the store has faults of its own. `python -m trainmaster.service.world --seeds 1000 --processes 2` runs seeds and fails
on any violation; `--replay SEED` tells one of them event by event. See docs/testing.md.
"""

from __future__ import annotations

import heapq
import shutil
import tempfile
import traceback
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from trainmaster.engine.core import Engine
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.model import event as ev
from trainmaster.model.job import Phase
from trainmaster.model.placement import Strategy
from trainmaster.model.policy import Policy
from trainmaster.model.units import NEVER_MS
from trainmaster.policies.registry import create
from trainmaster.service.app import build_app
from trainmaster.service.auth import OPERATOR, Principal, Tokens
from trainmaster.service.control import ControlPlane, Request, Retention
from trainmaster.service.inline_asgi import Call, PausingGateway, Reply, exchange
from trainmaster.service.limits import BodyLimit
from trainmaster.service.logs import LogFolder
from trainmaster.service.routes.context import Context
from trainmaster.service.scenario import Action, draw_service_scenario
from trainmaster.service.unsteady import Crash, UnsteadyBackend, UnsteadyStore
from trainmaster.service.witness import Witness
from trainmaster.sim.backend import SimulatedBackend
from trainmaster.sim.faults import CrashPoint, Faults, draw_rates
from trainmaster.sim.invariants import Violation
from trainmaster.sim.restless import Restless
from trainmaster.sim.story import Story
from trainmaster.sim.truth import Truth
from trainmaster.sim.world import (
    MAX_STEPS,
    PATIENCE_MS,
    QUIET_MS,
    RESUME_AFTER_MS,
    RETRY_MS,
    Outcome,
)
from trainmaster.stores.sqlite import SqliteStore

EPOCH_MS = 1_700_000_000_000
TOKEN = "simulated-operator"
PATIENT_TRIES = 400


class _Clock:
    """The world's time."""

    def __init__(self) -> None:
        self.ms = 0

    def wall_ms(self) -> int:
        return EPOCH_MS + self.ms

    def elapsed_ms(self) -> int:
        return self.ms


@cache
def _application() -> BodyLimit:
    """One for all seeds of a process: it keeps nothing but the way to ask."""
    tokens = Tokens([(TOKEN, Principal("user", OPERATOR))])
    return build_app(Context(PausingGateway(), tokens, LogFolder(Path("nowhere")), "simulated", started_s=0.0))


@cache
def _empty_database() -> bytes:
    """A new database with its tables, so that not every seed has to migrate one."""
    with tempfile.TemporaryDirectory(prefix="trainmaster-world-") as folder:
        path = Path(folder) / "empty.db"
        SqliteStore(path, durable=False).close()
        return path.read_bytes()


class ServiceWorld:
    """One seed. `run` goes on until every job is over and the books are checked, or something is wrong."""

    def __init__(self, seed: int, folder: Path) -> None:
        rng = np.random.Generator(np.random.PCG64([seed, 21]))
        self.scenario = scenario = draw_service_scenario(rng, seed)
        self.clock = _Clock()
        truth = Truth(scenario.cluster, scenario.truth, seed)
        self.world = SimulatedBackend(scenario.cluster, truth, scenario.settings.lease)
        self.faults = Faults(draw_rates(rng), rng, self.world, scenario.settings.lease)
        self.witness = Witness(self.world, self.faults, scenario.settings.placement == Strategy.COUNT)
        self.story = Story()
        self.outcome = Outcome(seed, scenario.policy)
        self.path = folder / f"seed-{seed}.db"
        self.store_fails = 0.02 * float(rng.random()) * (rng.random() < 0.6)
        self.rng = rng
        self.users: list[tuple[int, int, Action]] = []
        self._asked = 0
        for at_ms, action in scenario.actions:
            self._ask_at(at_ms, action)
        self.faults_over = False
        self.quiet_until_ms = NEVER_MS
        self.restart_ms = 0
        self.plane: ControlPlane | None = None
        self.app = _application()
        self.path.write_bytes(_empty_database())

    # -- life ----------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        try:
            self._start()
            while not self._done():
                self._advance()
            self._final()
        except Violation as violation:
            self._tell(str(violation), violation.job_id)
        except Exception as error:  # a fault of the service itself is a violation too
            where = traceback.format_exception(error)[-4:]
            self._tell(f"{type(error).__name__}: {error}\n{''.join(where)}", None)
        finally:
            if self.plane is not None:
                self.plane.store.close()
            for name in (self.path.name, f"{self.path.name}-wal", f"{self.path.name}-shm"):
                (self.path.parent / name).unlink(missing_ok=True)
        outcome = self.outcome
        outcome.end_ms = self.clock.ms
        for end in self.witness.ended.values():
            name = end.phase.name.lower()
            outcome.ends[name] = outcome.ends.get(name, 0) + 1
        return outcome

    def _tell(self, what: str, job_id: str | None) -> None:
        self.outcome.violation = what
        self.outcome.story = self.story.lines(job_id, last=80)

    def _policy(self, name: str) -> Policy:
        return Restless() if name == "restless" else create(name)

    def _start(self) -> None:
        """A new process: everything is read from the database."""
        scenario = self.scenario
        self.store = UnsteadyStore(SqliteStore(self.path, durable=False), self.witness)
        self.backend = UnsteadyBackend(self.world, self.witness, self.story, self.clock)
        plane = ControlPlane(
            scenario.cluster, self.store, self.backend, self.clock, DeclaredSpeeds(scenario.truth.spread_penalty),
            scenario.settings, scenario.policy, retention=Retention(days=1e6), policies=self._policy,
        )  # fmt: skip
        plane.prepare_nodes()
        plane.open()
        self.plane = plane
        self.restart_ms = NEVER_MS
        self.story.add(self.clock.ms, "start", f"{len(plane.live.columns.slot_of)} active jobs")

    # -- time ----------------------------------------------------------------------------------------

    def _ask_at(self, at_ms: int, action: Action) -> None:
        self._asked += 1
        heapq.heappush(self.users, (at_ms, self._asked, action))

    def _done(self) -> bool:
        if self.outcome.steps > MAX_STEPS or self.clock.ms > self.faults.rates.until_ms + PATIENCE_MS:
            raise Violation(*self._stalled())
        return self.clock.ms >= self.quiet_until_ms

    def _stalled(self) -> tuple[str, str | None]:
        if self.plane is None or self.plane.engine is None:
            return "the service is down for ever", None
        columns = self.plane.engine.columns
        left = [(job_id, Phase(int(columns.ints["phase"][slot])).name) for job_id, slot in columns.slot_of.items()]
        shown = ", ".join(f"{job_id} is {phase}" for job_id, phase in sorted(left))
        return f"no end in sight: {shown or 'some requests were never granted'}", min(left)[0] if left else None

    def _next_ms(self) -> int:
        upcoming = min(self.world.next_ms, self.faults.next_ms if not self.faults_over else NEVER_MS)
        if self.plane is None:
            upcoming = min(upcoming, self.restart_ms)
        else:
            upcoming = min(upcoming, self.plane.next_wake_ms)
            if self.users:
                upcoming = min(upcoming, self.users[0][0])
        return max(upcoming, self.clock.ms)

    def _advance(self) -> None:
        now_ms = self.clock.ms = self._next_ms()
        self.outcome.steps += 1
        reports = self.world.advance(now_ms)
        for misfortune in self.faults.act(now_ms):
            self.story.add(now_ms, "FAULT", misfortune)
        if not self.faults_over and self.faults.over:
            self._end_faults()
        if self.plane is None:
            for report in reports:
                self.story.add(now_ms, "unheard", report)
            if now_ms >= self.restart_ms:
                self._start()
        else:
            self._step(self.plane, reports)
        engine = None if self.plane is None else self.plane.engine
        self.witness.check(engine)
        if self.faults_over and engine is not None:
            self.witness.check_patience(engine, now_ms)
            if self.witness.all_over and not self.users and self.quiet_until_ms == NEVER_MS:
                self.quiet_until_ms = now_ms + QUIET_MS

    def _end_faults(self) -> None:
        self.story.add(self.clock.ms, "FAULT", "the faults are over")
        self.faults.end()
        self.faults_over = True
        last_ms = max(at_ms for at_ms, _ in self.scenario.actions)
        for name in self.scenario.names:
            self._ask_at(max(self.clock.ms, last_ms) + RESUME_AFTER_MS, Action("resume", name))

    # -- one batch -----------------------------------------------------------------------------------

    def _step(self, plane: ControlPlane, reports: list[ev.Event]) -> None:
        """Reports and the requests that are due, in one batch; the process may die in it."""
        now_ms = self.clock.ms
        due: list[Action] = []
        while self.users and self.users[0][0] <= now_ms:
            due.append(heapq.heappop(self.users)[2])
        crash = self.faults.crash_point()
        fails = not self.faults_over and self.rng.random() < self.store_fails
        self.store.crash = crash
        self.store.fault = None if not fails else ("after" if self.rng.random() < 0.3 else "before")
        self.backend.dies_after = int(self.rng.integers(0, 3)) if crash == CrashPoint.MID_DISPATCH else None
        for report in reports:
            self.story.add(now_ms, "event", report)
        calls = [self._call(action) for action in due]
        engine = plane.engine
        refused = 0 if engine is None else engine.plans_refused
        first = list(reports)

        def batch(requests: list[Request[Any]]) -> list[Any]:
            events, first[:] = list(first), []
            return plane.batch(requests, events)

        try:
            replies = exchange(self.app, TOKEN, calls, batch)
        except Crash as point:
            self._crash(str(point), due)
            return
        if engine is not None and plane.engine is engine and engine.plans_refused > refused:
            raise Violation("a plan was refused: " + "; ".join(self.witness.notes[-3:]))
        if plane.tally.policy_faults:
            raise Violation("the policy failed: " + "; ".join(self.witness.notes[-3:]))
        for action, reply in zip(due, replies, strict=True):
            self._heard(action, reply)

    def _call(self, action: Action) -> Call:
        self.witness.asked(action)
        call = action.call()
        self.story.add(self.clock.ms, "request", f"{call.method} {call.path} {call.body or ''}")
        return call

    def _heard(self, action: Action, reply: Reply) -> None:
        """503 and unknown names: ask again later. Anything else that is no success is a violation."""
        status = reply.status
        self.story.add(self.clock.ms, "reply", f"{status} {reply.body[:200].decode()}")
        if 200 <= status < 300:
            self.witness.granted(action, reply)
            return
        over = status in (404, 409) and action.kind != "submit"
        waits = status == 503 or (status == 404 and action.kind == "submit")
        if waits and action.tries < PATIENT_TRIES:
            self._ask_at(self.clock.ms + RETRY_MS * (1 if status == 503 else 10), action.again())
        elif not over:
            raise Violation(f"{action.kind} {action.name}: {status} {reply.body[:300].decode()}")

    def _crash(self, point: str, due: list[Action]) -> None:
        """The process is gone and with it what it had not committed. Users who got no answer ask again."""
        assert self.plane is not None
        self.story.add(self.clock.ms, "CRASH", point)
        self.plane.store.close()
        self.plane = None
        self.outcome.restarts += 1
        self.restart_ms = self.clock.ms + self.faults.down_ms()
        for action in due:
            self._ask_at(self.restart_ms + RETRY_MS, action.again())

    # -- the end -------------------------------------------------------------------------------------

    def _final(self) -> None:
        assert self.plane is not None
        engine: Engine = self.plane.live
        self.witness.check_final(engine)
        self.witness.check_history(self._read)

    def _read(self, path: str, query: str) -> Any:
        assert self.plane is not None
        plane = self.plane
        self.store.crash = self.store.fault = self.backend.dies_after = None
        reply = exchange(self.app, TOKEN, [Call("GET", path, query=query)], plane.batch)[0]
        if reply.status != 200:
            raise Violation(f"GET {path}?{query}: {reply.status} {reply.body[:300].decode()}")
        return reply.json()


def run_seed(seed: int) -> Outcome:
    folder = Path(tempfile.mkdtemp(prefix="trainmaster-world-"))
    try:
        return ServiceWorld(seed, folder).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    from trainmaster.service.world_cli import main

    main()

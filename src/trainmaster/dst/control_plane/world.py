"""The fault simulation of the whole control plane: routes, control plane, engine and SQLite store in a bad world.

As `trainmaster.dst.engine.world`, but users speak HTTP to the real application, everything is kept in a real database,
and the store has faults of its own. `python -m trainmaster.dst.control_plane.world --seeds 1000 --processes 2` runs
seeds and fails on any violation; `--replay SEED` tells one of them event by event. See docs/testing.md.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from trainmaster.dst.control_plane.faulty_adapters import Crash, FaultyBackend, FaultyStore
from trainmaster.dst.control_plane.inline_asgi import Call, PausingGateway, Reply, exchange
from trainmaster.dst.control_plane.invariants import ServiceChecker
from trainmaster.dst.control_plane.scenario import Action, draw_service_scenario
from trainmaster.dst.engine.chaos_policy import ChaosPolicy
from trainmaster.dst.engine.faults import CrashPoint, Faults, draw_rates
from trainmaster.dst.engine.faulty_world import RETRY_MS, FaultyWorld, Outcome
from trainmaster.dst.engine.invariants import Violation
from trainmaster.engine import queries
from trainmaster.engine.engine import Engine
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.model import event as ev
from trainmaster.model.placement import Strategy
from trainmaster.model.policy import Policy
from trainmaster.policies.registry import create
from trainmaster.service.api.app import build_app
from trainmaster.service.api.job_api import LocalJobApi
from trainmaster.service.api.limits import BodyLimit
from trainmaster.service.api.routes.context import Context
from trainmaster.service.control.control_plane import ControlPlane, Request, Retention
from trainmaster.service.local.logs import LogFolder
from trainmaster.service.local.tokens import OPERATOR, Principal, Tokens
from trainmaster.sim.backend import SimulatedBackend
from trainmaster.sim.truth import Truth
from trainmaster.stores.sqlite import SqliteStore

EPOCH_MS = 1_700_000_000_000
TOKEN = "simulated-operator"
PATIENT_TRIES = 400


class _Clock:
    """The world's time."""

    def __init__(self, world: ServiceWorld) -> None:
        self._world = world

    @property
    def ms(self) -> int:
        return self._world.now_ms

    def wall_ms(self) -> int:
        return EPOCH_MS + self.ms

    def elapsed_ms(self) -> int:
        return self.ms


@cache
def _application() -> BodyLimit:
    """One for all seeds of a process: it keeps nothing but the way to ask."""
    tokens = Tokens([(TOKEN, Principal("user", OPERATOR))])
    gateway = PausingGateway()
    jobs = LocalJobApi(gateway, tokens, LogFolder(Path("nowhere")))
    return build_app(Context(gateway, jobs, "simulated", started_s=0.0))


@cache
def _empty_database() -> bytes:
    """A new database with its tables, so that not every seed has to migrate one."""
    with tempfile.TemporaryDirectory(prefix="trainmaster-world-") as folder:
        path = Path(folder) / "empty.db"
        SqliteStore(path, durable=False).close()
        return path.read_bytes()


class ServiceWorld(FaultyWorld[Action]):
    """The whole control plane on a database; users send requests."""

    def __init__(self, seed: int, folder: Path) -> None:
        rng = np.random.Generator(np.random.PCG64([seed, 21]))
        self.scenario = scenario = draw_service_scenario(rng, seed)
        self.clock = _Clock(self)
        truth = Truth(scenario.cluster, scenario.truth, seed)
        world = SimulatedBackend(scenario.cluster, truth, scenario.settings.lease)
        faults = Faults(draw_rates(rng), rng, world, scenario.settings.lease)
        self.service_checker = ServiceChecker(world, faults, scenario.settings.placement == Strategy.COUNT)
        super().__init__(Outcome(seed, scenario.policy), world, faults, self.service_checker)
        self.path = folder / f"seed-{seed}.db"
        self.store_fails = 0.02 * float(rng.random()) * (rng.random() < 0.6)
        self.rng = rng
        for at_ms, action in scenario.actions:
            self.ask_at(at_ms, action)
        self.plane: ControlPlane | None = None
        self.app = _application()
        self.path.write_bytes(_empty_database())

    @property
    def up(self) -> bool:
        return self.plane is not None

    @property
    def live_engine(self) -> Engine | None:
        return None if self.plane is None else self.plane.engine

    @property
    def wake_ms(self) -> int:
        assert self.plane is not None
        return self.plane.next_wake_ms

    @property
    def all_over(self) -> bool:
        return self.live_engine is not None and self.service_checker.all_over

    def close(self) -> None:
        if self.plane is not None:
            self.plane.store.close()
        for name in (self.path.name, f"{self.path.name}-wal", f"{self.path.name}-shm"):
            (self.path.parent / name).unlink(missing_ok=True)

    def _policy(self, name: str) -> Policy:
        return ChaosPolicy() if name == "chaos" else create(name)

    def start(self) -> None:
        scenario = self.scenario
        self.store = FaultyStore(self.path, self.service_checker)
        self.backend = FaultyBackend(self.world, self.service_checker, self.story, self.clock)
        plane = ControlPlane(
            scenario.cluster,
            self.store,
            self.backend,
            self.clock,
            DeclaredSpeeds(scenario.truth.spread_penalty),
            scenario.settings,
            scenario.policy,
            retention=Retention(days=1e6),
            policies=self._policy,
        )
        plane.prepare_nodes()
        plane.open()
        self.plane = plane
        self.story.add(self.now_ms, "start", f"{queries.n_active(plane.live)} active jobs")

    def resumptions(self) -> Iterable[tuple[int, Action]]:
        last_ms = max(at_ms for at_ms, _ in self.scenario.actions)
        return [(last_ms, Action("resume", name)) for name in self.scenario.names]

    # -- one batch -----------------------------------------------------------------------------------

    def step(self, reports: list[ev.Event], requests: list[Action]) -> None:
        """Reports and requests in one batch."""
        plane = self.plane
        assert plane is not None
        crash = self.faults.crash_point()
        fails = not self.faults_over and self.rng.random() < self.store_fails
        self.store.crash = crash
        self.store.fault = None if not fails else ("after" if self.rng.random() < 0.3 else "before")
        self.backend.dies_after = int(self.rng.integers(0, 3)) if crash == CrashPoint.MID_DISPATCH else None
        for report in reports:
            self.story.add(self.now_ms, "event", report)
        calls = [self._call(action) for action in requests]
        engine = plane.engine
        refused = 0 if engine is None else engine.plans_refused
        first = list(reports)

        def batch(requests: list[Request[Any]]) -> list[Any]:
            events, first[:] = list(first), []
            return plane.batch(requests, events)

        try:
            replies = exchange(self.app, TOKEN, calls, batch)
        except Crash as point:
            plane.store.close()
            self.plane = None
            self.died(str(point), [action.again() for action in requests])
            return
        if engine is not None and plane.engine is engine and engine.plans_refused > refused:
            raise Violation("a plan was refused: " + "; ".join(self.service_checker.notes[-3:]))
        if plane.tally.policy_faults:
            raise Violation("the policy failed: " + "; ".join(self.service_checker.notes[-3:]))
        for action, reply in zip(requests, replies, strict=True):
            self._heard(action, reply)

    def _call(self, action: Action) -> Call:
        self.service_checker.asked(action)
        call = action.call()
        self.story.add(self.now_ms, "request", f"{call.method} {call.path} {call.body or ''}")
        return call

    def _heard(self, action: Action, reply: Reply) -> None:
        """503 and unknown names: ask again later. Anything else that is no success is a violation."""
        status = reply.status
        self.story.add(self.now_ms, "reply", f"{status} {reply.body[:200].decode()}")
        if 200 <= status < 300:
            self.service_checker.granted(action, reply)
            return
        over = status in (404, 409) and action.kind != "submit"
        waits = status == 503 or (status == 404 and action.kind == "submit")
        if waits and action.tries < PATIENT_TRIES:
            self.ask_at(self.now_ms + RETRY_MS * (1 if status == 503 else 10), action.again())
        elif not over:
            raise Violation(f"{action.kind} {action.name}: {status} {reply.body[:300].decode()}")

    # -- the end -------------------------------------------------------------------------------------

    def final(self) -> None:
        assert self.plane is not None
        engine: Engine = self.plane.live
        self.service_checker.check_final(engine)
        self.service_checker.check_history(self._read)

    def _read(self, path: str, query: str) -> Any:
        assert self.plane is not None
        plane = self.plane
        self.store.crash = self.store.fault = self.backend.dies_after = None
        reply = exchange(self.app, TOKEN, [Call("GET", path, query=query)], plane.batch)[0]
        if reply.status != 200:
            raise Violation(f"GET {path}?{query}: {reply.status} {reply.body[:300].decode()}")
        return reply.json()

    def about(self) -> str:
        fails = f"a commit fails with probability {self.store_fails:.4f}"
        return f"cluster {self.scenario.cluster.nodes_text()}\nfaults: {self.faults.rates}; {fails}"


def run_world(seed: int) -> tuple[ServiceWorld, Outcome]:
    folder = Path(tempfile.mkdtemp(prefix="trainmaster-world-"))
    try:
        world = ServiceWorld(seed, folder)
        return world, world.run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_seed(seed: int) -> Outcome:
    return run_world(seed)[1]


if __name__ == "__main__":
    from trainmaster.dst.engine import world_cli

    world_cli.main("trainmaster.dst.control_plane.world", run_seed, run_world)

"""A control plane in one process for tests: a hand-moved clock, a simulated backend, the real routes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainmaster.dst.control_plane.inline_asgi import Call, PausingGateway, Reply, exchange
from trainmaster.engine.ports import Archive
from trainmaster.engine.records import Settings
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.estimate.speeds.learned import LearningEstimator
from trainmaster.forecast.forecast import Outlook
from trainmaster.forecast.process import Unforeseen
from trainmaster.forecast.worker import answer, outlook_from_json
from trainmaster.model.cluster import Cluster, parse_cluster
from trainmaster.model.command import Command
from trainmaster.service.api.app import build_app
from trainmaster.service.api.job_api import LocalJobApi
from trainmaster.service.api.routes.context import Context
from trainmaster.service.control.control_plane import ControlPlane
from trainmaster.service.local.logs import LogFolder
from trainmaster.service.local.tokens import OPERATOR, USER, Principal, Tokens
from trainmaster.sim.backend import SimulatedBackend
from trainmaster.sim.truth import Truth, TruthOptions
from trainmaster.stores.memory import MemoryStore

OPERATOR_TOKEN, ANN_TOKEN, BOB_TOKEN = "operator-token-0000", "ann-token-00000000", "bob-token-00000000"
EPOCH_MS = 1_700_000_000_000


class HandClock:
    def __init__(self) -> None:
        self.ms = 0

    def wall_ms(self) -> int:
        return EPOCH_MS + self.ms

    def elapsed_ms(self) -> int:
        return self.ms


class Bench:
    """`call` speaks HTTP; `pass_s` lets time pass and delivers reports as they come."""

    def __init__(
        self,
        home: Path,
        store: Archive | None = None,
        nodes: str | Cluster = "v100=4x4",
        policy: str = "fifo",
        clock: HandClock | None = None,
        reset: bool = False,
        prices: Mapping[str, float] | None = None,
        **settings: Any,
    ) -> None:
        """`reset`: take other nodes than the store was written for."""
        self.clock = clock or HandClock()
        self.cluster = nodes if isinstance(nodes, Cluster) else parse_cluster(nodes, prices)
        self.settings = Settings(**settings)
        self.world = SimulatedBackend(self.cluster, Truth(self.cluster, TruthOptions(), 0), self.settings.lease)
        self.performed: list[Command] = []
        self.store: Archive = store or MemoryStore()
        tokens = Tokens(
            [
                (OPERATOR_TOKEN, Principal("owner", OPERATOR)),
                (ANN_TOKEN, Principal("ann", USER)),
                (BOB_TOKEN, Principal("bob", USER)),
            ]
        )
        self.home = home
        gateway = PausingGateway()
        context = Context(
            gateway, LocalJobApi(gateway, tokens, LogFolder(home)), "simulated", self.foretell, started_s=0.0
        )
        self.app = build_app(context)
        self.policy = policy
        self.start(reset)

    def start(self, reset: bool = False, **options: Any) -> None:
        """A new process on the same store."""
        self.plane = ControlPlane(
            self.cluster,
            self.store,
            self,
            self.clock,
            LearningEstimator(DeclaredSpeeds()),
            self.settings,
            self.policy,
            **options,
        )
        self.plane.prepare_nodes(reset)
        self.plane.open()

    async def foretell(self, question: Mapping[str, Any]) -> dict[str, Outlook]:
        """At once and in this process, as the process that looks ahead would."""
        reply = answer(json.dumps(question))
        if "error" in reply:
            raise Unforeseen(reply["error"])
        return {key: outlook_from_json(value) for key, value in reply["outlooks"].items()}

    def perform(self, command: Command) -> None:
        self.performed.append(command)
        self.world.perform(command)

    def observe(self) -> None:
        self.world.observe()

    def call(self, method: str, path: str, body: Any = None, *, query: str = "", token: str = OPERATOR_TOKEN) -> Reply:
        return self.calls([Call(method, f"/api/v1{path}", body, query)], token)[0]

    def calls(self, calls: Sequence[Call], token: str = OPERATOR_TOKEN) -> list[Reply]:
        return exchange(self.app, token, calls, lambda requests: self.plane.batch(requests))

    def openapi(self) -> Any:
        """The application's own description of its routes."""
        return exchange(self.app, "", [Call("GET", "/openapi.json")], lambda requests: self.plane.batch(requests))[
            0
        ].json()

    def get(self, path: str, **options: Any) -> Any:
        reply = self.call("GET", path, **options)
        assert reply.status == 200, reply.body
        return reply.json()

    def submit(self, token: str = OPERATOR_TOKEN, **fields: Any) -> str:
        reply = self.call("POST", "/jobs", {"command": ["train"], "steps": 100, **fields}, token=token)
        assert reply.status == 201, reply.body
        return reply.json()["id"]

    def state(self, job: str) -> str:
        return self.get(f"/jobs/{job}")["state"]

    def pass_s(self, seconds: float) -> None:
        until_ms = self.clock.ms + round(seconds * 1000)
        while True:
            next_ms = max(min(self.world.next_ms, self.plane.next_wake_ms), self.clock.ms)
            if next_ms > until_ms:
                break
            self.clock.ms = next_ms
            self.plane.batch([], self.world.advance(next_ms))
        self.clock.ms = until_ms
        self.plane.batch([], self.world.advance(until_ms))

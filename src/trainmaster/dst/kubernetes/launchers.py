"""Simulated launchers, and the network between them and the leader's hub: late, and cut with the node."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping
from typing import Any

from trainmaster.dst.kubernetes.api_server import Object
from trainmaster.dst.kubernetes.trainers import Trainer, Trainers
from trainmaster.gang.protocol import (
    EXIT_LEASE_OVER,
    EXIT_STOPPED,
    Attach,
    Began,
    Begin,
    Ended,
    LineBuffer,
    Message,
    Noted,
    Refused,
    Renew,
    Renewed,
    StopNotice,
    Welcome,
    encode,
)
from trainmaster.launcher.dialing import PATH, PROTOCOL
from trainmaster.launcher.settings import IDENTITY

DIAL_EVERY_S = 1.0
ATTACH_S = 5.0
"""A leader that has not answered for so long is dialled again."""
RENEWALS_PER_LEASE = 5
NOT_RUN = 78
Hear = Callable[["Connection", "bytes | None"], None]
"""None: the other side has hung up."""


class Network:
    """`cut(node)` says whether a node is unreachable now; `listening` who answers at which address."""

    def __init__(
        self, rng: random.Random, cut: Callable[[str], bool], listening: Mapping[str, Callable[[], asyncio.Protocol]]
    ) -> None:
        self._rng = rng
        self.cut = cut
        self._listening = listening

    def delay_s(self) -> float:
        return 0.002 + 0.02 * self._rng.random()

    def connect(self, address: str, node: str, hear: Hear) -> Connection | None:
        make = self._listening.get(address)
        if make is None or self.cut(node):
            return None
        return Connection(self, make(), node, hear)


class Connection(asyncio.Transport):
    """The server's transport; `say` is the launcher's side. Bytes arrive in order."""

    def __init__(self, network: Network, protocol: asyncio.Protocol, node: str, hear: Hear) -> None:
        super().__init__()
        self._network, self._protocol, self._node, self._hear = network, protocol, node, hear
        self._loop = asyncio.get_running_loop()
        self._there_s = self._back_s = 0.0
        self.over = False
        protocol.connection_made(self)

    def say(self, data: bytes) -> None:
        self._there_s = self._after(self._there_s, self._arrive, data)

    def _arrive(self, data: bytes) -> None:
        if not self.over and not self._network.cut(self._node):
            self._protocol.data_received(data)

    def write(self, data: Any) -> None:
        self._back_s = self._after(self._back_s, self._answer, bytes(data))

    def _answer(self, data: bytes | None) -> None:
        if not self._network.cut(self._node):
            self._hear(self, data)

    def _after(self, last_s: float, call: Callable[..., None], *arguments: Any) -> float:
        at_s = max(last_s + 1e-6, self._loop.time() + self._network.delay_s())  # timers of one moment have no order
        self._loop.call_at(at_s, call, *arguments)
        return at_s

    def close(self) -> None:
        if not self.over:
            self.over = True
            self._loop.call_soon(self._protocol.connection_lost, None)
            self._back_s = self._after(self._back_s, self._answer, None)

    abort = close

    def is_closing(self) -> bool:
        return self.over

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("10.0.0.1", 1) if name == "peername" else default


class Launcher:
    """Runs in a pod in the place of its command; the command is a `Trainer`. `poll` is its turn."""

    def __init__(self, network: Network, trainers: Trainers, pod: Object, node: str, gpus: int, boot: str) -> None:
        env = {each["name"]: each.get("value", "") for each in pod["spec"]["containers"][0]["env"]}
        self._env: dict[str, str] = json.loads(env[IDENTITY].replace("$$(", "$("))
        self._network, self._trainers, self._pod = network, trainers, pod
        self._node, self._gpus, self._boot = node, gpus, boot
        self._loop = asyncio.get_running_loop()
        self.trainer: Trainer | None = None
        self.exit: int | None = None
        """Exit code of the container; None: it runs."""
        self._connection: Connection | None = None
        self._attached = False
        self._buffer: LineBuffer | None = None
        self._next_s = 0.0
        self._lease_s = 0.0
        self._lease_ends_s = 0.0
        self._sent: dict[int, float] = {}
        self._number = 0
        self._heard_s = 0.0
        self._stopping = ""
        self._ended: Ended | None = None
        self._noted = False
        self._leave_s = float("inf")

    # -- its turn ------------------------------------------------------------------------------------

    def poll(self) -> None:
        now_s = self._loop.time()
        if self.exit is not None:
            return
        trainer = self.trainer
        if trainer is not None and trainer.code is None and now_s >= self._lease_ends_s:
            self._stopping = self._stopping or "lease"
            self._trainers.kill(trainer)
        if trainer is not None and trainer.code is not None and self._ended is None:
            self._end(trainer.code)
        if self._noted or now_s >= self._leave_s:
            self.exit = self._exit_code()
            self._hang_up()
            return
        if self._connection is not None and now_s > self._heard_s + (self._lease_s if self._attached else ATTACH_S):
            self._hang_up()
        if now_s >= self._next_s:
            self._next_s = now_s + (self._lease_s / RENEWALS_PER_LEASE if self._attached else DIAL_EVERY_S)
            if self._connection is None:
                self._dial()
            elif self._attached:
                self._number += 1
                self._sent[self._number] = now_s
                self._say(Renew(self._number))

    def _exit_code(self) -> int:
        assert self._ended is not None
        if not self._ended.started:
            return NOT_RUN
        if self._stopping == "lease":
            return EXIT_LEASE_OVER
        return EXIT_STOPPED if self._stopping else self._ended.code

    def _end(self, code: int, started: bool = True) -> None:
        """Nothing of the command is left; the service is told, for a while."""
        self._ended = Ended(EXIT_STOPPED if self._stopping else code, self._stopping, started)
        self._leave_s = self._loop.time() + 10.0
        if self._attached:
            self._say(self._ended)

    def terminate(self, grace_s: float) -> None:
        """SIGTERM from the kubelet."""
        self._stop("its pod is deleted", grace_s)

    def _stop(self, why: str, grace_s: float) -> None:
        self._stopping = self._stopping or why
        if self.trainer is None:
            self._end(NOT_RUN, started=False)
        else:
            self._trainers.terminate(self.trainer, grace_s)

    def power_off(self) -> None:
        self._hang_up()
        if self.trainer is not None:
            self._trainers.kill(self.trainer)
        self.exit = 137

    # -- the service ---------------------------------------------------------------------------------

    def _dial(self) -> None:
        for address in self._env["TRAINMASTER_SERVICE"].split(","):
            connection = self._network.connect(address, self._node, self._hear)
            if connection is not None:
                self._connection, self._attached, self._buffer = connection, False, None
                self._heard_s = self._loop.time()
                connection.say(f"GET {PATH} HTTP/1.1\r\nUpgrade: {PROTOCOL}\r\n\r\n".encode())
                self._sent[0] = self._loop.time()
                env = self._env
                self._say(
                    Attach(
                        env["TRAINMASTER_AGENT_TOKEN"],
                        env["TRAINMASTER_JOB_ID"],
                        int(env["TRAINMASTER_GENERATION"]),
                        env["TRAINMASTER_MEMBER"],
                        self._boot,
                        "10.0.0.9",
                        self.trainer is not None,
                    )
                )
                return

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection, self._attached = None, False

    def _say(self, message: Message) -> None:
        if self._connection is not None:
            self._connection.say(encode(message))

    def _hear(self, connection: Connection, data: bytes | None) -> None:
        if connection is not self._connection or self.exit is not None:
            return
        if data is None:
            self._hang_up()
            return
        self._heard_s = self._loop.time()
        if self._buffer is None:
            head, _, data = data.partition(b"\r\n\r\n")
            if b" 101 " not in head:
                self._hang_up()
                return
            self._buffer = LineBuffer()
        for message in self._buffer.feed(data):
            self._take(message)

    def _take(self, message: Message) -> None:
        match message:
            case Welcome() if not self._attached:
                self._attached, self._lease_s = True, message.lease_s
                self._renewed(0)
                if self.trainer is not None:
                    self._say(Began(1))
                if self._ended is not None:
                    self._say(self._ended)
            case Renewed():
                self._renewed(message.number)
            case Begin() if self.trainer is None and not self._stopping and self._ended is None:
                self.trainer = self._trainers.start(self._pod, self._node, self._gpus)
                self._say(Began(1))
            case StopNotice():
                self._stop(message.why, message.grace_s)
            case Refused():
                if self._ended is not None:
                    self._noted = True
                else:
                    self._stop(message.why, max(0.0, min(2.0, self._lease_ends_s - self._loop.time())))
            case Noted():
                self._noted = True

    def _renewed(self, number: int) -> None:
        sent_s = self._sent.pop(number, None)
        if sent_s is not None:
            self._lease_ends_s = max(self._lease_ends_s, sent_s + self._lease_s)

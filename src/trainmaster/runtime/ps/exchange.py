"""A worker's side of the parameter server: gradients out, parameters in, whatever happens to the servers.

One call of `push` or `pull` is done when every block has been answered. A block that has moved is sent again,
under the same sequence number, to its new home; so is one whose server has died, once a map without that
server has come. The caller's thread does all of it: there is no other.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import selectors
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from trainmaster.model.errors import InputError
from trainmaster.runtime.errors import CheckpointError, RuntimeFault
from trainmaster.runtime.ps.block_store import Status
from trainmaster.runtime.ps.connections import Wire
from trainmaster.runtime.ps.frames import TEXT_BYTES_MAX, Head, Kind, ProtocolError, parse_text, text_frame
from trainmaster.runtime.ps.optimizer import Floats
from trainmaster.runtime.ps.shard_map import ShardMap
from trainmaster.runtime.ps.terms import Terms

log = logging.getLogger("trainmaster.ps")

POLL_S = 0.05
"""How often a waiting worker looks whether the agent has said something."""
SILENCE_S = 120.0
"""A worker that gets no answer for so long gives up: servers that die are replaced within seconds."""
LAST_PUSH_S = 3.0


class ServersLost(RuntimeFault):
    """No parameter server has answered for a long time."""


class Stopped(Exception):
    """The worker was told to stop, or to leave, while it waited."""


class Exchange:
    """`servers()` gives name -> address of the newest membership, leader first; `cancelled()` ends all waiting."""

    def __init__(
        self,
        name: str,
        token: str,
        terms: Terms,
        servers: Callable[[], dict[str, str]],
        senior: Callable[[], bool],
        cancelled: Callable[[], bool],
    ) -> None:
        self._hello = {"op": "hello", "token": token, "name": name, "role": "worker"}
        self._terms = terms
        self._servers = servers
        self._senior = senior
        self._cancelled = cancelled
        layout = terms.layout
        self.params: Floats = np.zeros(layout.floats, np.float32)
        self.gradients: Floats = np.zeros(layout.floats, np.float32)
        self._param_views = [self.params[layout.span(b)].data.cast("B") for b in range(layout.blocks)]
        self._gradient_views = [self.gradients[layout.span(b)].data.cast("B") for b in range(layout.blocks)]
        self.map = ShardMap(0, {})
        self.seq = 0
        self.clock = 0
        self.work = 0
        """Gradients that the job had applied when block 0 last came; counts all workers."""
        self.moved_blocks = 0
        self._wires: dict[str, Wire] = {}
        self._numbers = itertools.count(1)
        self._answers: dict[int, dict[str, Any]] = {}
        self._selector = selectors.DefaultSelector()
        # The operation under way.
        self._op = Kind.PULL
        self._factor = 1.0
        self._todo: set[int] = set()
        self._sent: dict[int, tuple[str, int]] = {}
        """Block -> (server, epoch of the map by which it was sent there)."""
        self._moved_at: dict[int, int] = {}
        """Block -> epoch of the map by which it was not found: to be sent again by a newer one only."""
        self._map_questions: dict[int, str] = {}
        """Question -> server. Each is answered as soon as that server knows a newer map."""
        self._introductions: dict[int, str] = {}
        """Question -> leader that has been told the terms: one that is new may be the only one left."""
        self._next_dial_s: dict[str, float] = {}

    # -- what a worker does -----------------------------------------------------------------------

    def join(self) -> None:
        """Agree on the terms with the leader, and get the parameters."""
        answer = self._ask_leader({"op": "terms", "terms": self._terms.to_json()})
        self.clock = int(answer["clock"])
        self.pull()

    def pull(self) -> None:
        """Fresh parameters."""
        self._run(Kind.PULL)

    def push(self, rate_factor: float = 1.0) -> None:
        """Give the gradients, get fresh parameters."""
        self.seq += 1
        self.clock += 1
        self._factor = rate_factor
        self._run(Kind.PUSH)

    def save(self) -> float | None:
        """Work in the new checkpoint; None when there is no place for checkpoints."""
        return self._ask_leader({"op": "save"})["saved"]

    def close(self) -> None:
        for name in list(self._wires):
            self._drop(name)
        self._selector.close()

    # -- one operation ----------------------------------------------------------------------------

    def _run(self, op: Kind) -> None:
        self._op = op
        self._todo = set(range(self._terms.layout.blocks))
        self._sent, self._moved_at = {}, {}
        until_s, last_s = time.monotonic() + SILENCE_S, math.inf
        while True:
            self._send_what_can_be_sent()
            if not self._todo and not self._sent:
                return
            before = len(self._todo) + len(self._sent)
            self._wait(POLL_S)
            if len(self._todo) + len(self._sent) != before:
                until_s = time.monotonic() + SILENCE_S
            if self._cancelled():
                # A gradient of which part is applied should be finished: whoever leaves has a little time.
                last_s = min(last_s, time.monotonic() + LAST_PUSH_S)
                if op == Kind.PULL or time.monotonic() > last_s:
                    raise Stopped
            if time.monotonic() > until_s and self._stuck():  # else it waits for other workers
                raise ServersLost(
                    f"{len(self._todo) + len(self._sent)} of {self._terms.layout.blocks} blocks have had no answer "
                    f"for {SILENCE_S:g} s; the servers known are {', '.join(self._servers()) or 'none'}"
                )

    def _stuck(self) -> bool:
        """Whether what is left waits for servers that are not there."""
        return bool(self._todo) or not self.map.home

    def _send_what_can_be_sent(self) -> None:
        blocked = not self.map.home
        for block in sorted(self._todo) if self.map.home else ():
            name = self.map.home[block]
            wire = self._wire(name, self.map.addresses[name]) if self._moved_at.get(block) != self.map.epoch else None
            if wire is None:
                blocked = True
                continue
            self._todo.discard(block)
            self._sent[block] = (name, self.map.epoch)
            if self._op == Kind.PUSH:
                body = self._gradient_views[block]
                head = Head(Kind.PUSH, block, self.seq, Status.OK, self.map.epoch, self.clock, self._factor, len(body))
                wire.send(head.pack(), body)
            else:
                wire.send(Head(Kind.PULL, block, self.seq, epoch=self.map.epoch).pack())
        if blocked:
            self._ask_for_map()

    def _ask_for_map(self) -> None:
        """Of everybody who can be reached: some may be about to leave."""
        self._introduce()
        asked = set(self._map_questions.values())
        for name, address in sorted({**self.map.addresses, **self._servers()}.items()):
            wire = self._wire(name, address) if name not in asked else None
            if wire is not None:
                number = next(self._numbers)
                self._map_questions[number] = name
                wire.send(text_frame(number, {"op": "map?", "epoch": self.map.epoch}))

    def _introduce(self) -> None:
        """When all servers have died, those that follow know nothing of the job but what workers tell them."""
        name, address = next(iter(self._servers().items()), ("", ""))
        wire = self._wire(name, address) if name and name not in self._introductions.values() else None
        if wire is not None:
            number = next(self._numbers)
            self._introductions[number] = name
            wire.send(text_frame(number, {"op": "terms", "terms": self._terms.to_json()}))

    # -- frames -----------------------------------------------------------------------------------

    def _body_for(self, head: Head) -> memoryview:
        if head.kind == Kind.STATE and head.size == 0:
            return memoryview(b"")
        if head.kind == Kind.STATE and head.block < len(self._param_views):
            view = self._param_views[head.block]
            if head.size == len(view):
                return view
        if head.kind == Kind.TEXT and head.size <= TEXT_BYTES_MAX:
            return memoryview(bytearray(head.size))
        raise ProtocolError(f"unexpected {head.kind.name} of {head.size} bytes")

    def _take(self, wire: Wire, head: Head, body: memoryview) -> None:
        if head.kind == Kind.TEXT:
            self._take_text(head.number, parse_text(body))
            return
        block = head.block
        if block not in self._sent or head.number != self.seq:
            return  # an answer to what was sent twice
        if head.status == Status.OK:
            del self._sent[block]
            if block == 0:
                self.work = head.clock
        elif head.status == Status.READY:
            del self._sent[block]
            self._todo.add(block)
        elif head.status == Status.MOVED:
            self.moved_blocks += 1
            self._moved_at[block] = self._sent.pop(block)[1]
            self._todo.add(block)
        elif head.status == Status.VOID and self._senior():
            view = self._param_views[block]
            wire.send(Head(Kind.VALUES, block, head.number, size=len(view)).pack(), view)
            del self._sent[block]
            self._todo.add(block)
        else:  # LATER, or VOID and another worker gives the values
            values = int(head.status == Status.VOID)
            wire.send(Head(Kind.AWAIT, block, head.number, epoch=self.map.epoch, clock=values).pack())

    def _take_text(self, number: int, data: dict[str, Any]) -> None:
        if number in self._introductions:
            if "error" in data:
                del self._introductions[number]  # it does not lead yet, or no more
            return
        if self._map_questions.pop(number, None) is None:
            self._answers[number] = data
            return
        new = ShardMap.from_json(data["map"])
        if new.epoch > self.map.epoch:
            self.map = new
            for name in [name for name in self._wires if name not in new.addresses and not self._uses(name)]:
                self._drop(name)

    def _uses(self, name: str) -> bool:
        return any(server == name for server, _ in self._sent.values())

    # -- connections ------------------------------------------------------------------------------

    def _wire(self, name: str, address: str) -> Wire | None:
        """The connection to a server; None when it cannot be had now."""
        wire = self._wires.get(name)
        if wire is not None:
            return wire
        now_s = time.monotonic()
        if now_s < self._next_dial_s.get(name, 0.0):
            return None
        self._next_dial_s[name] = now_s + POLL_S
        try:
            wire = Wire(address, self._hello)
        except OSError as error:
            log.info("no connection to %s at %s: %s", name, address, error)
            return None
        self._wires[name] = wire
        self._selector.register(wire.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, name)
        return wire

    def _drop(self, name: str) -> None:
        wire = self._wires.pop(name)
        self._selector.unregister(wire.socket)
        wire.close()
        self._introductions = {n: told for n, told in self._introductions.items() if told != name}
        self._map_questions = {n: asked for n, asked in self._map_questions.items() if asked != name}
        for block in [block for block, (server, _) in self._sent.items() if server == name]:
            del self._sent[block]
            self._todo.add(block)

    def _wait(self, timeout_s: float) -> None:
        for name, wire in self._wires.items():
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wire.wants_to_write else 0)
            if self._selector.get_key(wire.socket).events != events:
                self._selector.modify(wire.socket, events, name)
        if not self._wires:
            time.sleep(timeout_s / 5)
            return
        for key, events in self._selector.select(timeout_s):
            name = key.data
            wire = self._wires.get(name)
            if wire is None:
                continue
            try:
                if events & selectors.EVENT_WRITE:
                    wire.write()
                if events & selectors.EVENT_READ:
                    wire.read(self._body_for, self._take)
            except OSError as error:
                log.info("lost %s: %s", name, error)
                if name in self._wires:
                    self._drop(name)

    def _ask_leader(self, question: dict[str, Any]) -> dict[str, Any]:
        """Ask until the leader of the newest membership has answered; `InputError` when it refuses for good."""
        until_s = time.monotonic() + SILENCE_S
        while time.monotonic() < until_s:
            if self._cancelled():
                raise Stopped
            name, address = next(iter(self._servers().items()), ("", ""))
            wire = self._wire(name, address) if name else None
            if wire is None:
                self._wait(POLL_S / 5)
                continue
            number = next(self._numbers)
            wire.send(text_frame(number, question))
            while self._wires.get(name) is wire and number not in self._answers:
                self._wait(POLL_S)
                if self._cancelled():
                    raise Stopped
            answer = self._answers.pop(number, {"error": "the connection was lost"})
            if "error" not in answer:
                return answer
            if answer.get("final"):
                raise CheckpointError(answer["error"]) if answer.get("checkpoint") else InputError(answer["error"])
            with contextlib.suppress(OSError):
                self._wait(POLL_S / 5)
            time.sleep(0.01)
        raise ServersLost(f"no parameter server has answered for {SILENCE_S:g} s")

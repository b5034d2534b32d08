"""A parameter server: connections of workers and other servers, and what each frame asks of the block store.

One event loop, one thread: between two awaits nothing else happens, so no block needs a lock. Everything that
takes long (blocks on their way, copies, checkpoints) is a task of its own.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import logging
import socket
from collections.abc import Callable
from typing import Any

import numpy as np

from trainmaster.gang.protocol import Membership
from trainmaster.model.errors import TrainmasterError
from trainmaster.runtime.errors import CheckpointError
from trainmaster.runtime.ps.block import BadBlock, unpack
from trainmaster.runtime.ps.block_store import Answer, BlockStore, Status
from trainmaster.runtime.ps.frames import Channel, Head, Kind, ProtocolError
from trainmaster.runtime.ps.peer import Peers
from trainmaster.runtime.ps.replication import Replicator
from trainmaster.runtime.ps.saving import Saver
from trainmaster.runtime.ps.terms import Terms
from trainmaster.runtime.ps.transition import Transitions

log = logging.getLogger("trainmaster.ps")

EARLY_BYTES_MAX = 1 << 28


class _Connection:
    def __init__(self, number: int, channel: Channel) -> None:
        self.number = number
        self.channel = channel
        self.name = ""
        self.role = ""
        self.scratch = memoryview(bytearray())


class ShardServer:
    """`start` listens; `set_membership` says who takes part; `ended` is set when it may go."""

    def __init__(self, name: str, token: str, saver: Saver) -> None:
        self.name = name
        self.address = ""
        self.block_store = BlockStore(name)
        self.saver = saver
        self.ended = asyncio.Event()
        self.on_settled: Callable[[int], None] = lambda version: None  # noqa: ARG005
        self.on_suspect: Callable[[int, tuple[str, ...]], None] = lambda version, names: None  # noqa: ARG005
        self._token = token
        self._connections: dict[int, _Connection] = {}
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._map_asked: list[tuple[int, int, _Connection]] = []
        self.peers = Peers(name, token)
        self.replicator = Replicator(self)
        self.transitions = Transitions(self)

    # -- for the process it lives in --------------------------------------------------------------

    def start(self, host: str = "127.0.0.1", port: int = 0, advertise: str = "") -> None:
        listener = socket.create_server((host, port), backlog=256)
        listener.setblocking(False)
        self.address = f"{advertise or host}:{listener.getsockname()[1]}"
        self.spawn(self._accept(listener))
        self.spawn(self.replicator.run())

    def set_membership(self, membership: Membership) -> None:
        self.answer(self.block_store.list_workers(frozenset(peer.member for peer in membership.workers)))
        self.transitions.follow(membership)

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    @property
    def workers_connected(self) -> int:
        return sum(connection.role == "worker" for connection in self._connections.values())

    def set_terms(self, terms: Terms) -> None:
        if self.block_store.terms is None:
            self.block_store.terms = terms

    async def close(self) -> None:
        for connection in self._connections.values():
            await connection.channel.drain(0.5)
        self.peers.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of %s failed", self.name, exc_info=error)

    # -- answers ----------------------------------------------------------------------------------

    def answer(self, answers: list[Answer]) -> None:
        for answer in answers:
            connection = self._connections.get(answer.to)
            if connection is not None:
                connection.channel.post(lambda answer=answer: _state_frame(answer))

    def tell_map(self) -> None:
        """Answer those who have asked for a newer map than they have."""
        current = self.block_store.map
        left = []
        for epoch, number, connection in self._map_asked:
            if current.epoch > epoch and current.home:
                connection.channel.post_text(number, {"map": current.to_json()})
            elif not connection.channel.closed:
                left.append((epoch, number, connection))
        self._map_asked = left

    # -- connections ------------------------------------------------------------------------------

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                accepted, _ = await loop.sock_accept(listener)
                self.spawn(self._serve(accepted))

    async def _serve(self, accepted: socket.socket) -> None:
        connection = _Connection(next(self._numbers), Channel(accepted))
        try:
            head = await asyncio.wait_for(connection.channel.read_head(), 10.0)
            hello = await connection.channel.read_text(head) if head.kind == Kind.TEXT and head.size < 4096 else {}
            if hello.get("op") != "hello" or not hmac.compare_digest(
                str(hello.get("token", "")).encode(), self._token.encode()
            ):
                raise ProtocolError("no hello with the token of this job")
            connection.name, connection.role = str(hello.get("name", "")), str(hello.get("role", ""))
            self._connections[connection.number] = connection
            while True:
                await self._take(connection, await connection.channel.read_head())
        except ProtocolError as error:
            log.warning("%s: connection of %r refused: %s", self.name, connection.name or "?", error)
        except (OSError, TimeoutError):
            pass
        finally:
            self._connections.pop(connection.number, None)
            connection.channel.close()
            self.answer(self.block_store.leave(connection.number))

    async def _take(self, connection: _Connection, head: Head) -> None:
        block_store, to, channel = self.block_store, connection.number, connection.channel
        if head.kind == Kind.TEXT:
            await self._hear(connection, head.number, await channel.read_text(head))
            return
        terms = block_store.terms
        if terms is None:
            await self._take_early(connection, head)
            return
        if head.block >= terms.layout.blocks:
            raise ProtocolError(f"block {head.block} of {terms.layout.blocks}")
        floats = terms.layout.block_size_floats(head.block)
        if head.kind == Kind.PUSH:
            if head.size != 4 * floats:
                raise ProtocolError(f"a gradient of {head.size} bytes for block {head.block}")
            if len(connection.scratch) < head.size:
                connection.scratch = memoryview(bytearray(4 * terms.layout.block_floats))
            view = connection.scratch[: head.size]
            await channel.read_into(view)
            gradient = np.frombuffer(view, np.float32)
            self.answer(
                block_store.push(
                    to, connection.name, head.block, head.number, head.clock, head.epoch, head.factor, gradient
                )
            )
            self.replicator.consider(head.block)
        elif head.kind == Kind.PULL:
            self.answer(block_store.pull(to, head.block, head.epoch, head.number))
        elif head.kind == Kind.AWAIT:
            self.answer(block_store.await_block(to, head.block, head.epoch, head.number, bool(head.clock)))
        elif head.kind == Kind.VALUES:
            if head.size != 4 * floats:
                raise ProtocolError(f"values of {head.size} bytes for block {head.block}")
            values = np.frombuffer(await channel.read_bytes(head.size), np.float32)
            self.answer(block_store.give_values(head.block, values))
            self.replicator.consider(head.block)
        elif head.kind == Kind.FETCH:
            self._fetched(connection, head)
        elif head.kind == Kind.COPY:
            await self._copied(connection, head, terms)
        else:
            raise ProtocolError(f"a {head.kind.name} frame")

    async def _take_early(self, connection: _Connection, head: Head) -> None:
        """A worker may know the map that names this server before the server does."""
        if head.kind not in (Kind.PUSH, Kind.PULL, Kind.AWAIT) or head.size > EARLY_BYTES_MAX:
            raise ProtocolError(f"a {head.kind.name} frame of {head.size} bytes before the model is known")
        await connection.channel.read_bytes(head.size)
        if head.kind == Kind.AWAIT:
            values = bool(head.clock)
            self.answer(self.block_store.await_block(connection.number, head.block, head.epoch, head.number, values))
        else:
            self.answer(self.block_store.pull(connection.number, head.block, head.epoch, head.number))

    def _fetched(self, connection: _Connection, head: Head) -> None:
        """Another server takes a block over (clock 1) or copies it for a checkpoint (clock 0)."""
        hand_over = bool(head.clock)
        state = None
        if not hand_over:
            state = self.block_store.peek(head.block)
        elif head.epoch >= self.transitions.prepared:
            state, answers = self.block_store.hand_over(head.block)
            self.answer(answers)
        if state is None:
            frame = Head(Kind.BLOCK, head.block, head.number, Status.MOVED).pack()
            connection.channel.post(lambda: (frame,))
            return
        buffers = state.pack()
        frame = Head(Kind.BLOCK, head.block, head.number, size=sum(map(len, buffers))).pack()
        connection.channel.post(lambda: (frame, *buffers))

    async def _copied(self, connection: _Connection, head: Head, terms: Terms) -> None:
        floats = terms.layout.block_size_floats(head.block)
        if head.size > 4 * floats * (1 + terms.optimizer.slots) + (1 << 24):
            raise ProtocolError(f"a copy of {head.size} bytes for block {head.block}")
        body = await connection.channel.read_bytes(head.size)
        try:
            state = unpack(body, floats, terms.optimizer.slots)
        except BadBlock as error:
            raise ProtocolError(str(error)) from error
        taken = self.transitions.takes_part(connection.name) and self.block_store.take_copy(head.block, state)
        frame = Head(Kind.COPY, head.block, head.number, Status.OK if taken else Status.MOVED).pack()
        connection.channel.post(lambda: (frame,))

    # -- questions --------------------------------------------------------------------------------

    async def _hear(self, connection: _Connection, number: int, question: dict[str, Any]) -> None:
        op = question.get("op")
        if op == "map?":
            self._map_asked.append((int(question.get("epoch", 0)), number, connection))
            self.tell_map()
            return
        work = self._reply(connection, number, question)
        if op in ("prepare", "complete", "terms"):
            await work
        else:  # takes time: the connection goes on meanwhile
            self.spawn(work)

    async def _reply(self, connection: _Connection, number: int, question: dict[str, Any]) -> None:
        try:
            answer = await self._work_on(question, connection)
        except ConnectionError as error:
            answer = {"error": str(error), "final": False}
        except TrainmasterError as error:
            answer = {"error": str(error), "final": True, "checkpoint": isinstance(error, CheckpointError)}
        connection.channel.post_text(number, answer)

    async def _work_on(self, question: dict[str, Any], connection: _Connection) -> dict[str, Any]:
        op = question.get("op")
        servers_only = ("prepare", "map", "complete", "leaving", "go")
        if op in servers_only and connection.role != "server":
            raise ProtocolError(f"{op} from a worker")
        if op == "terms":
            return self.transitions.register(question)
        if op == "prepare":
            return self.transitions.prepare(question)
        if op == "map":
            return await self.transitions.adopt(question)
        if op == "complete":
            return self.transitions.complete(question)
        if op == "leaving":
            return self.transitions.announce(question)
        if op == "save":
            return await self.saver.save(self)
        if op == "go":
            self.ended.set()
            return {}
        raise ProtocolError(f"unknown question {op!r}")


def _state_frame(answer: Answer) -> tuple[bytes | memoryview, ...]:
    state = answer.state
    if state is None:
        return (Head(Kind.STATE, answer.block, answer.number, answer.status).pack(),)
    body = state.params.data.cast("B")
    head = Head(
        Kind.STATE, answer.block, answer.number, answer.status, epoch=state.version, clock=state.work, size=len(body)
    )
    return head.pack(), body

"""A server's connection to another server: questions, blocks fetched and copies sent, each awaited by its number."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from typing import Any

from trainmaster.runtime.ps.block import BlockState
from trainmaster.runtime.ps.block_store import Status
from trainmaster.runtime.ps.frames import Channel, Head, Kind

CONNECT_TIMEOUT_S = 2.0


class Refused(ConnectionError):
    """The peer is there, but will not: its words are the message."""


async def dial(address: str, timeout_s: float = CONNECT_TIMEOUT_S) -> socket.socket:
    """`address` is "host:port"."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    family, kind, protocol, _, where = found[0]
    connection = socket.socket(family, kind, protocol)
    connection.setblocking(False)
    try:
        await asyncio.wait_for(loop.sock_connect(connection, where), timeout_s)
    except BaseException as error:
        connection.close()
        if isinstance(error, TimeoutError):
            raise ConnectionError(f"no answer from {address} within {timeout_s:g} s") from error
        raise
    return connection


class Peer:
    """`await Peer.open(...)`; after any `OSError` from it, throw it away."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._reader = asyncio.get_running_loop().create_task(self._read())

    @staticmethod
    async def open(address: str, name: str, token: str) -> Peer:
        peer = Peer(Channel(await dial(address)))
        peer._channel.post_text(0, {"op": "hello", "token": token, "name": name, "role": "server"})
        return peer

    @property
    def lost(self) -> bool:
        return self._reader.done()

    async def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        number, answer = self._expect()
        self._channel.post_text(number, question)
        data = await answer
        if "error" in data:
            raise Refused(str(data["error"]))
        return data

    async def fetch(self, block: int, epoch: int, hand_over: bool) -> bytearray | None:
        """The packed block; None when the peer does not have it (any more)."""
        number, answer = self._expect()
        head = Head(Kind.FETCH, block, number, epoch=epoch, clock=int(hand_over)).pack()
        self._channel.post(lambda: (head,))
        return await answer

    async def copy(self, block: int, epoch: int, state: BlockState) -> bool:
        """Whether the peer now has it."""
        number, answer = self._expect()
        buffers = state.pack()
        head = Head(Kind.COPY, block, number, epoch=epoch, size=sum(map(len, buffers))).pack()
        self._channel.post(lambda: (head, *buffers))
        return await answer

    def close(self) -> None:
        self._reader.cancel()

    def _expect(self) -> tuple[int, asyncio.Future[Any]]:
        if self.lost:
            raise ConnectionError("the connection is lost")
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        return number, self._waiting[number]

    async def _read(self) -> None:
        try:
            while True:
                head = await self._channel.read_head()
                if head.kind == Kind.TEXT:
                    result: Any = await self._channel.read_text(head)
                elif head.kind == Kind.BLOCK:
                    body = await self._channel.read_bytes(head.size)
                    result = body if head.status == Status.OK else None
                else:
                    result = head.status == Status.OK
                future = self._waiting.pop(head.number, None)
                if future is not None and not future.done():
                    future.set_result(result)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._channel.close()
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(ConnectionError("the connection was lost"))
                    with contextlib.suppress(Exception):
                        future.exception()  # somebody may have stopped waiting


class Peers:
    """Connections to the other servers, opened when first needed."""

    def __init__(self, name: str, token: str) -> None:
        self._name = name
        self._token = token
        self._open: dict[str, Peer] = {}
        self._lock = asyncio.Lock()

    async def to(self, address: str) -> Peer:
        async with self._lock:
            peer = self._open.get(address)
            if peer is None or peer.lost:
                peer = self._open[address] = await Peer.open(address, self._name, self._token)
            return peer

    def close(self) -> None:
        for peer in self._open.values():
            peer.close()

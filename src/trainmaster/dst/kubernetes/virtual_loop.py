"""An event loop whose time passes only when nothing is left to do: hours in milliseconds, the same order each time.

`wait` runs the loop from within one of its own callbacks, so that code which blocks a thread of its own in production
(a commit to the journal) runs in the same thread here while everything else goes on.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import time
from asyncio import events
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
START_S = 1_000.0


class VirtualLoop(asyncio.BaseEventLoop):
    """Knows no sockets, no threads and no executors."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = START_S
        self._ready: Any
        self._scheduled: list[Any]
        self._stopping: bool
        self.listeners: dict[str, Callable[[], asyncio.Protocol]] = {}

    def time(self) -> float:
        return self._now_s

    def _run_once(self) -> None:
        """One callback, or one leap to the next timer."""
        while self._scheduled and (self._scheduled[0].cancelled() or self._scheduled[0].when() <= self._now_s):
            handle = heapq.heappop(self._scheduled)
            handle._scheduled = False
            if not handle.cancelled():
                self._ready.append(handle)
        if self._ready:
            handle = self._ready.popleft()
            if not handle.cancelled():
                handle._run()
        elif self._scheduled:
            self._now_s = self._scheduled[0].when()
        elif not self._stopping:
            raise RuntimeError("nothing is left to do, and somebody waits")

    def _timer_handle_cancelled(self, handle: Any) -> None:
        """Cancelled timers are dropped when their time comes."""

    def _write_to_self(self) -> None:
        """Nothing else can call while this thread sleeps: it never does."""

    def call_soon_threadsafe(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    async def create_server(self, factory: Any, host: str, port: int, **_: Any) -> Any:  # type: ignore[override]
        """Nobody listens: `listeners` says whom a connection to this port would reach."""
        address = f"{host}:{port}"
        self.listeners[address] = factory
        return _Server(self, address, factory)

    async def create_connection(self, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        raise OSError("no route to host")

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The outcome; for callbacks, not for tasks."""
        task = self.create_task(work)
        while not task.done():
            self._run_once()
        return task.result()


class _Server:
    """Of `create_server`."""

    def __init__(self, loop: VirtualLoop, address: str, factory: Any) -> None:
        self._loop, self._address, self._factory = loop, address, factory
        self.sockets = [self]

    def getsockname(self) -> tuple[str, int]:
        host, _, port = self._address.rpartition(":")
        return host, int(port)

    def close(self) -> None:
        if self._loop.listeners.get(self._address) is self._factory:
            del self._loop.listeners[self._address]


@contextmanager
def virtual_time(seed: int) -> Iterator[VirtualLoop]:
    """A loop of this seed; `time.monotonic` and the global random numbers are its own meanwhile."""
    loop = VirtualLoop()
    monotonic, state = time.monotonic, random.getstate()
    time.monotonic = loop.time
    random.seed(seed)
    events._set_running_loop(loop)
    try:
        yield loop
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        for _ in range(10_000):
            if not loop._ready:
                break
            loop._run_once()
        events._set_running_loop(None)
        time.monotonic = monotonic
        random.setstate(state)
        loop.close()

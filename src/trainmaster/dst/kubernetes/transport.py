"""Between a `KubeClient` and the simulated API server, with faults: lost requests and answers, 429 and 5xx, slow
answers, requests that are carried out late, watches that lag, break or expire, a client that is cut off."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from trainmaster.backends.kubernetes.api.client import KubeClient
from trainmaster.backends.kubernetes.api.config import KubeConfig
from trainmaster.dst.kubernetes.api_server import ApiServer, Object, Status, Watcher, parse

SERVER = "https://simulated"
LATE_S, LATE_DELETE_S = 2.5, 30.0
"""A request may be carried out so long after its client has given it up. What a leader sends when it gives up must be
over when the next one begins (see `ElectionRule`); deletions may come at any time."""


@dataclass
class Weather:
    """Rates of faults, by request or by watch event; all 0 once the faults are over."""

    lost_request: float = 0.0
    lost_answer: float = 0.0
    throttled: float = 0.0
    server_error: float = 0.0
    late: float = 0.0
    held_up: float = 0.0
    """The thread that asks is held up first, perhaps for longer than a leadership lasts."""
    watch_break: float = 0.0
    watch_lag_s: float = 0.05
    answer_s: float = 0.01

    @classmethod
    def draw(cls, rng: random.Random) -> Weather:
        bad = rng.choice((0.0, 0.01, 0.05, 0.15))
        rates = [bad * rng.random() for _ in range(6)]
        lag_s, answer_s = rng.choice((0.05, 0.5, 3.0, 15.0)), rng.choice((0.005, 0.05, 0.5))
        return cls(*rates, watch_break=bad * rng.random() / 2, watch_lag_s=lag_s, answer_s=answer_s)


class Line:
    """One client's connection to the server; both sessions of a `KubeClient` at once."""

    def __init__(self, server: ApiServer, weather: Weather, rng: random.Random) -> None:
        self._server = server
        self._weather = weather
        self._rng = rng
        self.cut = False
        """Nothing gets through, in either direction."""
        self.closed = False

    async def close(self) -> None:
        self.closed = True

    async def hold_up(self) -> None:
        if self._rng.random() < self._weather.held_up / 2:
            await asyncio.sleep(self._rng.uniform(1, 25))

    def request(
        self,
        method: str,
        url: str,
        *,
        data: Any = None,
        params: Any = None,
        headers: Any = None,
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> _Exchange:
        del headers
        path = url.removeprefix(SERVER)
        limit_s = 15.0 if timeout is None or timeout.total is None else timeout.total
        return _Exchange(self, method, path, data, dict(params or {}), limit_s)

    def get(self, url: str, *, params: Any = None, headers: Any = None, timeout: Any = None) -> Any:
        if dict(params or {}).get("watch") == "true":
            return _Watch(self, url.removeprefix(SERVER), dict(params))
        return self.request("GET", url, params=params, headers=headers, timeout=timeout)

    async def exchange(self, method: str, path: str, data: Any, params: dict[str, str], limit_s: float) -> _Reply:
        weather, rng = self._weather, self._rng
        if self.cut or rng.random() < weather.lost_request:
            await asyncio.sleep(limit_s if self.cut else min(limit_s, rng.random()))
            raise aiohttp.ClientConnectionError("connection lost")
        body = None if data is None else orjson.loads(data)
        if rng.random() < weather.late:
            late_s = rng.uniform(0, LATE_DELETE_S if method == "DELETE" else LATE_S)
            asyncio.get_running_loop().call_later(late_s, self._answer, method, path, body, params)
            raise aiohttp.ClientConnectionError("connection reset")
        there_s = weather.answer_s * rng.random()
        await asyncio.sleep(there_s)
        if rng.random() < weather.throttled:
            return _Reply(429, {"reason": "TooManyRequests", "message": "throttled"}, {"Retry-After": "1"})
        if rng.random() < weather.server_error:
            return _Reply(500, {"reason": "InternalError", "message": "etcdserver: request timed out"})
        reply = self._answer(method, path, body, params)
        back_s = weather.answer_s * rng.random()
        if self.cut or rng.random() < weather.lost_answer or there_s + back_s > limit_s:
            await asyncio.sleep(min(limit_s, rng.random()))
            raise aiohttp.ClientConnectionError("answer lost")
        await asyncio.sleep(back_s)
        return reply

    def _answer(self, method: str, path: str, body: Any, params: dict[str, str]) -> _Reply:
        try:
            return _Reply(200, self._server.handle(method, path, body, params))
        except Status as status:
            return _Reply(status.code, status.body)

    async def watch(self, path: str, params: dict[str, str]) -> AsyncIterator[bytes]:
        """Changes in order, each no earlier than it happened; some late, the stream at some time broken."""
        rng, weather = self._rng, self._weather
        loop = asyncio.get_running_loop()
        due: deque[tuple[float, str, Object]] = deque()
        woken = asyncio.Event()

        def tell(what: str, thing: Object) -> None:
            at_s = loop.time() + weather.watch_lag_s * rng.random() ** 2
            due.append((max(at_s, due[-1][0]) if due else at_s, what, thing))
            woken.set()

        watcher: Watcher | None = None
        ends_s = loop.time() + float(params.get("timeoutSeconds", "300"))
        try:
            watcher = self._server.watch(parse(path), params, tell)
            while not self.cut and loop.time() < ends_s:
                if not due:
                    woken.clear()
                    try:
                        await asyncio.wait_for(woken.wait(), 5.0)
                    except TimeoutError:
                        continue
                at_s, what, thing = due[0]
                if at_s > loop.time():
                    await asyncio.sleep(at_s - loop.time())
                if self.cut or rng.random() < weather.watch_break:
                    break
                due.popleft()
                yield orjson.dumps({"type": what, "object": thing}) + b"\n"
        except Status as status:
            yield orjson.dumps({"type": "ERROR", "object": status.body}) + b"\n"
        finally:
            if watcher is not None:
                self._server.watchers.remove(watcher)
        if self.cut or rng.random() < 0.5:
            raise aiohttp.ClientConnectionError("watch broken")


@dataclass
class _Reply:
    status: int
    body: Object
    headers: dict[str, str] | None = None

    def __post_init__(self) -> None:
        self.headers = self.headers or {}

    async def read(self) -> bytes:
        return orjson.dumps(self.body)


@dataclass
class _Exchange:
    line: Line
    method: str
    path: str
    data: Any
    params: dict[str, str]
    limit_s: float

    async def __aenter__(self) -> _Reply:
        return await self.line.exchange(self.method, self.path, self.data, self.params, self.limit_s)

    async def __aexit__(self, *_: object) -> None: ...


class _Watch:
    """The answer to a watch: `status`, and `content.iter_any()`."""

    status = 200

    def __init__(self, line: Line, path: str, params: dict[str, str]) -> None:
        self._line, self._path, self._params = line, path, params
        self.content = self
        self._stream: Any = None

    async def __aenter__(self) -> _Watch:
        if self._line.cut:
            await asyncio.sleep(10.0)
            raise aiohttp.ClientConnectionError("connection lost")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._stream is not None:
            with contextlib.suppress(RuntimeError):  # who is unwound while the stream waits leaves it to the collector
                await self._stream.aclose()

    def iter_any(self) -> AsyncIterator[bytes]:
        self._stream = self._line.watch(self._path, self._params)
        return self._stream


class LineClient(KubeClient):
    """The real client, whose connections are a `Line`."""

    def __init__(self, line: Line) -> None:
        super().__init__(KubeConfig(SERVER))
        self._line = line

    async def open(self) -> KubeClient:
        self._session = self._watching = self._line  # type: ignore[assignment]
        return self

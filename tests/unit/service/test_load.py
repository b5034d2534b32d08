"""Many at once: half-open connections are closed, previews are limited, health answers in time."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import statistics
import time
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from service_bench import Bench

from trainmaster.jobspec.model import JobRequest
from trainmaster.service.api import app as app_module
from trainmaster.service.api import connections
from trainmaster.service.api.app import build_app
from trainmaster.service.api.connections import MAX_UNFINISHED, TimedConnection
from trainmaster.service.api.routes.context import MAX_PAGES_AT_ONCE, Context
from trainmaster.service.api.routes.jobs import MAX_PREVIEWS
from trainmaster.service.control import requests as ask
from trainmaster.service.control.scheduler_thread import Driver
from trainmaster.service.local.tokens import OPERATOR, Principal
from trainmaster.service.service import LeaderGateway
from trainmaster.stores.sqlite import SqliteStore


class JobApi:
    def __init__(self, driver: Driver | None = None) -> None:
        self.driver = driver

    async def submit(self, who: Principal, request: JobRequest) -> Any:
        assert self.driver is not None
        return await self.driver.ask(ask.Submit(request, who))

    async def identify(self, _: Any) -> Principal:
        return Principal("ann", OPERATOR)

    async def check_submission(self, *_: Any) -> None:
        pass


class Busy(LeaderGateway):
    """A scheduler that takes its time."""

    async def ask(self, request: Any) -> Any:
        await asyncio.sleep(3_600)


async def asked(app: Any, method: str, path: str, body: bytes = b"") -> tuple[int, dict[str, Any]]:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": []}
    await app(scope, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"])


def test_health_answers_within_a_second_while_a_batch_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    app = build_app(Context(Busy(), JobApi(), "simulated"))  # type: ignore[arg-type]

    async def health() -> tuple[int, dict[str, Any]]:
        return await asyncio.wait_for(asked(app, "GET", "/healthz"), 1.0)

    assert asyncio.run(health()) == (200, {"status": "ok"})
    monkeypatch.setattr(app_module, "BUSY_S", 0.1)
    status, told = asyncio.run(health())
    assert (status, told["status"]) == (503, "busy"), "one that never answers again is not well"


def test_previews_at_once_are_limited() -> None:
    async def foretell(_: Any) -> Any:
        raise AssertionError("not reached")

    context = Context(Busy(), JobApi(), "simulated", foretell)  # type: ignore[arg-type]
    app = build_app(context)

    async def many() -> tuple[int, dict[str, Any]]:
        body = b'{"command": ["x"]}'
        waiting = [asyncio.create_task(asked(app, "POST", "/api/v1/jobs/preview", body)) for _ in range(MAX_PREVIEWS)]
        await asyncio.sleep(0.1)
        refused = await asked(app, "POST", "/api/v1/jobs/preview", body)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return refused

    status, problem = asyncio.run(many())
    assert status == 429 and "at most 4" in problem["expected"]
    assert context.previews == 0, "those that went away do not count"


def test_half_open_requests_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No head, half a head, half a body, a body that comes byte by byte; and one head without end."""
    monkeypatch.setattr(TimedConnection, "request_s", 0.5)
    begun = [b"", b"GET /livez HTTP/1.1\r\nHost: a\r\n", b"POST /livez HTTP/1.1\r\nContent-Length: 9\r\n\r\nx"]

    async def run(port: int) -> None:
        streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(60)]
        for number, (_, writer) in enumerate(streams):
            writer.write(begun[number % 3])
        ends = await asyncio.wait_for(asyncio.gather(*(_rest(reader) for reader, _ in streams)), 5)
        assert all(b"200" not in end for end in ends)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /livez HTTP/1.1\r\n" + b"a: " + b"x" * 200_000)
        await asyncio.wait_for(_rest(reader), 5)
        for pause in (0.0, 0.7):  # a connection that is kept is not cut off between its requests
            await asyncio.sleep(pause)
            if pause == 0.0:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
            assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"}"), 5)
        writer.close()

    _served(run)


@pytest.mark.parametrize("limit", ["PATIENCE_S", "MAX_OPEN"])
def test_of_too_many_half_open_requests_the_oldest_are_closed(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """Those that have had their time; and those above what there is room for at all."""
    monkeypatch.setattr(connections, limit, 0.0 if limit == "PATIENCE_S" else MAX_UNFINISHED)

    async def run(port: int) -> None:
        streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MAX_UNFINISHED + 20)]
        await asyncio.wait_for(asyncio.gather(*(_rest(reader) for reader, _ in streams[:20])), 5)
        assert len(TimedConnection.unfinished) == MAX_UNFINISHED
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"}"), 1)
        for _, open_writer in [*streams, (reader, writer)]:
            open_writer.transport.abort()
        await asyncio.sleep(0.2)

    _served(run)
    assert not TimedConnection.unfinished


def test_clients_that_come_at_once_are_no_half_open_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have sent all before any is read."""
    monkeypatch.setattr(connections, "MAX_UNFINISHED", 20)

    async def run(port: int) -> None:
        streams = []
        for _ in range(200):  # in one turn of the loop, so that none is read in between
            stream = socket.create_connection(("127.0.0.1", port))
            stream.sendall(b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            streams.append(stream)
        opened = [await asyncio.open_connection(sock=stream) for stream in streams]
        ends = await asyncio.wait_for(asyncio.gather(*(_rest(reader) for reader, _ in opened)), 10)
        assert all(b"200 OK" in end for end in ends), ends.count(b"")
        for _, writer in opened:
            writer.transport.abort()

    _served(run)


def test_pages_are_put_together_a_few_at_a_time() -> None:
    """A batch with two hundred of them would keep everybody else waiting."""
    under_way, most = 0, 0

    class Gateway(Busy):
        async def ask(self, request: Any) -> Any:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0.01)
            under_way -= 1
            return {"jobs": [], "cursor": None, "total": 0}

    class Seeing(JobApi):
        async def seen(self, _: Any) -> None:
            return None

    async def many() -> list[Any]:
        app = build_app(Context(Gateway(), Seeing(), "simulated"))  # type: ignore[arg-type]
        return await asyncio.gather(*(asked(app, "GET", "/api/v1/jobs") for _ in range(20)))

    assert {status for status, _ in asyncio.run(many())} == {200}
    assert most == MAX_PAGES_AT_ONCE


def test_a_page_is_bounded_in_bytes(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.submit(array=100, env={"K": "x" * 100_000}, steps=1)
    bench.submit(steps=1)
    for _ in range(2):  # while they are active, and when they have ended
        seen, cursor, sizes = [], "", []
        while cursor is not None:
            page = bench.get("/jobs", query=f"limit=1000{cursor}")
            assert page["total"] == 101
            sizes.append(len(json.dumps(page)))
            seen += [job["id"] for job in page["jobs"]]
            cursor = None if page["cursor"] is None else f"&cursor={page['cursor']}"
        assert len(seen) == len(set(seen)) == 101
        assert len(sizes) == 3 and max(sizes) < 5 << 20
        bench.pass_s(3_600)


class Timely:
    """The driver of a real control plane, as the service's gateway asks it."""

    def __init__(self, driver: Driver) -> None:
        self.ask, self.news = driver.ask, driver.news

    async def ask_soon(self, request: Any, wait_s: float) -> Any:
        try:
            return await asyncio.wait_for(self.ask(request), wait_s)
        except TimeoutError:
            return None


def test_a_thousand_clients_beside_a_thousand_half_open_connections(tmp_path: Path) -> None:
    """Every client gets its job, one of them an array of 1,000; health answers throughout."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 8192), hard), hard))
    bench = Bench(tmp_path, SqliteStore(tmp_path / "store.db", durable=False))
    driver = Driver(bench.plane, lambda error: None)
    driver.start()
    app = build_app(Context(Timely(driver), JobApi(driver), "simulated"))  # type: ignore[arg-type]
    waits_s: list[float] = []

    async def call(port: int, path: str, body: bytes = b"") -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        verb = b"POST" if body else b"GET"
        head = b"%s %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n" % (verb, path.encode())
        writer.write(head + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        answer = await _rest(reader)
        writer.close()
        return answer[9:12]

    async def watch(port: int) -> None:
        while True:
            begun = time.monotonic()
            assert await call(port, "/healthz") == b"200"
            waits_s.append(time.monotonic() - begun)
            await asyncio.sleep(0.05)

    async def run(port: int) -> None:
        half_open = [await asyncio.open_connection("127.0.0.1", port) for _ in range(1_000)]
        for _, writer in half_open:
            writer.write(b"POST /api/v1/jobs HTTP/1.1\r\nContent-Le")
        watching = asyncio.create_task(watch(port))
        bodies = [json.dumps({"command": ["x"], **({} if k else {"array": 1_000})}).encode() for k in range(1_000)]
        at_once = asyncio.Semaphore(200)  # so many are under way at any moment

        async def client(body: bytes) -> bytes:
            async with at_once:
                return await call(port, "/api/v1/jobs", body)

        answers = await asyncio.gather(*map(client, bodies))
        assert answers == [b"201"] * 1_000, {answer: answers.count(answer) for answer in answers}
        assert not watching.done(), "every look at the health was answered with 200"
        watching.cancel()
        for _, writer in half_open:
            writer.transport.abort()

    try:
        _served(run, app)
    finally:
        driver.stop()
    # Clients, server and scheduler share one process here, on a machine that may be busy with other tests.
    assert statistics.median(waits_s) < 1.0 and max(waits_s) < 5.0, waits_s


async def _rest(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


def _served(run: Any, app: Any = None) -> None:
    async def main() -> None:
        served = app or build_app(Context(Busy(), JobApi(), "simulated"))  # type: ignore[arg-type]
        config = uvicorn.Config(served, log_config=None, access_log=False, lifespan="off", http=TimedConnection)
        server = uvicorn.Server(config)
        with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
            task = asyncio.create_task(server._serve([listener]))
            while not server.started:
                await asyncio.sleep(0.01)
            try:
                await run(listener.getsockname()[1])
            finally:
                server.should_exit = True
                await task

    asyncio.run(main())

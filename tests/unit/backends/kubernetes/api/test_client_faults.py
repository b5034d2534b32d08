"""The client against a server that throttles, fails, drops connections and disagrees."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from trainmaster.backends.kubernetes.api.client import (
    ApiError,
    Conflict,
    Forbidden,
    KubeClient,
    NotFound,
    Unreachable,
)
from trainmaster.backends.kubernetes.api.config import KubeConfig
from trainmaster.backends.kubernetes.attempts import pod_writer
from trainmaster.backends.kubernetes.attempts.pod_writer import PodWriter, Refused

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def told(status: int, reason: str, message: str = "", **headers: str) -> web.Response:
    body = {"kind": "Status", "reason": reason, "message": message, "code": status}
    return web.json_response(body, status=status, headers=headers)


def against(answers: list[Any], work: Callable[[KubeClient], Awaitable[Any]]) -> tuple[Any, list[tuple[str, str]]]:
    """Run `work` against a server that gives these answers in turn (the last again and again)."""
    asked: list[tuple[str, str]] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        asked.append((request.method, request.path))
        await request.read()
        answer = answers[min(len(asked) - 1, len(answers) - 1)]
        if answer is None:
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        return answer() if callable(answer) else answer  # type: ignore[return-value]

    async def run() -> Any:
        app = web.Application()
        app.router.add_route("*", "/{rest:.*}", handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        client = await KubeClient(KubeConfig(f"http://127.0.0.1:{port}")).open()
        try:
            return await work(client)
        finally:
            await client.close()
            await runner.cleanup()

    return asyncio.run(run()), asked


def fine() -> web.Response:
    return web.json_response({"metadata": {"name": "x"}})


def test_throttling_is_waited_for_as_long_as_the_server_asks() -> None:
    begun_s = time.monotonic()
    busy = lambda: told(429, "TooManyRequests", **{"Retry-After": "1"})  # noqa: E731
    made, asked = against([busy, fine], lambda client: client.create("/api/v1/namespaces/a/pods", {}))
    assert made["metadata"]["name"] == "x"
    assert len(asked) == 2
    assert time.monotonic() - begun_s >= 1.0


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_faults_of_the_server_are_tried_again(status: int) -> None:
    _, asked = against([lambda: told(status, "x"), lambda: told(status, "x"), fine], lambda client: client.get("/a"))
    assert len(asked) == 3


def test_a_dropped_connection_is_tried_again_and_patience_ends() -> None:
    _, asked = against([None, fine], lambda client: client.get("/a"))
    assert len(asked) == 2

    async def impatient(client: KubeClient) -> None:
        with pytest.raises(Unreachable):
            await client.request("GET", "/a", patience_s=0.3)

    against([None], impatient)


@pytest.mark.parametrize(
    ("status", "kind"), [(404, NotFound), (409, Conflict), (401, Forbidden), (403, Forbidden), (422, ApiError)]
)
def test_refusals_are_told_at_once(status: int, kind: type[ApiError]) -> None:
    async def work(client: KubeClient) -> ApiError:
        with pytest.raises(kind) as caught:
            await client.create("/a", {})
        return caught.value

    error, asked = against([lambda: told(status, "Because", "it is so")], work)
    assert (error.status, error.reason, str(error)) == (status, "Because", "it is so")
    assert len(asked) == 1


def test_what_is_no_json_does_not_confuse() -> None:
    async def work(client: KubeClient) -> str:
        with pytest.raises(ApiError) as caught:
            await client.get("/a")
        return str(caught.value)

    text, _ = against([lambda: web.Response(status=418, text="<html>\x00 teapot")], work)
    assert "teapot" in text


class Impatient:
    """A client that tries once."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def create(self, path: str, body: Any, **options: Any) -> Any:
        return await self._client.create(path, body, patience_s=0.0, **options)

    async def get(self, path: str) -> Any:
        return await self._client.request("GET", path, patience_s=0.0)


def _impatient(client: KubeClient) -> PodWriter:
    return PodWriter(Impatient(client))  # type: ignore[arg-type]


def pod_of(job_id: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p", "annotations": {"trainmaster.dev/job-id": job_id}}, "spec": spec}


def test_a_creation_whose_answer_was_lost_is_no_second_pod() -> None:
    answers = [None, lambda: told(409, "AlreadyExists"), lambda: web.json_response(pod_of("a"))]
    made, asked = against(answers, lambda client: PodWriter(client).create("ns", [pod_of("a")]))
    assert made[0]["metadata"]["name"] == "p"
    assert [method for method, _ in asked] == ["POST", "POST", "GET"]


def test_a_server_that_fails_while_it_is_asked_what_is_there_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_writer, "AGAIN_S", 0.01)
    there, down = (lambda: told(409, "AlreadyExists")), (lambda: told(503, "ServiceUnavailable"))
    answers = [there, down, there, lambda: web.json_response(pod_of("a"))]
    made, _ = against(answers, lambda client: _impatient(client).create("ns", [pod_of("a")]))
    assert made[0]["metadata"]["name"] == "p"
    answers = [there, down, there, lambda: web.json_response(pod_of("a", nodeName="n1"))]
    against(answers, lambda client: _impatient(client).bind("ns", [("p", "n1")]))


def test_somebody_elses_pod_of_the_same_name_is_not_taken_for_ours() -> None:
    async def work(client: KubeClient) -> str:
        with pytest.raises(Refused) as caught:
            await PodWriter(client).create("ns", [pod_of("a")])
        return caught.value.why

    why, _ = against([lambda: told(409, "AlreadyExists"), lambda: web.json_response(pod_of("b"))], work)
    assert "another pod" in why


def test_a_binding_that_is_there_already_is_fine_and_another_one_is_not() -> None:
    bound = lambda: web.json_response(pod_of("a", nodeName="n1"))  # noqa: E731
    against([lambda: told(409, "Conflict"), bound], lambda client: PodWriter(client).bind("ns", [("p", "n1")]))

    async def elsewhere(client: KubeClient) -> None:
        with pytest.raises(Refused, match="bound to n1"):
            await PodWriter(client).bind("ns", [("p", "n2")])

    against([lambda: told(409, "Conflict"), bound], elsewhere)

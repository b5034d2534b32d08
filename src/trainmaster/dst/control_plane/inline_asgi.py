"""Run requests through an ASGI application without an event loop, so that several share one batch, deterministically.

A route that asks the control plane stops at that point; when all have stopped their questions go in as one batch,
and each goes on with its answer. Nothing else in the application may wait for anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote

from trainmaster.service.api.limits import App
from trainmaster.service.control.control_plane import Request
from trainmaster.service.control.gateway import unpacked

T = TypeVar("T")


@dataclass(frozen=True)
class Call:
    """An HTTP request."""

    method: str
    path: str
    body: Any = None
    query: str = ""


@dataclass
class Reply:
    status: int = 0
    body: bytes = b""

    def json(self) -> Any:
        return json.loads(self.body)


class _Question:
    def __init__(self, request: Request[Any]) -> None:
        self.request = request

    def __await__(self) -> Generator[_Question, Any, Any]:
        return (yield self)


class PausingGateway:
    """Hands questions to whoever drives the coroutine."""

    async def ask(self, request: Request[T]) -> T:
        return unpacked(await _Question(request))

    async def ask_soon(self, request: Request[T], wait_s: float) -> T | None:  # noqa: ARG002
        return await self.ask(request)

    async def news(self, wait_s: float) -> None:  # noqa: ARG002 - time does not pass inside a request
        return


@dataclass
class _Running:
    call: Call
    reply: Reply = field(default_factory=Reply)
    coroutine: Coroutine[Any, Any, None] | None = None
    question: _Question | None = None

    def begin(self, app: App, token: str) -> None:
        data = b"" if self.call.body is None else json.dumps(self.call.body).encode()
        sent = False

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if sent:
                return {"type": "http.disconnect"}
            sent = True
            return {"type": "http.request", "body": data, "more_body": False}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.reply.status = message["status"]
            else:
                self.reply.body += message.get("body", b"")

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": self.call.method,
            "scheme": "http",
            "path": self.call.path,
            "raw_path": quote(self.call.path).encode(),
            "root_path": "",
            "query_string": self.call.query.encode(),
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "headers": [
                (b"authorization", f"Bearer {token}".encode()),
                (b"content-type", b"application/json"),
                (b"content-length", str(len(data)).encode()),
            ],
        }
        self.coroutine = app(scope, receive, send)  # type: ignore[assignment]
        self.resume(None)

    def resume(self, outcome: Any) -> None:
        assert self.coroutine is not None
        try:
            asked = self.coroutine.send(outcome)
        except StopIteration:
            self.question = None
            return
        if not isinstance(asked, _Question):
            raise RuntimeError(f"{self.call.path} waits for something other than the control plane: {asked!r}")
        self.question = asked


def exchange(
    app: App, token: str, calls: Sequence[Call], batch: Callable[[list[Request[Any]]], list[Any]]
) -> list[Reply]:
    """Answer all calls; `batch` is asked at least once. Whatever it raises ends them all without an answer."""
    running = [_Running(call) for call in calls]
    try:
        for one in running:
            one.begin(app, token)
        asked = [one for one in running if one.question is not None]
        first = True
        while asked or first:
            first = False
            outcomes = batch([one.question.request for one in asked if one.question is not None])
            for one, outcome in zip(asked, outcomes, strict=True):
                one.resume(outcome)
            asked = [one for one in asked if one.question is not None]
    finally:
        for one in running:
            if one.coroutine is not None:
                one.coroutine.close()
    return [one.reply for one in running]

"""A replica that does not lead passes requests on to the one that does; and says whether it lives and is ready."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx

from trainmaster.service.api.limits import MAX_BODY
from trainmaster.wire.api import Problem

Scope = dict[str, Any]
TIMEOUT_S = 60.0
HOP = frozenset({b"connection", b"transfer-encoding", b"keep-alive", b"upgrade", b"host", b"content-length"})
SEEN = b"x-trainmaster-forwarded"
"""A request that comes from another replica is not passed on again."""
STANDBY_METRICS = b"""# HELP trainmaster_standby 1 while this replica waits to lead.
# TYPE trainmaster_standby gauge
trainmaster_standby 1
"""


class Forwarding:
    """`leader()` is the leader's address, or empty when requests are answered here. `ready()`: the cluster is known."""

    def __init__(
        self, app: Any, leader: Callable[[], str], ready: Callable[[], bool], leads: Callable[[], bool] = lambda: True
    ) -> None:
        self._app = app
        self._leader = leader
        self._ready = ready
        self._leads = leads
        self._client: httpx.AsyncClient | None = None

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"] == "/livez":
            await _answer(send, 200, b'{"status":"ok"}')
            return
        if scope["path"] == "/readyz":
            ready = self._ready()
            await _answer(send, 200 if ready else 503, b'{"status":"ok"}' if ready else b'{"status":"starting"}')
            return
        if scope["path"] == "/metrics":
            if self._leads():
                await self._app(scope, receive, send)
            else:  # of its own, for Prometheus asks every replica
                await _answer(send, 200, STANDBY_METRICS, b"text/plain; version=0.0.4; charset=utf-8")
            return
        leader = self._leader()
        seen = any(name == SEEN for name, _ in scope["headers"])
        if not leader or seen:
            await self._app(scope, receive, send)
            return
        await self._pass_on(leader, scope, receive, send)

    async def _pass_on(self, leader: str, scope: Scope, receive: Any, send: Any) -> None:
        if self._client is None:
            self._client = httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False)
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if len(body) > MAX_BODY:  # before anybody has said who they are
                problem = Problem(what="the body of the request is too large", expected=f"at most {MAX_BODY} bytes")
                await _answer(send, 413, problem.model_dump_json().encode())
                return
            if not message.get("more_body"):
                break
        query = scope["query_string"].decode()
        url = f"{leader}{scope['raw_path'].decode()}" + (f"?{query}" if query else "")
        headers = [(name, value) for name, value in scope["headers"] if name not in HOP]
        try:
            response = await self._client.request(scope["method"], url, content=body, headers=[*headers, (SEEN, b"1")])
        except httpx.HTTPError as error:
            problem = Problem(what=f"the leader at {leader} does not answer: {error}", remedy="Ask again.")
            await _answer(send, 503, problem.model_dump_json().encode())
            return
        kept = [(name.lower(), value) for name, value in response.headers.raw if name.lower() not in HOP]
        kept = [(name, value) for name, value in kept if name != b"content-encoding"]
        await send({"type": "http.response.start", "status": response.status_code, "headers": kept})
        await send({"type": "http.response.body", "body": response.content})

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()


async def _answer(send: Any, status: int, body: bytes, kind: bytes = b"application/json") -> None:
    headers = [(b"content-type", kind)]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

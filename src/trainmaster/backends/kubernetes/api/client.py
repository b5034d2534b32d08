"""A small asynchronous client of the Kubernetes API: JSON in, JSON out, nothing generated.

Requests that may be repeated are, after connection errors, 429 and 5xx, for a bounded time. A creation whose answer
was lost may have happened: repeating it ends in `Conflict`, which callers take for "already there".
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import orjson

from trainmaster.backends.kubernetes.api.config import KubeConfig
from trainmaster.model.errors import TrainmasterError

Object = dict[str, Any]
RETRY_STATUS = frozenset({429, 500, 502, 503, 504})
FIRST_WAIT_S = 0.05
MAX_WAIT_S = 2.0
PATIENCE_S = 20.0
"""How long a request is tried again before the caller is told."""
STALL_S = 100.0
"""A watch without a word, not even a bookmark (about one a minute), for so long is taken for dead."""
PATCHES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}
AGENT = "trainmaster"


class ApiError(TrainmasterError):
    """The API server refused. `reason` is its word for it, such as `AlreadyExists`."""

    def __init__(self, status: int, reason: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message or reason)
        self.status = status
        self.reason = reason
        self.details = details or {}


class NotFound(ApiError):
    pass


class Conflict(ApiError):
    """409: it exists already, or has another version than we thought."""


class Forbidden(ApiError):
    """401 or 403: the service account lacks a right."""


class Expired(ApiError):
    """410: the version asked for is no longer kept; list again."""


class Unreachable(ApiError):
    """No answer within the time that we were willing to wait."""


def _error_of(status: int, body: bytes) -> ApiError:
    try:
        told = orjson.loads(body)
    except ValueError:
        told = {}
    told = told if isinstance(told, dict) else {}
    message = str(told.get("message") or body[:300].decode(errors="replace"))
    kinds: dict[int, type[ApiError]] = {404: NotFound, 409: Conflict, 410: Expired, 401: Forbidden, 403: Forbidden}
    kind = kinds.get(status, ApiError)
    return kind(status, str(told.get("reason") or status), message, told.get("details"))


class KubeClient:
    """Belongs to the event loop in which `open` was awaited."""

    def __init__(self, config: KubeConfig, *, connections: int = 32) -> None:
        self.config = config
        self._connections = connections
        self._session: aiohttp.ClientSession | None = None
        self._watching: aiohttp.ClientSession | None = None
        self._turns = asyncio.Semaphore(connections)
        self.requests = 0
        self.writes: dict[str, int] = {}
        """Requests that change something, by verb and kind of object: what the cluster pays for us."""
        self.retries = 0

    async def open(self) -> KubeClient:
        context = self.config.ssl_context()
        kept = {"keepalive_timeout": 75.0, "ssl": context}
        headers = {"User-Agent": AGENT, "Accept": "application/json"}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._connections, **kept), headers=headers
        )
        self._watching = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, **kept), headers=headers)
        return self

    async def close(self) -> None:
        for session in (self._session, self._watching):
            if session is not None:
                await session.close()

    # -- requests ------------------------------------------------------------------------------------

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        timeout_s: float = 15.0,
        patience_s: float = PATIENCE_S,
        urgent: bool = False,
    ) -> Object:
        """The answer's JSON; `ApiError` says what was refused. `patience_s` 0: one attempt. `urgent`: does not queue
        for a connection behind the many that start pods, as the renewal of a lease must not."""
        session = self._watching if urgent else self._session
        assert session is not None, "open the client first"
        data = None if body is None else body if isinstance(body, bytes) else orjson.dumps(body)
        if method != "GET":
            self._count(method, path)
        deadline_s = time.monotonic() + patience_s
        wait_s = FIRST_WAIT_S
        while True:
            self.requests += 1
            asked_s: float | None = None
            try:
                # Waiting for a turn is no part of the time that the server may take.
                async with (
                    contextlib.nullcontext() if urgent else self._turns,
                    session.request(
                        method,
                        self.config.server + path,
                        data=data,
                        params=params,
                        headers=self._headers(content_type if data is not None else None),
                        timeout=aiohttp.ClientTimeout(total=timeout_s),
                    ) as response,
                ):
                    answer = await response.read()
                    if response.status < 400:
                        return orjson.loads(answer) if answer else {}
                    error = _error_of(response.status, answer)
                    if response.status not in RETRY_STATUS:
                        raise error
                    asked_s = _seconds(response.headers.get("Retry-After"))
            except (aiohttp.ClientError, TimeoutError, OSError) as fault:
                error = Unreachable(0, "Unreachable", f"{self.config.server}: {fault or type(fault).__name__}")
            wait_s = min(wait_s * 2, MAX_WAIT_S)
            pause_s = wait_s * random.uniform(0.5, 1.0) if asked_s is None else asked_s + random.uniform(0, 0.2)
            if time.monotonic() + pause_s > deadline_s:
                raise error
            self.retries += 1
            await asyncio.sleep(pause_s)

    def _headers(self, content_type: str | None) -> dict[str, str]:
        headers = {} if content_type is None else {"Content-Type": content_type}
        token = self.config.bearer()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        return headers

    def _count(self, method: str, path: str) -> None:
        words = path.split("/")
        kind = words[5] if len(words) > 5 and words[3] == "namespaces" else words[-1] if len(words) < 5 else words[4]
        if words[1] == "apis":
            kind = words[6] if len(words) > 6 and words[4] == "namespaces" else words[4] if len(words) > 4 else kind
        sub = words[-1] if words[-1] in ("binding", "status", "eviction", "bindings") else ""
        name = f"{method} {kind}" + (f"/{sub}" if sub and sub != kind else "")
        self.writes[name] = self.writes.get(name, 0) + 1

    async def get(self, path: str, *, urgent: bool = False, **params: str) -> Object:
        return await self.request("GET", path, params=params or None, urgent=urgent)

    async def text(self, path: str, **params: str) -> bytes:
        """An answer that is no JSON, such as a log; one attempt."""
        assert self._session is not None, "open the client first"
        async with self._session.get(
            self.config.server + path,
            params=params or None,
            headers={**self._headers(None), "Accept": "*/*"},
            timeout=aiohttp.ClientTimeout(total=60.0),
        ) as response:
            answer = await response.read()
            if response.status >= 400:
                raise _error_of(response.status, answer)
            return answer

    async def create(self, path: str, body: Object | bytes, **options: Any) -> Object:
        return await self.request("POST", path, body=body, **options)

    async def replace(self, path: str, body: Object | bytes, **options: Any) -> Object:
        return await self.request("PUT", path, body=body, **options)

    async def patch(self, path: str, body: Any, kind: str = "merge", **options: Any) -> Object:
        return await self.request("PATCH", path, body=body, content_type=PATCHES[kind], **options)

    async def delete(
        self,
        path: str,
        *,
        grace_s: int | None = None,
        uid: str | None = None,
        propagation: str | None = None,
        **options: Any,
    ) -> Object:
        """`uid`: only if it is still that object."""
        wanted: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace_s is not None:
            wanted["gracePeriodSeconds"] = grace_s
        if uid is not None:
            wanted["preconditions"] = {"uid": uid}
        if propagation is not None:
            wanted["propagationPolicy"] = propagation
        return await self.request("DELETE", path, body=wanted, **options)

    async def list_all(self, path: str, *, page: int = 1000, **params: str) -> tuple[list[Object], str]:
        """Every object of a collection and the version the list is of."""
        found: list[Object] = []
        version = ""
        async for items, listed in self.pages(path, page=page, **params):
            found += items
            version = listed
        return found, version

    async def pages(self, path: str, *, page: int = 1000, **params: str) -> AsyncIterator[tuple[list[Object], str]]:
        """A collection in parts, each with the version the list is of: whoever keeps little of an object need not hold
        all of them whole."""
        asked = {**params, "limit": str(page)}
        while True:
            answer = await self.request("GET", path, params=asked, timeout_s=60.0)
            meta = answer.get("metadata", {})
            yield answer.get("items") or [], str(meta.get("resourceVersion", ""))
            if not meta.get("continue"):
                return
            asked["continue"] = meta["continue"]

    # -- watching ------------------------------------------------------------------------------------

    async def watch(self, path: str, version: str, **params: str) -> AsyncIterator[tuple[str, Object]]:
        """Changes after `version`, as (type, object), until the server ends the watch. `Expired`: list again."""
        assert self._watching is not None, "open the client first"
        asked = {
            **params,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(random.randint(280, 400)),
        }
        try:
            async with self._watching.get(
                self.config.server + path,
                params=asked,
                headers=self._headers(None),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=STALL_S),
            ) as response:
                if response.status >= 400:
                    raise _error_of(response.status, await response.read())
                rest = b""
                async for piece in response.content.iter_any():
                    lines = (rest + piece).split(b"\n") if rest else piece.split(b"\n")
                    rest = lines.pop()
                    for line in lines:
                        told = orjson.loads(line)
                        if told["type"] == "ERROR":
                            status = told["object"]
                            raise _error_of(int(status.get("code") or 500), orjson.dumps(status))
                        yield told["type"], told["object"]
        except (aiohttp.ClientError, TimeoutError, OSError) as fault:
            raise Unreachable(0, "Unreachable", f"{self.config.server}: {fault or type(fault).__name__}") from fault


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else max(float(text), 0.0)
    except ValueError:
        return None

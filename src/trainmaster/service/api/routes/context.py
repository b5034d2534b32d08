"""What every route needs: the gateway, who asks, and answers as JSON without going through models again."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends, Request, Response

from trainmaster.forecast.forecast import Outlook
from trainmaster.model.foreign import parse_json
from trainmaster.service.api.job_api import JobApi
from trainmaster.service.api.problems import Forbidden
from trainmaster.service.control.gateway import TimelyGateway
from trainmaster.service.local.tokens import OPERATOR, Principal
from trainmaster.wire.api import Problem

MAX_PAGES_AT_ONCE = 2
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem} for status in (400, 401, 403, 404, 405, 409, 413, 422, 429, 503)
}


@dataclass
class Context:
    """Shared by all requests of one application."""

    gateway: TimelyGateway
    job_api: JobApi
    backend: str
    foretell: Callable[[Mapping[str, Any]], Awaitable[dict[str, Outlook]]] | None = None
    """Answers questions about jobs that are not there; None: this service does not look ahead."""
    started_s: float = field(default_factory=time.time)
    pages: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_PAGES_AT_ONCE))
    """Pages of jobs that are put together; more wait, so that other requests have their turn in between."""
    previews: int = 0
    """How many are under way."""
    health: tuple[float, dict[str, Any]] = field(default_factory=lambda: (time.monotonic(), {"status": "ok"}))
    """When the control plane was last asked how it is, and its answer."""


def context_of(request: Request) -> Context:
    return request.app.state.context


async def _context(request: Request) -> Context:
    return context_of(request)


def credentials(request: Request) -> str | None:
    """The API server keeps the usual header to itself when it passes requests on, so another one serves as well."""
    return request.headers.get("x-trainmaster-authorization") or request.headers.get("authorization")


async def _anyone(request: Request) -> Principal:
    return await context_of(request).job_api.identify(credentials(request))


async def _operator(who: Annotated[Principal, Depends(_anyone)]) -> Principal:
    if who.role != OPERATOR:
        raise Forbidden("this is for operators", expected="a token of an operator")
    return who


Here = Annotated[Context, Depends(_context)]
Anyone = Annotated[Principal, Depends(_anyone)]
Operator = Annotated[Principal, Depends(_operator)]


def answer(data: Any, status: int = 200) -> Response:
    """What is no number is null: one figure of one job must not refuse a page of jobs."""
    try:
        body = json.dumps(data, separators=(",", ":"), allow_nan=False)
    except ValueError:
        body = json.dumps(parse_json(json.dumps(data)), separators=(",", ":"))
    return Response(body.encode(), status, media_type="application/json")

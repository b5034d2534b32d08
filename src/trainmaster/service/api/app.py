"""The REST application: routes, errors as `Problem`, the limit on bodies, health and metrics."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from trainmaster import __version__
from trainmaster.jobspec.reading import fault_of
from trainmaster.model.errors import TrainmasterError
from trainmaster.service.api.docs_page import docs_page
from trainmaster.service.api.limits import BodyLimit, Message, Receive, Scope, Send
from trainmaster.service.api.metrics import exposition
from trainmaster.service.api.problems import headers_of, problem_of
from trainmaster.service.api.routes import cluster, jobs
from trainmaster.service.api.routes.context import Context, answer, context_of
from trainmaster.service.control import requests as ask
from trainmaster.wire.api import Problem

PREFIX = "/api/v1"
HEALTH_S = 0.5
BUSY_S = 60.0
MAX_TOLD = 200
UNFORESEEN = Problem(what="the service could not carry this request out; its log says why")
log = logging.getLogger("trainmaster.api")


def build_app(context: Context) -> BodyLimit:
    """The application as ASGI servers take it."""
    app = FastAPI(
        title="Trainmaster",
        version=__version__,
        description="Schedules deep-learning training. All of `/api/v1` needs `Authorization: Bearer TOKEN`.",
        docs_url=None,
        redoc_url=None,
        separate_input_output_schemas=False,
        openapi_url="/openapi.json",
    )
    app.state.context = context
    app.include_router(jobs.router, prefix=PREFIX)
    app.include_router(cluster.router, prefix=PREFIX)
    app.add_api_route("/docs", docs_page, methods=["GET"], include_in_schema=False)
    app.add_api_route("/healthz", _healthz, methods=["GET"], tags=["service"])
    app.add_api_route("/livez", _livez, methods=["GET"], tags=["service"])
    app.add_api_route("/readyz", _healthz, methods=["GET"], tags=["service"])
    app.add_api_route("/metrics", _metrics, methods=["GET"], tags=["service"])
    app.add_exception_handler(TrainmasterError, _known_error)
    app.add_exception_handler(RequestValidationError, _bad_request)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unforeseen)
    return BodyLimit(_FailsAlone(_SubmissionsFirst(app), context))


class _FailsAlone:
    """What nobody foresaw in a route refuses this request, and operators hear of it."""

    def __init__(self, app: _SubmissionsFirst, context: Context) -> None:
        self.app = app
        self.context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def noting(message: Message) -> None:
            nonlocal begun
            begun = begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, noting)
        except ClientDisconnect:
            return
        except Exception as error:
            await self._note(f"{scope.get('method')} {scope.get('path')}"[:MAX_TOLD], error)
            if not begun:
                await _refusal(500, UNFORESEEN)(scope, receive, send)

    async def _note(self, what: str, error: Exception) -> None:
        try:
            await self.context.gateway.ask(ask.Read(lambda views: views.plane.set_aside(what, None, error)))
        except Exception:  # nobody is there to count it
            log.error("set aside: %s", what, exc_info=error)


class _SubmissionsFirst:
    """The busy route without the framework's routing and layers, which cost as much as the rest of its handling."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] != f"{PREFIX}/jobs":
            await self.app(scope, receive, send)
            return
        scope["app"] = self.app
        request = Request(scope, receive)
        try:
            response = await jobs.submit(request)
        except TrainmasterError as error:
            response = await _known_error(request, error)
        except HTTPException as error:
            response = await _http_error(request, error)
        await response(scope, receive, send)


async def _livez() -> Response:
    """200 while the process answers at all; whether it can serve is another question (`/readyz`)."""
    return answer({"status": "ok"})


async def _healthz(request: Request) -> Response:
    """200 when requests can be served; 503 with the reason when the store fails. Within a second: while a batch takes
    long, the last answer holds for `BUSY_S`."""
    context = context_of(request)
    health = await context.gateway.ask_soon(ask.Inspect(ask.health), HEALTH_S)
    if health is not None:
        context.health = (time.monotonic(), health)
    else:
        seen_s, health = context.health
        if time.monotonic() - seen_s > BUSY_S:
            health = {"status": "busy", "what": f"the scheduler has not answered for {BUSY_S:g} s"}
    return answer(health, 200 if health["status"] == "ok" else 503)


async def _metrics(request: Request) -> Response:
    text = await context_of(request).gateway.ask(ask.Inspect(exposition))
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _refusal(status: int, problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    response = answer(problem.model_dump(), status)
    for key, value in {**(headers or {}), **headers_of(status)}.items():
        response.headers[key] = value
    return response


async def _known_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, TrainmasterError)
    return _refusal(*problem_of(error))


async def _unforeseen(_: Request, __: Exception) -> Response:
    return _refusal(500, UNFORESEEN)


async def _bad_request(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first, *others = error.errors()
    place = tuple(part for part in first["loc"] if part not in ("body", "query", "path")) or first["loc"]
    return _refusal(*problem_of(fault_of([{**first, "loc": place}, *others])))


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _refusal(error.status_code, Problem(what=str(error.detail)), error.headers)

"""The busy route, `POST /api/v1/jobs`, answered before the framework is asked: routing and declared parameters would
cost more than all the rest of a submission. What it answers is what the declared route answers, by the same code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException

from trainmaster.jobspec.reading import request_from_json
from trainmaster.model.errors import TrainmasterError
from trainmaster.service.limits import App, Receive, Scope, Send
from trainmaster.service.problems import headers_of, problem_of
from trainmaster.service.routes.context import Context
from trainmaster.wire.api import Problem

OWN_HEADER = b"x-trainmaster-authorization"


async def accept(here: Context, authorization: str | None, body: bytes) -> dict[str, Any]:
    """The answer to a submission, once the job is safe; raises what refuses it."""
    who = await here.desk.identify(authorization)
    return await here.desk.submit(who, request_from_json(body))


class SubmissionRoute:
    """An application that answers submissions itself and hands everything else on."""

    def __init__(self, app: App, here: Context, path: str) -> None:
        self.app = app
        self.here = here
        self.path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] != self.path:
            await self.app(scope, receive, send)
            return
        extra: Mapping[str, str] = {}
        try:
            body = await _body(receive)
            if body is None:
                return
            answer, status = await accept(self.here, _authorization(scope), body), 201
        except TrainmasterError as error:
            status, problem = problem_of(error)
            answer, extra = problem.model_dump(), headers_of(status)
        except HTTPException as error:
            status, answer = error.status_code, Problem(what=str(error.detail)).model_dump()
        data = json.dumps(answer, separators=(",", ":")).encode()
        headers = [(b"content-length", b"%d" % len(data)), (b"content-type", b"application/json")]
        headers += [(key.lower().encode(), value.encode()) for key, value in extra.items()]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": data})


def _authorization(scope: Scope) -> str | None:
    """As `credentials` of the declared routes."""
    found = {key: value for key, value in scope["headers"] if key in (OWN_HEADER, b"authorization")}
    value = found.get(OWN_HEADER) or found.get(b"authorization")
    return None if value is None else value.decode("latin-1")


async def _body(receive: Receive) -> bytes | None:
    """All of it; None when the client has gone away."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)

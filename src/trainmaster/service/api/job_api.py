"""What stands between a client and the control plane: who asks, what they may see and do, where changes are made.

On one machine tokens say who asks, everybody sees everything, and changes go straight to the control plane
(`LocalJobApi`). On Kubernetes the API server knows the users and their rights, and jobs are its objects
(`kubernetes/job_writer.py`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from trainmaster.jobspec.limits import Workers
from trainmaster.jobspec.model import JobRequest
from trainmaster.model.errors import InputError
from trainmaster.service.api.views import Json
from trainmaster.service.control import requests as ask
from trainmaster.service.control.gateway import Gateway
from trainmaster.service.local.logs import Chunk, LogFolder
from trainmaster.service.local.tokens import Principal, Tokens

Spaces = frozenset[str] | None
"""Namespaces that a user sees; None: all there are."""
_ID = re.compile(r"\b([a-z0-9](?:[-a-z0-9]*[a-z0-9])?)\.[a-z](?:[-a-z0-9]*[a-z0-9])?\.[0-9a-f]{8}\b")
HIDDEN = "(a job in another namespace)"


class JobApi(Protocol):
    async def identify(self, authorization: str | None) -> Principal: ...

    async def seen(self, who: Principal) -> Spaces:
        """Namespaces of whose jobs this user may know."""
        ...

    async def see_job(self, who: Principal, text: str) -> str:
        """The id that a text stands for; refuses what this user may not see."""
        ...

    async def see_everything(self, who: Principal, what: str) -> None:
        """Refuse those who may not see all jobs and nodes."""
        ...

    async def check_submission(self, who: Principal, body: JobRequest) -> None:
        """Refuse what `submit` would refuse for reasons that the control plane does not know."""
        ...

    async def submit(self, who: Principal, body: JobRequest) -> Json: ...

    async def act(self, who: Principal, text: str, action: str) -> Json: ...

    async def resize(self, who: Principal, text: str, workers: Workers) -> Json: ...

    async def edit(self, who: Principal, text: str, changes: Json) -> Json: ...

    async def read_log(
        self, who: Principal, job_id: str, attempt: int | None, member: str | None, offset: int, limit: int
    ) -> Chunk: ...


class LocalJobApi:
    """One machine: tokens, and nothing to hide."""

    def __init__(
        self,
        gateway: Gateway,
        tokens: Tokens,
        logs: LogFolder,
        snapshots: Callable[[JobRequest, str], str] | None = None,
    ) -> None:
        """`snapshots(request, user)` copies the work folder of a request and names the copy; None: nothing runs."""
        self.gateway = gateway
        self.tokens = tokens
        self.logs = logs
        self.snapshots = snapshots

    async def identify(self, authorization: str | None) -> Principal:
        return self.tokens.who(authorization)

    async def seen(self, who: Principal) -> Spaces:  # noqa: ARG002 - part of the protocol
        return None

    async def see_job(self, who: Principal, text: str) -> str:  # noqa: ARG002
        return await self.gateway.ask(ask.Read(lambda views: ask.find(views.plane, text)))

    async def see_everything(self, who: Principal, what: str) -> None:
        pass

    async def check_submission(self, who: Principal, body: JobRequest) -> None:  # noqa: ARG002
        for field in ("image", "namespace"):
            if getattr(body, field) is not None:
                raise InputError("is for Kubernetes; this service starts processes", "no such field", column=field)
        if body.snapshot and self.snapshots is None:
            raise InputError("is for jobs that run; here they are simulated", "no such field", column="snapshot")
        if body.snapshot and body.workdir is None:
            raise InputError("no work folder to copy", "the field `workdir` too", column="snapshot")

    async def submit(self, who: Principal, body: JobRequest) -> Json:
        await self.check_submission(who, body)
        snapshot = ""
        if body.snapshot and self.snapshots is not None:
            snapshot = await asyncio.to_thread(self.snapshots, body, who.name)
        return await self.gateway.ask(ask.Submit(body, who, snapshot))

    async def act(self, who: Principal, text: str, action: str) -> Json:
        return await self.gateway.ask(ask.Act(text, who, action))

    async def resize(self, who: Principal, text: str, workers: Workers) -> Json:
        return await self.gateway.ask(ask.Resize(text, who, workers))

    async def edit(self, who: Principal, text: str, changes: Json) -> Json:
        return await self.gateway.ask(ask.Edit(text, who, changes))

    async def read_log(
        self,
        who: Principal,  # noqa: ARG002
        job_id: str,
        attempt: int | None,
        member: str | None,
        offset: int,
        limit: int,
    ) -> Chunk:
        return self.logs.read(job_id, attempt, member, offset, limit)


def space_of(job_id: str | None) -> str | None:
    """The namespace in an id such as `vision.resnet.0a1b2c3d`."""
    match = _ID.fullmatch(job_id or "")
    return None if match is None else match[1]


def masked(text: str, spaces: Spaces) -> str:
    """The text without the names of jobs that the reader may not know of."""
    if spaces is None:
        return text
    return _ID.sub(lambda match: match[0] if match[1] in spaces else HIDDEN, text)


def without_hidden(view: Json, spaces: Spaces) -> Json:
    """A job's view, or why it waits, for one who does not see everything."""
    if spaces is None:
        return view
    made = {**view}
    for key in ("reason", "text"):
        if isinstance(made.get(key), str):
            made[key] = masked(made[key], spaces)
    if "holders" in made:
        made["holders"] = [[job if _shown(job, spaces) else HIDDEN, gpus] for job, gpus in made["holders"]]
        made["advice"] = [masked(line, spaces) for line in made["advice"]]
        made["behind"] = made["behind"] if made["behind"] is None or _shown(made["behind"], spaces) else HIDDEN
    return made


def _shown(job_id: str, spaces: frozenset[str]) -> bool:
    space = space_of(job_id)
    return space is None or space in spaces


def only_seen(job_ids: Iterable[Any], spaces: Spaces) -> list[Any]:
    return list(job_ids) if spaces is None else [job for job in job_ids if _shown(job, spaces)]

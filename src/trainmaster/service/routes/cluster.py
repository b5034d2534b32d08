"""The cluster and the service: nodes, events, teams, policy."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query, Response

from trainmaster.service import requests as ask
from trainmaster.service.routes.context import REFUSALS, Anyone, Here, Operator, answer
from trainmaster.service.routes.jobs import WaitS
from trainmaster.service.views import MAX_PAGE
from trainmaster.wire.api import EntityRequest, EntityView, EventPage, Name, NodeView, PolicyRequest, ServiceView

router = APIRouter(responses=REFUSALS)


@router.get("/nodes", tags=["cluster"], response_model=list[NodeView])
async def nodes(here: Here, who: Anyone) -> Response:  # noqa: ARG001
    return answer(await here.gateway.ask(ask.Read(lambda views: views.nodes())))


@router.get("/events", tags=["cluster"], response_model=EventPage)
async def events(
    here: Here,
    who: Anyone,  # noqa: ARG001
    after: Annotated[int, Query(ge=0, le=2**62, description="Events above this number.")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    job: Annotated[str | None, Query(max_length=200)] = None,
    last: Annotated[int | None, Query(ge=1, le=MAX_PAGE, description="Of all jobs: only the newest so many.")] = None,
    wait_s: WaitS = 0.0,
) -> Response:
    """What happened, in order. With `wait_s`, waits for something to happen."""
    until_s = time.monotonic() + wait_s
    while True:
        page = await here.gateway.ask(
            ask.Read(
                lambda views: views.events(after, limit, None if job is None else ask.find(views.plane, job), last)
            )
        )
        left_s = until_s - time.monotonic()
        if page["events"] or left_s <= 0:
            return answer(page)
        await here.gateway.news(left_s)


@router.get("/entities", tags=["teams"], response_model=list[EntityView])
async def entities(here: Here, who: Anyone) -> Response:  # noqa: ARG001
    return answer(await here.gateway.ask(ask.Read(lambda views: views.entities())))


@router.put("/entities/{name}", tags=["teams"], response_model=EntityView)
async def set_entity(name: Name, body: EntityRequest, here: Here, who: Operator) -> Response:  # noqa: ARG001
    """Set a team's weight and quota; for operators."""
    return answer(await here.gateway.ask(ask.SetEntity(name, body)))


@router.get("/service", tags=["service"], response_model=ServiceView)
async def service(here: Here, who: Anyone) -> Response:
    look = ask.Read(lambda views: views.service(here.backend, here.started_s, who.role))
    return answer(await here.gateway.ask(look))


@router.put("/policy", tags=["service"], response_model=ServiceView)
async def set_policy(body: PolicyRequest, here: Here, who: Operator) -> Response:
    """Let another policy decide from now on; what runs goes on. For operators."""
    await here.gateway.ask(ask.SetPolicy(body.policy))
    look = ask.Read(lambda views: views.service(here.backend, here.started_s, who.role))
    return answer(await here.gateway.ask(look))

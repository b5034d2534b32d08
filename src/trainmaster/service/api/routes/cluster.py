"""The cluster and the service: nodes, events, teams, policy."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from trainmaster.forecast.situation import to_json
from trainmaster.forecast.worker_request import situation_of
from trainmaster.jobspec.limits import Name
from trainmaster.service.api.job_api import only_seen
from trainmaster.service.api.routes.context import REFUSALS, Anyone, Here, Operator, answer
from trainmaster.service.api.routes.jobs import WaitS
from trainmaster.service.api.views import MAX_PAGE
from trainmaster.service.control import requests as ask
from trainmaster.wire.api import (
    AccuracyRow,
    ClockRequest,
    EntityRequest,
    EntityView,
    EventPage,
    NodeView,
    PolicyRequest,
    ServiceView,
    SpeedsKept,
    SpeedsRequest,
)

router = APIRouter(responses=REFUSALS)


@router.get("/nodes", tags=["cluster"], response_model=list[NodeView])
async def nodes(here: Here, who: Anyone) -> Response:
    await here.job_api.see_everything(who, "nodes")
    spaces = await here.job_api.seen(who)
    found = await here.gateway.ask(ask.Read(lambda views: views.nodes()))
    return answer([{**node, "jobs": only_seen(node["jobs"], spaces)} for node in found])


@router.get("/events", tags=["cluster"], response_model=EventPage)
async def events(
    here: Here,
    who: Anyone,
    after: Annotated[int, Query(ge=0, le=2**62, description="Events above this number.")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    job: Annotated[str | None, Query(max_length=200)] = None,
    last: Annotated[int | None, Query(ge=1, le=MAX_PAGE, description="Of all jobs: only the newest so many.")] = None,
    wait_s: WaitS = 0.0,
) -> Response:
    """What happened, in order. With `wait_s`, waits for something to happen."""
    until_s = time.monotonic() + wait_s
    job_id = None if job is None else await here.job_api.see_job(who, job)
    spaces = await here.job_api.seen(who)
    while True:
        begin = after
        page = await here.gateway.ask(ask.Read(lambda views, begin=begin: views.events(begin, limit, job_id, last)))
        if spaces is not None:
            page["events"] = [event for event in page["events"] if only_seen([event["job"] or ""], spaces)]
        left_s = until_s - time.monotonic()
        if page["events"] or left_s <= 0:
            return answer(page)
        after = page["next"]
        await here.gateway.news(left_s)


@router.get("/entities", tags=["teams"], response_model=list[EntityView])
async def entities(here: Here, who: Anyone) -> Response:
    spaces = await here.job_api.seen(who)
    found = await here.gateway.ask(ask.Read(lambda views: views.entities()))
    return answer([team for team in found if spaces is None or team["name"] in spaces])


@router.put("/entities/{name}", tags=["teams"], response_model=EntityView)
async def set_entity(name: Name, body: EntityRequest, here: Here, who: Operator) -> Response:  # noqa: ARG001
    """Set a team's weight, quota, and how its jobs divide what it gets; for operators."""
    return answer(await here.gateway.ask(ask.SetEntity(name, body)))


@router.get("/situation", tags=["foresight"], response_model=dict[str, Any])
async def situation(here: Here, who: Anyone) -> Response:
    """The present queue, for `trainmaster whatif`; put together outside the thread that schedules."""
    await here.job_api.see_everything(who, "trainingjobs")
    asked = await here.gateway.ask(ask.Read(lambda views: views.question()))
    return answer(await asyncio.to_thread(lambda: to_json(situation_of(asked))))


@router.get("/accuracy", tags=["foresight"], response_model=list[AccuracyRow])
async def accuracy(here: Here, who: Anyone) -> Response:  # noqa: ARG001
    """How good the predicted finish times were."""
    return answer(await here.gateway.ask(ask.Read(lambda views: views.accuracy())))


@router.post("/speeds", tags=["foresight"], response_model=SpeedsKept)
async def keep_speeds(body: SpeedsRequest, here: Here, who: Operator) -> Response:
    """Keep measured speeds for jobs of a model; the same user's next measurement at a place replaces this one. For
    operators."""
    return answer(await here.gateway.ask(ask.KeepSpeeds(body, who)))


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


@router.put("/clock", tags=["service"], response_model=ServiceView)
async def confirm_clock(body: ClockRequest, here: Here, who: Operator) -> Response:  # noqa: ARG001
    """Say that the wall clock is right after it has jumped; for operators."""
    await here.gateway.ask(ask.ConfirmClock())
    look = ask.Read(lambda views: views.service(here.backend, here.started_s, who.role))
    return answer(await here.gateway.ask(look))

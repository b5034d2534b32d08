"""Jobs: submit, list, look at, steer, read the logs of."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response

from trainmaster.forecast.forecast import Outlook, note
from trainmaster.forecast.process import Unforeseen
from trainmaster.jobspec.reading import request_from_json
from trainmaster.model.errors import InputError
from trainmaster.model.job import State
from trainmaster.service.api.job_api import without_hidden
from trainmaster.service.api.problems import NotFound, TooMany, Unavailable
from trainmaster.service.api.routes.context import REFUSALS, Anyone, Here, answer, context_of, credentials
from trainmaster.service.api.views import MAX_PAGE
from trainmaster.service.control import requests as ask
from trainmaster.wire.api import Accepted, JobPage, JobView, LogChunk, Preview, ResizeRequest, SpeedsView, WhyView

router = APIRouter(prefix="/jobs", tags=["jobs"], responses=REFUSALS)
Job = Annotated[str, Path(max_length=200, description="An id, or a name that only one job has.")]
WaitS = Annotated[float, Query(ge=0, le=60, description="How long to wait for something new.")]
_POLL_S = 0.2
MAX_PREVIEWS = 4
"""Previews at once: each is a simulation, and they are answered one after the other."""
_ACTIVE = ("pending", "running", "paused")
_STATES = frozenset(state.value for state in State)


_JOB_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/JobRequest"}}},
    }
}


@router.post("", status_code=201, response_model=Accepted, openapi_extra=_JOB_BODY)
async def submit(request: Request) -> Response:
    """Accept a job. It survives any crash once this has answered; the same `request_id` again gives the same answer."""
    job_api = context_of(request).job_api
    who = await job_api.identify(credentials(request))
    return answer(await job_api.submit(who, request_from_json(await request.body())), 201)


@router.post("/preview", response_model=Preview, openapi_extra=_JOB_BODY)
async def preview(request: Request, here: Here, who: Anyone) -> Response:
    """When a job like this would start and finish if it were submitted now; nothing is changed."""
    if here.foretell is None:
        raise NotFound("this service does not look ahead")
    body = request_from_json(await request.body())
    await here.job_api.check_submission(who, body)
    if here.previews >= MAX_PREVIEWS:
        raise TooMany(
            f"{here.previews} previews are under way",
            expected=f"at most {MAX_PREVIEWS} at once",
            remedy="Try again in a few seconds; submitting works all the same.",
        )
    here.previews += 1
    try:
        outlooks = await here.foretell(await here.gateway.ask(ask.Preview(body, who)))
    except Unforeseen as error:
        raise Unavailable(f"no forecast: {error}", remedy="Try again; submitting works all the same.") from None
    finally:
        here.previews -= 1
    return answer({"jobs": [_foreseen(outlook, body.deadline_s) for outlook in outlooks.values()]})


def _foreseen(outlook: Outlook, deadline_s: float | None) -> dict[str, Any]:
    eta = outlook.finish
    return {
        "starts": None if outlook.start is None else asdict(outlook.start),
        "eta": None if eta is None else asdict(eta),
        "ends_as": outlook.ends_as,
        "work_known": outlook.known,
        "eta_note": note(outlook),
        "slack_s": None if eta is None or deadline_s is None else deadline_s - eta.p50_s,
    }


@router.get("", response_model=JobPage)
async def jobs(
    here: Here,
    who: Anyone,
    state: Annotated[
        list[str] | None, Query(description="States, repeated or with commas; `active`: not over.")
    ] = None,
    name: Annotated[str | None, Query(max_length=200)] = None,
    entity: Annotated[str | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    cursor: Annotated[str | None, Query(max_length=40)] = None,
) -> Response:
    """A page of jobs, oldest first."""
    states, spaces = _states(state), await here.job_api.seen(who)
    look = ask.Read(lambda views: views.jobs(states, name, entity, limit, cursor, spaces=spaces), who)
    async with here.pages:
        page = await here.gateway.ask(look)
        return answer({**page, "jobs": [without_hidden(view, spaces) for view in page["jobs"]]})


def _states(given: list[str] | None) -> frozenset[str] | None:
    if given is None:
        return None
    wanted: set[str] = set()
    for word in filter(None, (part.strip() for item in given for part in item.split(","))):
        if word == "active":
            wanted.update(_ACTIVE)
        elif word in _STATES:
            wanted.add(word)
        else:
            raise InputError(f"unknown state '{word[:40]}'", f"active or {', '.join(sorted(_STATES))}", column="state")
    return frozenset(wanted) or None


@router.get("/{job}", response_model=JobView)
async def job(job: Job, here: Here, who: Anyone) -> Response:
    job_id = await here.job_api.see_job(who, job)
    view = await here.gateway.ask(ask.Read(lambda views: views.job(job_id), who))
    return answer(without_hidden(view, await here.job_api.seen(who)))


@router.get("/{job}/why", response_model=WhyView)
async def why(job: Job, here: Here, who: Anyone) -> Response:
    """Why it waits: what is short, who holds it, the smallest change that would start it."""
    job_id = await here.job_api.see_job(who, job)
    view = await here.gateway.ask(ask.Read(lambda views: views.why(job_id)))
    return answer(without_hidden(view, await here.job_api.seen(who)))


@router.get("/{job}/speeds", response_model=SpeedsView)
async def speeds(job: Job, here: Here, who: Anyone) -> Response:
    """What is believed of its speed at every size: by what it and jobs alike measured, and by what it says."""
    job_id = await here.job_api.see_job(who, job)
    return answer(await here.gateway.ask(ask.Read(lambda views: views.speeds(job_id))))


@router.post("/{job}/resize", response_model=JobView)
async def resize(job: Job, body: ResizeRequest, here: Here, who: Anyone) -> Response:
    """Change how many workers it may have."""
    return answer(await here.job_api.resize(who, job, body.workers))


@router.post("/{job}/edit", response_model=JobView)
async def edit(job: Job, body: dict[str, Any], here: Here, who: Anyone) -> Response:
    """Change priority, weight, deadline, run time or size of a job that is not over; null takes a limit away."""
    return answer(await here.job_api.edit(who, job, body))


@router.post("/{job}/{action}", response_model=JobView)
async def act(job: Job, action: Literal["cancel", "pause", "resume"], here: Here, who: Anyone) -> Response:
    return answer(await here.job_api.act(who, job, action))


@router.get("/{job}/logs", response_model=LogChunk)
async def logs(
    job: Job,
    here: Here,
    who: Anyone,
    attempt: Annotated[int | None, Query(ge=1, description="Default: the last.")] = None,
    member: Annotated[str | None, Query(max_length=200, description="Default: the first worker.")] = None,
    offset: Annotated[int, Query(ge=-(2**53), le=2**53, description="Negative: from the end.")] = 0,
    limit: Annotated[int, Query(ge=1, le=1 << 20)] = 1 << 16,
    wait_s: WaitS = 0.0,
) -> Response:
    """A piece of a log. `ended`: nothing more will come of this attempt."""
    until_s = time.monotonic() + wait_s
    job_id = await here.job_api.see_job(who, job)
    while True:
        # State first: what the log holds after the job was seen to be over is all that it will ever hold.
        state = await here.gateway.ask(ask.Read(lambda views: ask.log_state(views.plane, job_id)))
        chunk = await here.job_api.read_log(who, state.job_id, attempt, member, offset, limit)
        over = not state.active or chunk.attempt < state.generation
        if chunk.text or over or time.monotonic() >= until_s:
            break
        await asyncio.sleep(_POLL_S)
    piece = asdict(chunk)
    return answer({**piece, "ended": over and chunk.offset >= piece.pop("size")})

"""A service in memory that speaks `wire.api` over a real socket, for the commands to talk to."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import uvicorn
from click.testing import CliRunner
from fastapi import FastAPI, Query, Request
from fastapi.responses import JSONResponse

from trainmaster.cli.main import app
from trainmaster.wire import api

TOKEN = "secret-token"


def job_view(job: str, **changes: Any) -> api.JobView:
    request = changes.pop("request", api.JobRequest(command=["python", "train.py"]))
    facts: dict[str, Any] = {
        "id": job, "name": request.name or job, "state": "pending", "phase": "pending", "reason": "", "why": "",
        "position": None, "allocation": [], "eta_s": None, "slack_s": None, "attempts": 0, "preemptions": 0,
        "submitted": 1_800_000_000.0, "started": None, "ended": None, "exit": None, "emulated": False, "cost": None,
        "progress": api.ProgressView(work_done=0, work_total=None, fraction=None, rate=None, loss=None),
        "request": request,
    }  # fmt: skip
    return api.JobView(**{**facts, **changes})


class FakeService:
    """State that tests set up and look at."""

    def __init__(self) -> None:
        self.url = ""
        self.jobs: dict[str, api.JobView] = {}
        self.submitted: list[api.JobRequest] = []
        self.asked: list[tuple[str, str]] = []
        self.logs: dict[tuple[str, int, str], str] = {}
        self.why: dict[str, api.WhyView] = {}
        self.nodes: list[api.NodeView] = []
        self.events: list[api.EventView] = []
        self.entities: dict[str, api.EntityView] = {}
        self.policy = "fifo"
        self.clock_jump_s = 0.0
        self.on_submit: Callable[[str], None] = lambda job: None
        self.break_next = 0
        """So many requests are received and then cut off without an answer."""
        self._known: dict[str, list[str]] = {}

    def add(self, job: str, **changes: Any) -> api.JobView:
        self.jobs[job] = job_view(job, **changes)
        return self.jobs[job]

    def change(self, job: str, **changes: Any) -> None:
        self.jobs[job] = self.jobs[job].model_copy(update=changes)

    def accept(self, request: api.JobRequest) -> api.Accepted:
        key = request.request_id or str(len(self._known))
        if key not in self._known:
            self.submitted.append(request)
            ids = [f"job-{len(self.jobs) + 1 + index}" for index in range(request.array or 1)]
            self._known[key] = ids
            for job in ids:
                self.add(job, request=request, reason="needs 1 GPU; free: none", why="capacity", position=1)
                self.on_submit(job)
        return api.Accepted(id=self._known[key][0], ids=self._known[key])


class _Problem(Exception):
    def __init__(self, status: int, what: str, **rest: str) -> None:
        self.status, self.body = status, api.Problem(what=what, **rest)


def _app(fake: FakeService) -> FastAPI:
    web = FastAPI()

    @web.exception_handler(_Problem)
    async def told(_: Request, problem: _Problem) -> JSONResponse:
        return JSONResponse(problem.body.model_dump(), problem.status)

    @web.middleware("http")
    async def gate(request: Request, call_next: Any) -> Any:
        path = request.url.path
        fake.asked.append((request.method, path))
        if path != "/healthz" and request.headers.get("authorization") != f"Bearer {TOKEN}":
            return JSONResponse(api.Problem(what="the token is not known").model_dump(), 401)
        answer = await call_next(request)
        if fake.break_next:
            fake.break_next -= 1
            return JSONResponse(api.Problem(what="the store is busy", remedy="Try again.").model_dump(), 503)
        return answer

    def found(job: str) -> api.JobView:
        if job in fake.jobs:
            return fake.jobs[job]
        named = [view for view in fake.jobs.values() if view.name == job]
        if len(named) != 1:
            raise _Problem(404, f"job '{job}' not found")
        return named[0]

    @web.get("/healthz")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    @web.post("/api/v1/jobs", status_code=201)
    def submit(request: api.JobRequest) -> api.Accepted:
        if "nothere" in request.gpu_types:
            raise _Problem(
                422, "it runs on nothere; the cluster has v100=4", where="gpu_types", expected="a known type"
            )
        return fake.accept(request)

    @web.post("/api/v1/jobs/preview")
    def preview(request: api.JobRequest) -> api.Preview:
        if "nothere" in request.gpu_types:
            raise _Problem(422, "it runs on nothere", where="gpu_types", expected="a known type")
        known = request.steps is not None
        bands = [api.Band(p05_s=s - 5, p50_s=s, p90_s=s + 8, p95_s=s + 10) for s in (60, 600)]
        slack_s = None if request.deadline_s is None else request.deadline_s - 600
        job = api.Foreseen(starts=bands[0], eta=bands[1], ends_as="finished", work_known=known, slack_s=slack_s)
        return api.Preview(jobs=[job] * (request.array or 1))

    @web.get("/api/v1/jobs")
    def jobs(
        state: Annotated[list[str], Query()] = [],  # noqa: B006
        limit: int = 100,
        cursor: str | None = None,
        entity: str | None = None,
    ) -> api.JobPage:
        chosen = [view for view in fake.jobs.values() if not state or view.state in state]
        chosen = [view for view in chosen if entity is None or view.request.entity == entity]
        first = int(cursor or 0)
        last = first + min(limit, 3)  # small pages, so that paging is exercised
        return api.JobPage(jobs=chosen[first:last], cursor=str(last) if last < len(chosen) else None, total=len(chosen))

    @web.get("/api/v1/jobs/{job}")
    def one(job: str) -> api.JobView:
        return found(job)

    @web.get("/api/v1/jobs/{job}/why")
    def why(job: str) -> api.WhyView:
        return fake.why[found(job).id]

    @web.get("/api/v1/jobs/{job}/logs")
    def logs(
        job: str, attempt: int | None = None, member: str | None = None, offset: int = 0, wait_s: float = 0
    ) -> api.LogChunk:
        view = found(job)
        attempts = max((number for name, number, _ in fake.logs if name == view.id), default=0)
        attempt = attempt or attempts
        members = sorted({who for name, number, who in fake.logs if name == view.id and number == attempt})
        if member is None:
            member = next((who for who in members if who.startswith("worker")), members[0] if members else "")
        elif member not in members:
            raise _Problem(404, f"member '{member}' not found", expected=", ".join(members))
        text = fake.logs.get((view.id, attempt, member), "").encode()
        over = attempt < attempts or view.state not in ("pending", "running", "paused")
        piece = text[offset : offset + 20].decode(errors="replace")
        if not piece and not over and wait_s:
            time.sleep(0.01)
        return api.LogChunk(
            text=piece, attempt=attempt, member=member, members=members, attempts=attempts,
            offset=min(len(text), offset + 20), ended=over and offset + 20 >= len(text),
        )  # fmt: skip

    @web.post("/api/v1/jobs/{job}/resize")
    def resize(job: str, request: api.ResizeRequest) -> api.JobView:
        view = found(job)
        fake.change(view.id, request=view.request.model_copy(update={"workers": request.workers}))
        return fake.jobs[view.id]

    @web.post("/api/v1/jobs/{job}/{verb}")
    def control(job: str, verb: str) -> api.JobView:
        view = found(job)
        if view.state in ("finished", "failed", "cancelled", "rejected"):
            raise _Problem(409, f"{view.id} is {view.state}", remedy="Nothing to do.")
        fake.change(view.id, state={"cancel": "cancelled", "pause": "paused", "resume": "pending"}[verb])
        return fake.jobs[view.id]

    @web.get("/api/v1/nodes")
    def nodes() -> list[api.NodeView]:
        return fake.nodes

    @web.get("/api/v1/events")
    def events(after: int = 0, limit: int = 100, job: str | None = None) -> api.EventPage:
        chosen = [event for event in fake.events if event.number > after and job in (None, event.job)][: min(limit, 2)]
        return api.EventPage(events=chosen, next=chosen[-1].number if chosen else after)

    @web.get("/api/v1/entities")
    def entities() -> list[api.EntityView]:
        return list(fake.entities.values())

    @web.put("/api/v1/entities/{name}")
    def set_entity(name: str, request: api.EntityRequest) -> api.EntityView:
        fake.entities[name] = api.EntityView(name=name, used_gpus=0, jobs=0, **request.model_dump())
        return fake.entities[name]

    @web.put("/api/v1/policy")
    def set_policy(request: api.PolicyRequest) -> dict[str, str]:
        if request.policy == "fifi":
            raise _Problem(422, "unknown policy 'fifi'", where="policy", expected="a known one")
        fake.policy = request.policy
        return {}

    @web.put("/api/v1/clock")
    def confirm(request: api.ClockRequest) -> dict[str, str]:
        fake.clock_jump_s = 0.0
        return {}

    @web.get("/api/v1/service")
    def service() -> api.ServiceView:
        counts: dict[str, int] = {}
        for view in fake.jobs.values():
            counts[view.state] = counts.get(view.state, 0) + 1
        return api.ServiceView(
            version="0.1.0", policy=fake.policy, backend="local", cluster="v100=4", emulated=True,
            started=1_800_000_000.0, jobs=counts, decisions=7, plans_refused=0, role="operator",
            clock_jump_s=fake.clock_jump_s,
        )  # fmt: skip

    return web


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeService]:
    """A running fake service; the home folder that the commands find points to it."""
    fake = FakeService()
    server = uvicorn.Server(uvicorn.Config(_app(fake), port=0, log_level="critical", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    fake.url = f"http://127.0.0.1:{port}"
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "address").write_text(f"{fake.url}\n")
    (home / "token").write_text(f"{TOKEN}\n")
    (home / "token").chmod(0o600)
    monkeypatch.setenv("TRAINMASTER_HOME", str(home))
    monkeypatch.delenv("TRAINMASTER_URL", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").touch()
    monkeypatch.chdir(work)
    yield fake
    server.should_exit = True
    thread.join(5)


@pytest.fixture
def invoke() -> Callable[..., tuple[int, str, str]]:
    def call(*arguments: object) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.stdout, result.stderr

    return call


@pytest.fixture
def as_json(invoke: Callable[..., tuple[int, str, str]]) -> Callable[..., Any]:
    def call(*arguments: object) -> Any:
        code, out, err = invoke(*arguments, "-o", "json")
        assert (code, err) == (0, "")
        return json.loads(out)

    return call

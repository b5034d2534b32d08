"""Faults that nobody foresaw, at every handler: the one that fails is refused or set aside, the others are carried out,
operators are told without secrets, and the service goes on and starts again."""

from __future__ import annotations

import inspect
import io
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from service_bench import ANN_TOKEN, BOB_TOKEN, OPERATOR_TOKEN, Bench

from trainmaster.dst.control_plane.inline_asgi import Call, PausingGateway, exchange
from trainmaster.engine.engine import HANDLERS, Engine
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.estimate.speeds.learned import LearningEstimator
from trainmaster.jobspec.limits import Workers
from trainmaster.jobspec.model import JobRequest
from trainmaster.model import event as ev
from trainmaster.model.command import Command
from trainmaster.model.errors import TrainmasterError
from trainmaster.model.job import JobId, JobSpec
from trainmaster.service.api.app import build_app
from trainmaster.service.api.job_api import LocalJobApi
from trainmaster.service.api.routes.context import Context
from trainmaster.service.api.views import Views
from trainmaster.service.control import requests as ask
from trainmaster.service.control.control_plane import Request
from trainmaster.service.control.forecasts import LiveForecasts
from trainmaster.service.local.logs import LogFolder
from trainmaster.service.local.tokens import OPERATOR, Principal, Tokens
from trainmaster.service.log_setup import open_logbook
from trainmaster.stores.sqlite import SqliteStore
from trainmaster.wire.api import EntityRequest, MeasuredSpeed, SpeedsRequest

SECRET = "s3cret-of-ann"
SECRETS = (SECRET, OPERATOR_TOKEN, ANN_TOKEN, BOB_TOKEN)
FAULTS = [ZeroDivisionError("7/0"), RecursionError("deep"), OverflowError("9" * 401), KeyError("x")]
WHO = Principal("owner", OPERATOR)
SPEEDS = SpeedsRequest(
    model="resnet", measured=[MeasuredSpeed(accelerator="v100", workers=1, steps_per_s=2, seconds=60)]
)
JOB = JobRequest(command=["train"], name="bystander", env={"KEY": SECRET})


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[io.StringIO]:
    """Where a service in the foreground logs to; its file is beside."""
    root, stream = logging.getLogger(), io.StringIO()
    handlers, level = root.handlers[:], root.level
    open_logbook(tmp_path)
    _, shown = mine = root.handlers[:]
    assert isinstance(shown, logging.StreamHandler)
    shown.setStream(stream)
    yield stream
    root.handlers[:] = [*handlers, *(each for each in root.handlers if each not in mine)]
    root.setLevel(level)
    mine[0].close()
    structlog.reset_defaults()


@pytest.fixture
def bench(tmp_path: Path, terminal: io.StringIO) -> Bench:
    bench = Bench(tmp_path, SqliteStore(tmp_path / "store.db", durable=False))
    forecasts = LiveForecasts(LearningEstimator(DeclaredSpeeds()), tmp_path / "store.db")
    bench.start(live_forecasts=forecasts)
    return bench


def burst(fault: Exception, token: str) -> None:
    """In a frame that has a secret."""
    raise fault


def check_told(bench: Bench, terminal: io.StringIO, fault: Exception, count: int = 1) -> None:
    """A metric, an event, a line in both logs; no secret anywhere."""
    assert bench.plane.tally.set_aside == count
    metrics = exchange(bench.app, "", [Call("GET", "/metrics")], lambda asked: bench.plane.batch(asked))[0]
    assert f"trainmaster_set_aside_total {count}.0" in metrics.body.decode()
    bench.plane.batch([])
    told = [entry for entry in bench.get("/events", query="limit=500")["events"] if entry["kind"] == "set-aside"]
    assert len(told) == count and all(type(fault).__name__ in entry["text"] for entry in told)
    log = (bench.home / "service.log").read_text()
    for text in (log, terminal.getvalue()):
        assert "set aside" in text and type(fault).__name__ in text
    for text in (log, terminal.getvalue(), str(told)):
        assert not any(secret in text for secret in SECRETS), "not even as the value of a variable"


def check_goes_on(bench: Bench) -> None:
    assert bench.state(bench.submit()) in ("pending", "running")
    shown = [view["name"] for view in bench.get("/jobs")["jobs"]]
    bench.start()
    assert [view["name"] for view in bench.get("/jobs")["jobs"]] == shown
    bench.pass_s(20)
    assert bench.get("/service")["version"]


# -- requests ------------------------------------------------------------------------------------------------

REQUESTS: dict[type, Callable[[str], Request[Any]]] = {
    ask.Read: lambda job: ask.Read(lambda views: views.job(job), WHO),
    ask.Submit: lambda job: ask.Submit(JOB, WHO),
    ask.Preview: lambda job: ask.Preview(JOB, WHO),
    ask.Act: lambda job: ask.Act(job, "pause", WHO),
    ask.Resize: lambda job: ask.Resize(job, Workers(min=1, max=2), WHO),
    ask.Edit: lambda job: ask.Edit(job, {"priority": 5}, WHO),
    ask.SetPolicy: lambda job: ask.SetPolicy("srtf"),
    ask.SetEntity: lambda job: ask.SetEntity("team", EntityRequest(weight=2)),
    ask.KeepSpeeds: lambda job: ask.KeepSpeeds(SPEEDS, WHO),
    ask.ConfirmClock: lambda job: ask.ConfirmClock(),
    ask.Inspect: lambda job: ask.Inspect(ask.health),
}


def test_there_is_an_example_of_every_request() -> None:
    kinds = {kind for _, kind in inspect.getmembers(ask, inspect.isclass) if kind.__module__ == ask.__name__}
    assert {kind for kind in kinds if hasattr(kind, "prepare")} == REQUESTS.keys()


@pytest.mark.parametrize("method", ["prepare", "answer"])
@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.__name__)
def test_a_request_fails_alone(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    terminal: io.StringIO,
    kind: type,
    method: str,
) -> None:
    job = bench.submit(env={"KEY": SECRET})
    fault = FAULTS[len(kind.__name__) % len(FAULTS)]
    victim, whole = REQUESTS[kind](job), getattr(kind, method)

    def fail(request: Any, plane: Any) -> Any:
        result = whole(request, plane)  # what it has staged is forgotten
        if request is victim:
            burst(fault, OPERATOR_TOKEN)
        return result

    monkeypatch.setattr(kind, method, fail)
    first, refused, seen = bench.plane.batch([ask.Submit(JOB, WHO), victim, ask.Read(lambda views: views.counts())])
    assert isinstance(refused, TrainmasterError) and str(fault) not in str(refused)
    assert bench.get(f"/jobs/{first['id']}")["name"] == "bystander"
    assert sum(seen.values()) >= 2
    if method == "prepare":
        assert bench.get("/jobs")["total"] == 2 and bench.plane.policy_name == "fifo", "nothing of it was done"
    monkeypatch.undo()
    check_told(bench, terminal, fault)
    check_goes_on(bench)


class Broken(PausingGateway):
    """Fails the first request that it is asked."""

    fault: Exception | None = None

    async def ask(self, request: Any) -> Any:
        fault, self.fault = self.fault, None
        if fault is not None:
            burst(fault, OPERATOR_TOKEN)
        return await super().ask(request)


def test_every_route_fails_alone(bench: Bench, terminal: io.StringIO) -> None:
    """In the route itself, before and beside the control plane."""
    gateway = Broken()
    tokens = Tokens([(OPERATOR_TOKEN, WHO)])
    bench.app = build_app(
        Context(gateway, LocalJobApi(gateway, tokens, LogFolder(bench.home)), "simulated", bench.foretell, 0.0)
    )
    job, tried = bench.submit(env={"KEY": SECRET}), 0
    bodies = {
        "/jobs": {"command": ["x"]}, "/jobs/preview": {"command": ["x"]}, "/policy": {"policy": "srtf"},
        f"/jobs/{job}/resize": {"workers": {"min": 1, "max": 2}}, f"/jobs/{job}/edit": {"priority": 5},
        "/clock": {"confirmed": True}, "/speeds": SPEEDS.model_dump(), "/entities/team": {"weight": 2},
    }  # fmt: skip
    for path, operations in bench.openapi()["paths"].items():
        for method in operations:
            if not path.startswith("/api/v1"):
                continue
            route = path.removeprefix("/api/v1")
            for name, value in (("job", job), ("name", "team"), ("action", "pause")):
                route = route.replace(f"{{{name}}}", value)
            gateway.fault, tried = FAULTS[tried % len(FAULTS)], tried + 1
            reply = bench.call(method.upper(), route, bodies.get(route))
            assert (reply.status, gateway.fault) == (500, None), (method, route, reply)
            assert "log says why" in reply.json()["what"] and SECRET not in reply.body.decode()
            assert bench.plane.tally.set_aside == tried, (method, route)
    assert tried >= 17
    assert bench.get("/service")["policy"] == "fifo", "nothing was done"
    log = (bench.home / "service.log").read_text()
    for text in (log, terminal.getvalue()):
        assert not any(secret in text for secret in SECRETS)
    check_goes_on(bench)


# -- events and reports --------------------------------------------------------------------------------------


def examples(bench: Bench, job: JobId) -> dict[type, ev.Event]:
    everything = frozenset(range(len(bench.cluster.nodes)))
    return {
        type(event): event
        for event in (
            ev.JobSubmitted(JobSpec(JobId("job-9"), name="late")), ev.JobCancelled(job), ev.JobPaused(job),
            ev.JobResumed(job), ev.JobHalted(job, "why"), ev.JobRoomChanged(job, ""), ev.JobRangeChanged(job, 1, 2),
            ev.JobTermsChanged(job, priority=1), ev.EntityChanged("team", 2.0), ev.PolicyChanged(), ev.Woken(),
            ev.SpeedsLearned(),
            ev.Started(job, 1, 0.0, 0), ev.StartFailed(job, 1, "why"),
            ev.Resized(job, 1, 2, 0.0, 0), ev.Progressed(job, 1, 5.0, 0, 1.0, 0.5),
            ev.Exited(job, 1, 1, 5.0), ev.Stopped(job, 1, 5.0), ev.NodeJoined(0), ev.NodeSet("s", everything),
            ev.ClusterGrew(bench.cluster), ev.NodeUsed(0), ev.NodeLost(0, 0, False), ev.Inventory((), 0, everything),
        )
    }  # fmt: skip


@pytest.mark.parametrize("kind", HANDLERS, ids=lambda kind: kind.__name__)
def test_a_report_fails_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch, terminal: io.StringIO, kind: type) -> None:
    job, other = JobId(bench.submit(env={"KEY": SECRET})), JobId(bench.submit())
    bench.pass_s(1)
    victim, whole = examples(bench, job)[kind], HANDLERS[kind]
    fault = FAULTS[len(kind.__name__) % len(FAULTS)]

    def fail(engine: Engine, event: Any) -> None:
        whole(engine, event)  # half done, and more than half
        if event is victim:
            burst(fault, OPERATOR_TOKEN)

    monkeypatch.setitem(HANDLERS, kind, fail)
    reports = [ev.Progressed(other, 1, 7.0, 0), victim, ev.Progressed(other, 1, 9.0, 0)]
    (outcome,) = bench.plane.batch([ask.Submit(JOB, WHO)], reports)
    assert outcome["id"] == "job-3"
    assert bench.state(job) == "running", "as if it had not been said"
    assert bench.get(f"/jobs/{other}")["progress"]["work_done"] >= 9.0
    monkeypatch.undo()
    check_told(bench, terminal, fault)
    check_goes_on(bench)


def test_of_many_reports_the_bad_ones_are_found_by_halves(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [JobId(bench.submit()) for _ in range(100)]
    whole, before = HANDLERS[ev.Progressed], bench.plane.tally.batches

    def fail(engine: Engine, event: Any) -> None:
        if event.job_id in (jobs[3], jobs[70]):
            raise ZeroDivisionError
        whole(engine, event)

    monkeypatch.setitem(HANDLERS, ev.Progressed, fail)
    bench.plane.batch([], [ev.Progressed(job, 1, 5.0, 0) for job in jobs])
    assert bench.plane.tally.set_aside == 2
    assert bench.plane.tally.batches - before < 30, "not one commit for each"


# -- what follows a commit -----------------------------------------------------------------------------------


def test_a_command_fails_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch, terminal: io.StringIO) -> None:
    whole, fault = bench.perform, ZeroDivisionError("7/0")

    def perform(command: Command) -> None:
        if command.job_id == "job-1":
            burst(fault, OPERATOR_TOKEN)
        whole(command)

    monkeypatch.setattr(bench, "perform", perform)
    replies = bench.calls([Call("POST", "/api/v1/jobs", {"command": ["x"], "env": {"K": SECRET}}) for _ in range(2)])
    assert [reply.json()["id"] for reply in replies] == ["job-1", "job-2"], "accepted once each"
    bench.pass_s(1)
    assert (bench.state("job-1"), bench.state("job-2")) == ("pending", "running")
    monkeypatch.undo()
    check_told(bench, terminal, fault, count=bench.plane.tally.set_aside)
    bench.pass_s(120)
    assert bench.state("job-1") == "running", "the command is sent again"
    check_goes_on(bench)


@pytest.mark.parametrize("part", ["_told", "_committed", "stepped", "wake", "look_ahead", "observe"])
def test_what_nothing_rests_on_fails_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, terminal: io.StringIO, part: str
) -> None:
    fault = RecursionError("deep")

    def fail(*_: Any) -> None:
        monkeypatch.undo()
        burst(fault, OPERATOR_TOKEN)

    owner = bench.plane.live_forecasts if hasattr(bench.plane.live_forecasts, part) else bench.plane
    monkeypatch.setattr(bench if part == "observe" else owner, part, fail)
    job = bench.submit()
    bench.pass_s(30)
    assert bench.get("/jobs")["total"] == 1 and bench.state(job) == "running"
    check_told(bench, terminal, fault)
    check_goes_on(bench)


def test_a_job_that_cannot_be_shown_hides_no_other(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good, over = bench.submit(), bench.submit(), bench.submit(steps=1)
    bench.pass_s(10)
    whole_one, whole_ended = Views._one, Views._ended

    def one(views: Views, state: Any) -> Any:
        return 1 / 0 if state.spec.id == bad else whole_one(views, state)

    def ended(views: Views, record: Any) -> Any:
        return 1 / 0 if record["spec"]["id"] == over else whole_ended(views, record)

    monkeypatch.setattr(Views, "_one", one)
    monkeypatch.setattr(Views, "_ended", ended)
    assert [view["id"] for view in bench.get("/jobs")["jobs"]] == [good]
    assert bench.plane.tally.set_aside == 2


def test_a_figure_that_is_no_number_is_null(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    job, whole = bench.submit(), Views._one

    def one(views: Views, state: Any) -> Any:
        return {**whole(views, state), "cost": float("nan")}

    monkeypatch.setattr(Views, "_one", one)
    assert bench.get("/jobs")["jobs"][0]["cost"] is None
    assert bench.get(f"/jobs/{job}")["cost"] is None

"""Every field of every way in, with every hostile value: refused by an error of ours, or taken and kept.

Ways in: REST, YAML files, options and TrainingJobs; lines of members, launchers and supervisors; records of the store;
traces. Fields are those of the models, so that a new one is tried without further ado.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from service_bench import Bench

from support import trace_formats
from support.hostile import DEEP, HOSTILE, MILLION, ODD, as_json, as_text, example, training_job
from trainmaster.backends.kubernetes.resources.crd import crd
from trainmaster.backends.kubernetes.resources.training_job import spec_of_trainingjob
from trainmaster.backends.local.control_socket import LiveRun
from trainmaster.backends.local.run_folder import EndRecord, JobFolder, end_from_json, end_to_json, saved_work
from trainmaster.cli.live.submission.job_options import JobOptions, option_of
from trainmaster.cli.live.submission.request import build
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.estimate.speeds.learned import LearningEstimator
from trainmaster.gang import protocol as wire
from trainmaster.gang.actions import Seat
from trainmaster.gang.attempt import Attempt, Rules
from trainmaster.jobspec.model import CRD_PATHS, JobRequest, Option, TrainingJobSpec, note_of
from trainmaster.model import codec
from trainmaster.model.allocation import Allocation, Part
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.command import Launch, Resize, Stop
from trainmaster.model.errors import InputError
from trainmaster.model.foreign import MAX_NUMBER, is_finite, is_whole, parse_json
from trainmaster.model.job import JobId, JobSpec
from trainmaster.policies.registry import create
from trainmaster.service.api.app import build_app
from trainmaster.service.api.routes.context import Context
from trainmaster.service.control.forecasts import LiveForecasts
from trainmaster.service.local.tokens import OPERATOR, Principal
from trainmaster.sim.run import simulate
from trainmaster.sim.workload import workload
from trainmaster.stores.sqlite import SqliteStore
from trainmaster.traces import load
from trainmaster.traces.importers import known_formats
from trainmaster.traces.schema import JOB_COLUMNS

GOOD: dict[str, Any] = {"command": ["true"], "image": "x:1"}
ALL = {**HOSTILE, **ODD}

# -- jobs ----------------------------------------------------------------------------------------------------


def placed(field: str, value: Any) -> list[Any]:
    """The value itself, and inside the containers that the field takes."""
    annotation = str(JobRequest.model_fields[field].annotation)
    if field in ("workers", "servers"):
        return [value, {"min": value}, {"min": 1, "max": value}]
    if "dict" in annotation:
        return [value, {"k": value}] + (
            [{value: 1 if field == "steps_per_s" else "x"}] if isinstance(value, str) else []
        )
    if "list" in annotation:
        return [value, [value], ["true", value]]
    return [value]


CASES = [
    (field, name, position, value)
    for field in JobRequest.model_fields
    for name, hostile in HOSTILE.items()
    for position, value in enumerate(placed(field, hostile))
]
IDS = [f"{field}-{name}-{position}" for field, name, position, _ in CASES]


class JobApi:
    """Stands where submissions would go on to: none of these may."""

    async def identify(self, _: Any) -> Principal:
        return Principal("ann", OPERATOR)

    async def check_submission(self, _: Any, request: JobRequest) -> None:
        raise AssertionError(f"accepted {str(request)[:200]}")

    async def submit(self, _: Any, request: JobRequest) -> dict[str, Any]:
        raise AssertionError(f"accepted {str(request)[:200]}")


async def foretell(_: Any) -> Any:
    raise AssertionError


APP = build_app(Context(None, JobApi(), "simulated", foretell))  # type: ignore[arg-type]


def posted(body: bytes, path: str = "/jobs") -> tuple[int, dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": f"/api/v1{path}", "query_string": b"",
        "headers": [(b"content-length", b"%d" % len(body))],
    }  # fmt: skip
    asyncio.run(APP(scope, receive, send))
    return sent[0]["status"], json.loads(sent[1]["body"])


@pytest.mark.parametrize(("field", "name", "position", "value"), CASES, ids=IDS)
def test_rest(field: str, name: str, position: int, value: Any) -> None:
    good = {key: known for key, known in GOOD.items() if key != field}
    for path in ("/jobs", "/jobs/preview"):
        status, problem = posted(as_json({**good, field: value}).encode(), path)
        assert status == 422, problem
        assert problem["where"].partition(".")[0] == field, problem
        assert len(str(problem)) < 1_000


def test_a_body_with_a_million_items_is_refused_before_it_is_read() -> None:
    status, problem = posted(as_json({**GOOD, "after": MILLION}).encode())
    assert status == 413 and "too large" in problem["what"]


@pytest.mark.parametrize(("field", "name", "position", "value"), CASES, ids=IDS)
def test_yaml(field: str, name: str, position: int, value: Any, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    text = as_json({**{key: known for key, known in GOOD.items() if key != field}, field: value})
    path.write_text(text.replace("NaN", ".nan").replace("-Infinity", "-.inf").replace("Infinity", ".inf"))
    with pytest.raises(InputError) as caught:
        build(JobOptions({}, path), 0.0)
    assert field in str(caught.value) and "job.yaml" in str(caught.value)
    assert len(str(caught.value)) < 1_000


ANY_TEXT = {"command", "name", "gpu_types", "model", "entity", "after", "env", "image", "namespace", "workdir"}
"""Options that take words: digits are words as well."""
WORDS = {"lone surrogate": "\udcff", "NUL": "a\0b", "long text": "x" * 200_000}
NUMBERS = {
    "401 digits": "9" * 401, "5000 digits": "9" * 5000, "2**70": str(2**70), "-2**70": str(-(2**70)), "NaN": "nan",
    "infinity": "inf", "minus infinity": "-inf", "deep": "[" * 5_000,
}  # fmt: skip


def typed_cases() -> list[Any]:
    cases = []
    for field in JobRequest.model_fields:
        note: Option = note_of(JobRequest, field, Option)
        if note.hidden or note.sets is not None:
            continue
        for name, text in (WORDS if field in ANY_TEXT else {**WORDS, **NUMBERS}).items():
            pair = {"env": f"K={text}", "steps_per_s": f"v100={text}"}.get(field, text)
            repeated = field in ("command", "gpu_types", "after", "env", "steps_per_s")
            cases.append(pytest.param(field, [pair] if repeated else pair, id=f"{field}-{name}"))
    return cases


@pytest.mark.parametrize(("field", "text"), typed_cases())
def test_options(field: str, text: Any) -> None:
    with pytest.raises(InputError) as caught:
        build(JobOptions({"command": ["true"], field: text}), 0.0)
    assert caught.value.column == option_of(field)


@pytest.mark.parametrize("field", ["gpu_types", "after", "env", "steps_per_s", "command"])
def test_an_option_given_too_often(field: str) -> None:
    texts = [f"k{number}=1" for number in range(5_000)]
    with pytest.raises(InputError) as caught:
        build(JobOptions({"command": ["true"], field: texts}), 0.0)
    assert caught.value.column == option_of(field)


SHARED = [case for case in CASES if case[0] in TrainingJobSpec.model_fields and "5000 digits" not in case[1]]


@pytest.mark.parametrize(
    ("field", "name", "position", "value"), SHARED, ids=[f"{field}-{name}-{at}" for field, name, at, _ in SHARED]
)
def test_training_jobs_that_slipped_past_the_api_server(field: str, name: str, position: int, value: Any) -> None:
    deep: Any = []
    for _ in range(5_000):
        deep = [deep]
    text = json.dumps(value)
    given = deep if value == DEEP else {"k": deep} if DEEP in text else value
    if DEEP in text and isinstance(value, list):
        given = [deep]
    with pytest.raises(InputError) as caught:
        spec_of_trainingjob(training_job({field: given}), 0)
    assert str(caught.value.column).startswith(f"spec.{CRD_PATHS[field]}")


def test_every_field_of_the_crd_is_bounded() -> None:
    """What the API server can be taught, it checks with the same bounds."""
    spec = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    for field, path in CRD_PATHS.items():
        *parents, key = path.split(".")
        found = spec
        for parent in parents:
            found = found[parent]["properties"]
        if field not in ("template", "server_template"):
            assert unbounded(found[key]) == [], field


def unbounded(schema: dict[str, Any]) -> list[str]:
    kind = schema["type"]
    bound = {
        "integer": "maximum", "number": "maximum", "string": "maxLength", "array": "maxItems",
        "object": "maxProperties",
    }.get(kind)  # fmt: skip
    wrong: list[str] = []
    if "properties" in schema:
        return [item for part in schema["properties"].values() for item in unbounded(part)]
    if bound and bound not in schema and "enum" not in schema and "{0,62}" not in schema.get("pattern", ""):
        wrong.append(str(schema))
    for part in ("items", "additionalProperties"):
        if part in schema:
            wrong += unbounded(schema[part])
    return wrong


def test_yaml_is_read_as_yaml(tmp_path: Path) -> None:
    """The helper above writes JSON, which is YAML too; a good file passes, so that refusals mean something."""
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump({**GOOD, "workers": {"min": 1, "max": 4}}))
    assert build(JobOptions({}, path), 0.0).body["workers"] == {"min": 1, "max": 4}


# -- REST as a whole -----------------------------------------------------------------------------------------


def live_bench(home: Path) -> Bench:
    bench = Bench(home, SqliteStore(home / "trainmaster.db", durable=False))
    restart(bench)
    return bench


def restart(bench: Bench) -> None:
    forecasts = LiveForecasts(LearningEstimator(DeclaredSpeeds()), bench.home / "trainmaster.db")
    bench.start(live_forecasts=forecasts)


@pytest.mark.parametrize("field", JobRequest.model_fields)
def test_what_is_taken_is_kept(field: str, tmp_path: Path) -> None:
    bench = live_bench(tmp_path)
    for odd in ODD.values():
        for value in placed(field, odd):
            body = {**GOOD, "steps": 100, field: value}
            first, second = (bench.call("POST", path, body) for path in ("/jobs", "/jobs/preview"))
            assert first.status in (201, 404, 409, 422), first.body
            assert second.status in (200, 404, 409, 422), second.body
    bench.pass_s(5)
    shown = bench.get("/jobs", query="limit=1000")
    restart(bench)
    assert bench.get("/jobs", query="limit=1000")["jobs"] == shown["jobs"], "as it was, after a restart too"


def routes(bench: Bench) -> Iterator[tuple[str, str, dict[str, Any], list[str]]]:
    """Method, path, operation and the fields of the body, of every route."""
    document = bench.openapi()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            names: list[str] = []
            if content:  # what changes a job has fields of one
                reference = content["schema"].get("$ref", "/JobRequest").rpartition("/")[2]
                names = [*document["components"]["schemas"][reference]["properties"]]
            if path.startswith("/api/v1"):
                yield method.upper(), path.removeprefix("/api/v1"), operation, names


def test_every_parameter_and_body_of_every_route(tmp_path: Path) -> None:
    from urllib.parse import quote

    bench = live_bench(tmp_path)
    job = bench.submit(name="victim", workers={"min": 1, "max": 2})
    tried = 0
    for method, path, operation, body_fields in routes(bench):
        good = path.replace("{job}", job).replace("{name}", "team").replace("{action}", "pause")
        for value in ALL.values():
            text = quote(as_text(value)[:3000], safe="")
            calls: list[tuple[str, Any, str]] = []
            for parameter in operation.get("parameters", ()):
                name = parameter["name"]
                if parameter["in"] == "path":
                    there = path.replace(f"{{{name}}}", text).replace("{job}", job).replace("{action}", "x")
                    calls.append((there, None, ""))
                elif name != "wait_s" or not text[:1].isdigit():
                    calls.append((good, None, f"{name}={text}"))
            calls += [(good, {name: value}, "") for name in body_fields if path not in ("/jobs", "/jobs/preview")]
            for target, body, query in calls:
                tried += 1
                reply = bench.call(method, target, body, query=query)
                assert reply.status < 500, (method, target[:200], str(body)[:200], query[:200], reply.body[:500])
    assert tried > 500
    restart(bench)
    assert bench.get(f"/jobs/{job}")["name"] == "victim"


# -- lines of members, launchers and supervisors -------------------------------------------------------------


def paths(data: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where values stand in data, containers included."""
    if here:
        yield here
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield from paths(value, (*here, key))


def changed(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The data with another value there; a key that is not there yet is added."""
    if not path:
        return value
    copy = list(data) if isinstance(data, list) else dict(data)
    missing = isinstance(copy, dict) and path[0] not in copy
    copy[path[0]] = changed({} if missing else copy[path[0]], path[1:], value)
    return copy


def numbers_of(data: Any) -> list[Any]:
    if isinstance(data, dict | list | tuple):
        parts = data.values() if isinstance(data, dict) else data
        return [number for part in parts for number in numbers_of(part)]
    return [data] if isinstance(data, int | float) and not isinstance(data, bool) else []


@pytest.mark.parametrize("kind", get_args(wire.Message), ids=lambda kind: kind.__name__)
def test_lines(kind: type[Any]) -> None:
    """A line is a message or a `WireError`; a message survives the next line, and the attempt that it is told to."""
    base = example(kind)
    assert isinstance(wire.decode(as_json(base).encode()), kind)
    for path in (*paths(base), ("unknown",)):
        for value in ALL.values():
            try:
                (message,) = wire.LineBuffer().feed(as_json(changed(base, path, value)).encode() + b"\n")
            except wire.WireError:
                continue
            assert all(is_whole(number) or is_finite(number, MAX_NUMBER) for number in numbers_of(asdict(message)))
            assert wire.decode(wire.encode(message)) == message
            attempt = Attempt(Rules(), int)
            attempt.set_target([Seat(wire.WORKER, "n0")], 1, launch=True)
            attempt.advance(0.0)
            attempt.on_message(next(iter(attempt.members)), message)
            for now_s in (1.0, 1e4):
                attempt.advance(now_s)
        with pytest.raises(wire.WireError):
            wire.LineBuffer().feed(as_json(changed(base, path, MILLION)).encode())


def test_what_a_supervisor_says(tmp_path: Path) -> None:
    """Its line and its files may have been written by the job: figures of the right size are taken, others are not."""
    from trainmaster.backends.local.control_socket import _STATUS_FIELDS

    run = LiveRun(JobFolder(tmp_path), JobFolder(tmp_path).run(1), "a", 1, 0)
    end = end_to_json(EndRecord("exited"))
    work = tmp_path / "work.json"
    for value in (*ALL.values(), MILLION):
        text = as_json(value)
        try:
            read = parse_json(text)
        except ValueError:
            read = None
        for name in _STATUS_FIELDS:
            run.take_status({name: read})
            figures = (run.work_at_start, run.applied_seq, run.work(0.0), run.status.get("loss", 0.0))
            assert all(math.isfinite(figure) and abs(figure) < 2**63 for figure in figures), (name, text[:80])
        run.take_status(read)
        for name in end:
            record = end_from_json({**end, name: read})
            assert abs(record.code) <= 256 and abs(record.seq) < 2**63 and record.why.encode() is not None
        work.write_text(f'{{"saved": {text}}}')
        assert 0 <= saved_work(work) <= 1e15
    told = {"started": True, "seen_seq": 3, "applied_seq": 2, "work_at_start": 5.0, "work": 9.0, "rate": 0.5,
            "loss": -1.0, "saved": 8.0, "checkpoints": True}  # fmt: skip
    run.take_status({**told, "other": 1})
    assert run.status == told, "all that the service asks for"


def check_message(error: InputError) -> None:
    assert len(str(error)) < 3_000
    str(error).encode()


# -- records of the store ------------------------------------------------------------------------------------

SPEC = JobSpec(
    id=JobId("job-1"), name="a", workers_max=2, servers_max=1, gpu_types=("v100",), work_total=5.0,
    steps_per_s={"v100": 2.0}, steps_per_s_spread={"v100": 1.0}, utility={"kind": "constant", "value": 1}, budget=1.0,
    batch_size=2, epochs_total=3.0, after=(JobId("job-0"),), payload={"command": ["x"], "env": {"A": "b"}},
)  # fmt: skip
ALLOCATION = Allocation(0, (Part(0, 1, 0, (0,)),), 1000)
COMMANDS = [Launch(SPEC.id, 1, 1, ALLOCATION, SPEC), Resize(SPEC.id, 1, 2, ALLOCATION), Stop(SPEC.id, 1, 3, "why")]
Codec = tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]
CODECS: dict[str, Codec] = {
    "spec": (codec.spec_to_json(SPEC), codec.spec_from_json, codec.spec_to_json),
    "allocation": (codec.allocation_to_json(ALLOCATION), codec.allocation_from_json, codec.allocation_to_json),
    **{
        type(command).__name__: (codec.command_to_json(command), codec.command_from_json, codec.command_to_json)
        for command in COMMANDS
    },
}


def record_fields(kind: Any) -> list[tuple[Any, ...]]:
    """Names of its fields, and of those of dataclasses among them."""
    found: list[tuple[Any, ...]] = []
    for each in fields(kind):
        found.append((each.name,))
        default = each.default if each.default is not MISSING else None
        if is_dataclass(default):
            found += [(each.name, *inner) for inner in record_fields(type(default))]
    return found


@pytest.mark.parametrize("name", CODECS)
def test_codecs(name: str) -> None:
    base, read, write = CODECS[name]
    assert write(read(base)) == base
    places = [*paths(base), ("unknown",), *(record_fields(JobSpec) if name == "spec" else ())]
    for path in places:
        for value in (*ALL.values(), MILLION):
            if value is MILLION and not isinstance(base.get(path[0]), list):
                continue  # once for each list is enough
            try:
                data = json.loads(as_json(changed(base, path, value)))  # as the stores read it
            except (RecursionError, ValueError):
                continue  # a store hands such a record on as unreadable
            try:
                record = read(data)
            except InputError as error:
                check_message(error)
                continue
            assert read(json.loads(json.dumps(write(record)))) == record, (path, str(value)[:80])


# -- traces --------------------------------------------------------------------------------------------------

SCALARS = [value for name, value in ALL.items() if not isinstance(value, list | dict) and name != "long text"]
CELLS = [*map(as_text, SCALARS), "[]"]
CLUSTER = parse_cluster("v100=2x2")


def run_trace(path: Path) -> None:
    """Refused with a message, or simulated to the end."""
    try:
        jobs = workload(load(path), CLUSTER).fit
        for spec in jobs:
            assert codec.spec_from_json(json.loads(json.dumps(codec.spec_to_json(spec)))) == spec
        if jobs:
            simulate(jobs, CLUSTER, create("fifo"))
    except InputError as error:
        check_message(error)


def table(rows: list[list[str]], delimiter: str) -> str:
    text = io.StringIO()
    quoting = csv.QUOTE_MINIMAL if delimiter == "," else csv.QUOTE_NONE
    csv.writer(text, delimiter=delimiter, lineterminator="\n", quoting=quoting, escapechar="\\").writerows(rows)
    return text.getvalue()


@pytest.mark.parametrize("column", [column.name for column in JOB_COLUMNS])
def test_columns_of_a_jobtrace(column: str, tmp_path: Path) -> None:
    good = {"job_id": "a", "submit_s": "0", "gpus": "1", "duration_s": "60", "model": "", "iterations": ""}
    names = [*good, *({column} - good.keys())]
    cells = [*CELLS, *(f'{{"weight": {cell}}}' for cell in CELLS)] if column == "extra" else CELLS
    for cell in cells:
        row = {**good, column: cell}
        (tmp_path / "t.csv").write_text(table([names, [row[name] for name in names]], ","))
        run_trace(tmp_path / "t.csv")


TABLES = {
    name: (text, "\t" if "GAVEL" in name else "|" if name == "SACCT" else ",")
    for name, text in vars(trace_formats).items()
    if name.isupper() and isinstance(text, str)
}
DOCUMENTS = {name: data for name, data in vars(trace_formats).items() if name in ("PHILLY", "KUEUE")}


def test_there_is_a_sample_of_every_format() -> None:
    from trainmaster.traces.importers import find_importer
    from trainmaster.traces.source import Source

    texts = [*(text for text, _ in TABLES.values()), *map(json.dumps, DOCUMENTS.values())]
    found = {importer.NAME for text in texts if (importer := find_importer(Source(Path("x"), text.encode())))}
    assert found == {*known_formats()}


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_columns_of_imported_tables(name: str, tmp_path: Path) -> None:
    text, delimiter = TABLES[name]
    rows = [line.split(delimiter) for line in text.splitlines()]
    first = 0 if name.startswith(("GAVEL", "PAI")) else 1
    for column in range(len(rows[first])):
        for cell in CELLS:
            given = [*rows]
            given[first] = [*rows[first][:column], cell, *rows[first][column + 1 :]]
            (tmp_path / "t").write_text(table(given, delimiter))
            run_trace(tmp_path / "t")


@pytest.mark.slow
@pytest.mark.parametrize("name", DOCUMENTS)
def test_fields_of_imported_documents(name: str, tmp_path: Path) -> None:
    for path in paths(DOCUMENTS[name]):
        for value in (*SCALARS, [], {}, [None]):
            (tmp_path / "t").write_text(as_json(changed(DOCUMENTS[name], path, value)))
            run_trace(tmp_path / "t")

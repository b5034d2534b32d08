"""Every field, with every hostile value, on every way in: refused with a message that names the field."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainmaster.backends.kubernetes.resources.crd import crd
from trainmaster.backends.kubernetes.resources.training_job import spec_of_trainingjob
from trainmaster.cli.live.submission.job_options import JobOptions, option_of
from trainmaster.cli.live.submission.request import build
from trainmaster.jobspec.model import CRD_PATHS, JobFields, JobRequest, Option, note_of
from trainmaster.model.errors import InputError
from trainmaster.service.api.app import build_app
from trainmaster.service.api.routes.context import Context

DEEP = "deep"
HOSTILE: dict[str, Any] = {
    "401 digits": int("9" * 401),
    "5000 digits": "5000 digits",
    "2**70": 2**70,
    "-2**70": -(2**70),
    "NaN": float("nan"),
    "infinity": float("inf"),
    "minus infinity": float("-inf"),
    "lone surrogate": "\ud800",
    "NUL": "a\0b",
    "long text": "x" * 200_000,
    "many items": ["x"] * 5_000,
    "many keys": {f"k{number}": "x" for number in range(2_000)},
    "deep": DEEP,
}
GOOD: dict[str, Any] = {"command": ["true"], "image": "x:1"}


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


def as_json(value: Any) -> str:
    return json.dumps(value).replace('"5000 digits"', "9" * 5000).replace('"deep"', "[" * 2000 + "]" * 2000)


class JobApi:
    """Stands where submissions would go on to: none of these may."""

    async def identify(self, _: Any) -> str:
        return "user"

    async def submit(self, _: Any, request: JobRequest) -> dict[str, Any]:
        raise AssertionError(f"accepted {str(request)[:200]}")


APP = build_app(Context(None, JobApi(), "simulated"))  # type: ignore[arg-type]


def posted(body: bytes) -> tuple[int, dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/api/v1/jobs", "query_string": b"",
        "headers": [(b"content-length", b"%d" % len(body))],
    }  # fmt: skip
    asyncio.run(APP(scope, receive, send))
    return sent[0]["status"], json.loads(sent[1]["body"])


@pytest.mark.parametrize(("field", "name", "position", "value"), CASES, ids=IDS)
def test_rest(field: str, name: str, position: int, value: Any) -> None:
    good = {key: known for key, known in GOOD.items() if key != field}
    status, problem = posted(as_json({**good, field: value}).encode())
    assert status == 422, problem
    assert problem["where"].partition(".")[0] == field, problem
    assert len(str(problem)) < 1_000


def test_a_body_with_a_million_items_is_refused_before_it_is_read() -> None:
    status, problem = posted(as_json({**GOOD, "after": ["x"] * 1_000_000}).encode())
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


SHARED = [case for case in CASES if case[0] in JobFields.model_fields and "5000 digits" not in case[1]]


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
    spec: dict[str, Any] = {"template": {"spec": {"containers": [{"name": "main", "image": "x"}]}}}
    *parents, key = CRD_PATHS[field].split(".")
    holder = spec
    for parent in parents:
        holder = holder.setdefault(parent, {})
    holder[key] = given
    meta = {"name": "a", "namespace": "b", "uid": "0a1b2c3d", "creationTimestamp": "2023-11-14T22:15:20Z"}
    with pytest.raises(InputError) as caught:
        spec_of_trainingjob({"metadata": meta, "spec": spec}, 0)
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

"""A field that is added to the model is found on every way in and out; what version 0.1 published still holds."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainmaster.backends.kubernetes.resources.crd import crd
from trainmaster.jobspec.engine import request_of
from trainmaster.jobspec.model import JobRequest, Option, note_of
from trainmaster.model.job import Demand, JobId, JobSpec

ROOT = Path(__file__).resolve().parents[3]

WITH_ANOTHER_FIELD = """
import sys, types, json
from pathlib import Path
import trainmaster.jobspec

path = Path(trainmaster.jobspec.__file__).with_name("model.py")
source = path.read_text().replace(
    "    after: Annotated[",
    "    colour: Annotated[of.Word | None, Field(description='Colour of the rack.')] = None\\n    after: Annotated[",
)
assert "colour" in source
module = types.ModuleType("trainmaster.jobspec.model")
sys.modules["trainmaster.jobspec.model"] = module
exec(compile(source, str(path), "exec"), module.__dict__)

from trainmaster.backends.kubernetes.resources.crd import crd
from trainmaster.backends.kubernetes.resources.training_job import spec_of_trainingjob
from trainmaster.cli.live.submission.job_options import JobOptions
from trainmaster.cli.live.submission.request import build
from trainmaster.jobspec.engine import request_of
from trainmaster.jobspec.reading import request_from_json
from trainmaster.jobspec.schema import json_schema
from trainmaster.jobspec.training_job import to_training_job
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.errors import InputError
from trainmaster.service.control.specs import spec_of

request = request_from_json(b'{"command": ["x"], "image": "i", "colour": "blue"}')
assert request.colour == "blue"
assert json_schema()["properties"]["colour"]["description"] == "Colour of the rack."
for bad in (b'5', b'""', b'"' + b"x" * 64 + b'"'):
    try:
        request_from_json(b'{"command": ["x"], "colour": %s}' % bad)
    except InputError as fault:
        assert fault.column == "colour", fault
    else:
        raise AssertionError(bad)
assert build(JobOptions({"command": ["x"], "colour": "red"}), 0.0).body["colour"] == "red"
spec = spec_of(request, "job-1", parse_cluster("v100=4"), 0)
assert request_of(spec)["colour"] == "blue"
made = to_training_job(request, "default", "r", None, "alice")
assert made["spec"]["colour"] == "blue"
made["metadata"].update(uid="0a1b2c3d", creationTimestamp="2023-11-14T22:15:20Z")
assert request_of(spec_of_trainingjob(made, 0))["colour"] == "blue"
properties = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
assert properties["properties"]["colour"]["maxLength"] == 63
assert any(rule["fieldPath"] == ".colour" for rule in properties["x-kubernetes-validations"]), "frozen"
from click.testing import CliRunner
from trainmaster.cli.main import app
assert "--colour" in CliRunner().invoke(app, ["submit", "--help"], env={"COLUMNS": "200"}).output
print("everywhere")
"""


def run(code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert not done.returncode, done.stderr[-2000:]
    return done.stdout.strip()


def test_a_new_field_is_found_everywhere() -> None:
    assert run(WITH_ANOTHER_FIELD) == "everywhere"


@pytest.mark.parametrize(
    "modules",
    [
        "trainmaster.jobspec.model, trainmaster.jobspec.reading, trainmaster.jobspec.schema",
        "trainmaster.client.client, trainmaster.client.kube_address",
    ],
)
def test_schema_and_client_are_leaves(modules: str) -> None:
    heavy = "('numpy', 'fastapi', 'typer', 'trainmaster.engine', 'trainmaster.cli')"
    assert run(f"import sys, {modules}; print([name for name in {heavy} if name in sys.modules])") == "[]"


def test_every_field_has_help_and_an_option_or_a_reason() -> None:
    for field, info in JobRequest.model_fields.items():
        assert info.description, field
        assert note_of(JobRequest, field, Option).hidden == (field in ("server_command", "request_id")), field


def test_training_jobs_of_version_0_1_are_valid() -> None:
    """Keys, types and defaults stay; bounds may only widen."""
    pinned = json.loads(gzip.decompress((ROOT / "tests/compatibility/v0_1/crd.json.gz").read_bytes()))
    old, new = (each["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"] for each in (pinned, crd()))
    assert without_words(new["status"]) == without_words(old["status"])
    assert_wider(old["spec"], new["spec"], "spec")


def without_words(schema: Any) -> Any:
    """Descriptions follow the glossary, not the version."""
    if isinstance(schema, dict):
        return {name: without_words(part) for name, part in schema.items() if name != "description"}
    return [without_words(part) for part in schema] if isinstance(schema, list) else schema


def assert_wider(old: dict[str, Any], new: dict[str, Any], where: str) -> None:
    assert new["type"] == old["type"], where
    # By default now: whether it is elastic, or says that it saves; the value of the PriorityClass.
    if where not in ("spec.preemptible", "spec.priority", "spec.workers"):
        assert new.get("default") == old.get("default"), where
    assert new.get("required", []) == old.get("required", []), where
    for bound in ("maximum", "maxLength", "maxItems", "maxProperties"):
        assert new.get(bound, float("inf")) >= old.get(bound, float("-inf")), (where, bound)
    assert new.get("minimum", float("-inf")) <= old.get("minimum", float("inf")), where
    assert set(new.get("enum", ())) >= set(old.get("enum", ())), where
    if where == "spec.utility":
        return
    for name, part in old.get("properties", {}).items():
        assert_wider(part, new["properties"][name], f"{where}.{name}")
    for part in ("items", "additionalProperties"):
        if part in old:
            assert_wider(old[part], new[part], f"{where}.{part}")


@pytest.mark.parametrize("payload", [
    {"command": ["python", "a.py"], "server_command": None, "env": {"A": "1"}, "workdir": "/x", "array_index": None,
     "array": None, "user": "ann", "wishes": {"name": "old", "weight": 2.0, "steps": 10.0}},
    {"kind": "TrainingJob", "namespace": "n", "name": "old", "uid": "u", "gpu_resource": "nvidia.com/gpu",
     "command": ["python", "a.py"]},
])  # fmt: skip
def test_stored_jobs_of_version_0_1_are_shown(payload: dict[str, Any]) -> None:
    spec = JobSpec(JobId("job-1"), name="old", workers_max=4, worker=Demand(2000), weight=2.0, work_total=10.0,
                   payload=payload)  # fmt: skip
    shown = request_of(spec)
    assert (shown["command"], shown["weight"], shown["steps"]) == (["python", "a.py"], 2.0, 10.0)
    assert shown["workers"] == {"min": 1, "max": 4}
    JobRequest.model_validate(shown)

"""The published schemas: job-spec.schema.json, and the properties of a TrainingJob's spec for the API server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.jobspec.model import CHANGEABLE, CRD_PATHS, Crd, JobRequest, TrainingJobSpec, note_of

Json = dict[str, Any]
_DROPPED = ("title", "propertyNames", "default")
"""`propertyNames` is unknown to the API server."""


def json_schema() -> Json:
    """JSON schema of job files: what `submit --schema` prints and docs/job-spec.schema.json holds."""
    made = JobRequest.model_json_schema()
    made["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    made["title"] = "Trainmaster job"
    made["description"] = "A job to submit. Everything except the command has a default."
    return made


def crd_properties(fragments: Mapping[str, Json]) -> Json:
    """OpenAPI of `spec`, by key. `fragments` replaces properties that this schema does not look into."""
    made = TrainingJobSpec.model_json_schema()
    properties: Json = {}
    for field, path in CRD_PATHS.items():
        note: Crd = note_of(TrainingJobSpec, field, Crd)
        raw = made["properties"][field]
        value = _structural(raw, made.get("$defs", {}))
        if path in fragments:
            value = {"type": "object", "description": value["description"], **fragments[path]}
        if note.whole:
            value.update(type="integer", format="int64", minimum=1 if value.pop("exclusiveMinimum", None) else 0)
        default = raw.get("default")
        if note.default and default is not None and default != []:
            value["default"] = {} if isinstance(default, dict) else default
        if field in CHANGEABLE:
            value["description"] += " May be edited at any time."
        holder = properties
        *parents, key = path.split(".")
        for parent in parents:
            holder = holder.setdefault(parent, _parent(parent))["properties"]
        holder[key] = value
    return properties


def _parent(name: str) -> Json:
    """`work`: the one object that groups fields."""
    return {
        "type": "object",
        "description": "Amount of work; without it no finish time is predicted.",
        "properties": {},
        "x-kubernetes-validations": [
            {"rule": "has(self.steps) != has(self.epochs)", "message": f"give either {name}.steps or {name}.epochs"}
        ],
    }


def _structural(schema: Json, defs: Json) -> Json:
    """As the API server takes it: no references, no null, no unions."""
    if "$ref" in schema:
        schema = {**defs[schema["$ref"].rpartition("/")[2]], **{k: v for k, v in schema.items() if k != "$ref"}}
    for choice in schema.get("anyOf", ()):
        if choice.get("type") != "null":
            schema = {**choice, **{k: v for k, v in schema.items() if k != "anyOf"}}
    made = {key: value for key, value in schema.items() if key not in _DROPPED}
    if made.get("type") == "integer":
        made["format"] = "int64"
    if "exclusiveMinimum" in made:
        made.update(minimum=made["exclusiveMinimum"], exclusiveMinimum=True)
    if "items" in made:
        made["items"] = _structural(made["items"], defs)
        made["x-kubernetes-list-type"] = "set"
    if "properties" in made:
        made["properties"] = {key: _member(value, defs) for key, value in made["properties"].items()}
        if "max" in made["properties"]:
            made["x-kubernetes-validations"] = [
                {
                    "rule": "!has(self.max) || self.min <= self.max",
                    "message": "min must not be above max",
                    "fieldPath": ".max",
                }
            ]
    extra = made.pop("additionalProperties", False) or next(iter(made.pop("patternProperties", {}).values()), False)
    if isinstance(extra, dict):
        made["additionalProperties"] = _structural(extra, defs)
    elif extra:
        made["x-kubernetes-preserve-unknown-fields"] = True
    return made


def _member(schema: Json, defs: Json) -> Json:
    kept = {"default": schema["default"]} if "default" in schema else {}
    return {**_structural(schema, defs), **kept}

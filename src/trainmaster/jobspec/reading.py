"""Reads a job from REST bodies, mappings and TrainingJobs; what is wrong is told by field."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from trainmaster.jobspec.limits import PATTERNS
from trainmaster.jobspec.model import CRD_PATHS, Crd, JobRequest, TrainingJobSpec, note_of
from trainmaster.model.errors import InputError

_MAX_SHOWN = 60
_SUBJECT = re.compile(r"^(?:Input|String|List|Dictionary|Value|Data) should (?:be |have )?")
_REMEDIES = {
    ("command", "list_type"): "Write a list: [python, train.py].",
    ("server_command", "list_type"): "Write a list: [python, serve.py].",
    ("workers", "model_type"): "Write {min: 1, max: 4}.",
    ("servers", "model_type"): "Write {min: 0, max: 2}.",
    ("env", "string_type"): "Put the value between quotes.",
}
_PLACE = re.compile(r"^(Invalid JSON: .*) at line (\d+) column (\d+)$", re.DOTALL)
_KEY = re.compile(rb'"((?:[^"\\]|\\.)*)"\s*(:?)|[\[{]|[\]}]')


def request_from_json(body: bytes) -> JobRequest:
    try:
        return JobRequest.model_validate_json(body)
    except ValidationError as error:
        raise fault_of(error.errors(include_url=False), body) from None


def request_from(data: Mapping[str, Any]) -> JobRequest:
    try:
        return JobRequest.model_validate(data)
    except ValidationError as error:
        raise fault_of(error.errors(include_url=False)) from None


def training_job_from(spec: Mapping[str, Any]) -> TrainingJobSpec:
    """The fields of a TrainingJob's spec, never taken on trust: the API server may know an older schema."""
    try:
        return TrainingJobSpec.model_validate(_flat(spec), strict=True)
    except ValidationError as error:
        fault = fault_of(error.errors(include_url=False))
        field, *rest = str(fault.column).split(".")
        raise replace(fault, column=".".join(["spec", CRD_PATHS.get(field, field), *rest])) from None


def _flat(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Values by field; null is the same as absent."""
    given: dict[str, Any] = {}
    for field, path in CRD_PATHS.items():
        *parents, key = path.split(".")
        holder: Any = spec
        for parent in parents:
            holder = holder.get(parent) or {}
            if not isinstance(holder, Mapping):
                raise InputError(f"invalid value {shown(holder)}", "an object", column=f"spec.{'.'.join(parents)}")
        value = holder.get(key)
        if value is not None:
            if note_of(TrainingJobSpec, field, Crd).whole and not isinstance(value, int):
                raise InputError(f"invalid value {shown(value)}", "a whole number", column=f"spec.{path}")
            given[field] = value
    return given


def fault_of(faults: Sequence[Any], body: bytes = b"") -> InputError:
    """The first fault that validation found; `column` is the dotted path of the field."""
    first = faults[0]
    path = [str(part)[:_MAX_SHOWN] for part in first["loc"] if part != "[key]"]
    what, expected, remedy = f"invalid value {shown(first.get('input'))}", "", ""
    told, kind = str(first["msg"]), first["type"]
    if kind == "json_invalid":
        what = told
        match = _PLACE.match(told)
        if match and body:
            path = [top_field(body, int(match[2]), int(match[3]))]
    elif kind == "value_error":
        what = told.removeprefix("Value error, ")
    elif kind == "missing":
        what = "is required"
    elif kind == "extra_forbidden":
        what, remedy = "unknown field", _similar(path[-1])
    elif kind == "string_unicode":
        what = "invalid Unicode"
    elif kind == "string_pattern_mismatch":
        expected = PATTERNS.get(first["ctx"]["pattern"], f"text like {first['ctx']['pattern']}")
    else:
        expected = _SUBJECT.sub("", told).replace(" after validation", "")
        remedy = _REMEDIES.get((path[0] if path else "", kind), "")
    if len(faults) > 1 and kind != "json_invalid" and not remedy:
        remedy = _and_more(faults)
    return InputError(printable(what), printable(expected), remedy, column=printable(".".join(path)) or None)


def _and_more(faults: Sequence[Any]) -> str:
    others = sum(1 for fault in faults[1:] if fault["type"] != "default_factory_not_called")
    return f"{others} more {'error' if others == 1 else 'errors'}." if others else ""


def _similar(name: str) -> str:
    close = get_close_matches(name, list(JobRequest.model_fields), n=1)
    return f"Did you mean '{close[0]}'?" if close else "See `trainmaster submit --schema`."


def top_field(body: bytes, line: int, column: int) -> str:
    """The top-level key before this place of a JSON text."""
    lines = body.split(b"\n")
    end = sum(len(text) + 1 for text in lines[: line - 1]) + column
    depth, field = 0, b""
    for match in _KEY.finditer(body[:end]):
        if match[0] in b"[{":
            depth += 1
        elif match[0] in b"]}":
            depth -= 1
        elif depth == 1 and match[2]:
            field = match[1]
    return field.decode("utf-8", "replace")


def shown(value: Any) -> str:
    """A value in a message: short, whatever it is."""
    if isinstance(value, int) and value.bit_length() > 200:
        return f"of {value.bit_length()} bits"
    if isinstance(value, dict | list | tuple) and len(value) > 10:
        return f"with {len(value)} items"
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"of type {type(value).__name__}"
    return printable(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}...")


def printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()[:1000]

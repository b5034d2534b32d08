"""Job files in YAML: read with the place of every field, so that a fault is shown where it stands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from trainmaster.model.errors import InputError
from trainmaster.wire.api import NAME_IN_WORDS, NAME_PATTERN, JobRequest

_MAX_BYTES = 1 << 20
_MAX_DEPTH = 20
Place = tuple[int, int]
"""Line and column, from 1."""


class SpecFile:
    """The fields of a job file and where each of them stands."""

    def __init__(self, path: Path, data: dict[str, Any], places: dict[tuple[str | int, ...], Place]) -> None:
        self.path = path
        self.data = data
        self._places = places

    def place(self, field: Sequence[str | int]) -> str:
        """`job.yaml:4:12` of a field, or of what encloses it."""
        for length in range(len(field), -1, -1):
            found = self._places.get(tuple(field[:length]))
            if found is not None:
                return f"{self.path}:{found[0]}:{found[1]}"
        return str(self.path)


def read_spec(path: Path) -> SpecFile:
    """One mapping; anything else is refused with the place of the fault."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(_MAX_BYTES + 1)
        if len(raw) > _MAX_BYTES:
            raise InputError("is larger than 1 MiB", "a job in YAML", file=path)
        text = raw.decode("utf-8")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", "a job in YAML", file=path) from None
    except UnicodeDecodeError:
        raise InputError("is not text", "a job in YAML (UTF-8)", file=path) from None
    try:
        documents = list(yaml.compose_all(text, yaml.SafeLoader))
        if not documents:
            raise InputError("is empty", "fields such as `command: [python, train.py]`", file=path)
        if len(documents) != 1:
            raise InputError(f"holds {len(documents)} documents", "one job", "Give one file per job.", file=path)
        node = documents[0]
        if not isinstance(node, yaml.MappingNode):
            raise InputError("is no mapping", "fields such as `command: [python, train.py]`", file=path)
        places: dict[tuple[str | int, ...], Place] = {}
        _locate(node, (), places, path, 0)
        loader = yaml.SafeLoader("")
        try:
            data = loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise InputError(f"is not YAML: {error.problem or error.context}", "a job in YAML", file=where) from None
    except yaml.YAMLError as error:
        raise InputError(f"is not YAML: {str(error).splitlines()[0]}", "a job in YAML", file=path) from None
    except RecursionError:
        raise InputError("is nested too deeply", "a job in YAML", file=path) from None
    return SpecFile(path, data, places)


def _locate(
    node: yaml.Node, field: tuple[str | int, ...], places: dict[tuple[str | int, ...], Place], path: Path, depth: int
) -> None:
    mark = node.start_mark
    here = f"{path}:{mark.line + 1}:{mark.column + 1}"
    if depth > _MAX_DEPTH:
        raise InputError("is nested too deeply", "a job in YAML", file=here)
    if len(places) > 100_000:  # aliases of aliases: a small file that unfolds without end
        raise InputError("unfolds to too many values", "a job in YAML", file=path)
    places[field] = (mark.line + 1, mark.column + 1)
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            at = f"{path}:{key.start_mark.line + 1}:{key.start_mark.column + 1}"
            if not isinstance(key, yaml.ScalarNode):
                raise InputError("is no field name", "plain text before the colon", file=at)
            if key.value in seen:
                raise InputError(f"field '{key.value}' is given twice", "each field once", file=at)
            seen.add(key.value)
            _locate(value, (*field, key.value), places, path, depth + 1)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _locate(value, (*field, index), places, path, depth + 1)


_HINTS = {
    ("command", "list_type"): "Write it as a list: [python, train.py].",
    ("server_command", "list_type"): "Write it as a list: [python, serve.py].",
    ("workers", "model_type"): "Write it as {min: 1, max: 4}.",
    ("servers", "model_type"): "Write it as {min: 0, max: 2}.",
    ("env", "string_type"): "Put the value between quotes.",
}


def check_request(data: dict[str, Any], spec: SpecFile | None = None, options: dict[str, str] | None = None) -> None:
    """Hold a request against the published schema; the first fault names its file and field, or its option."""
    try:
        JobRequest.model_validate(data)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False)[0]
        field = tuple(fault["loc"])
        top = str(field[0]) if field else ""
        named = ".".join(str(part) for part in field)
        told = fault["msg"].removeprefix("Value error, ")
        what = told[:1].lower() + told[1:]
        remedy = _HINTS.get((top, fault["type"]), "")
        if fault["type"] == "string_pattern_mismatch" and NAME_PATTERN in fault["msg"]:
            what = f"'{fault['input']}' is no name; expected {NAME_IN_WORDS}"
        if fault["type"] == "extra_forbidden":
            what, remedy = "there is no such field", _similar(top)
        option = (options or {}).get(top)
        if option is not None:
            raise InputError(what, remedy=remedy, column=option) from None
        if fault["type"] == "missing" and named == "command":
            raise InputError("no command", "it after `--`, as in: trainmaster submit -- python train.py") from None
        where = spec.place(field) if spec is not None else None
        raise InputError(f"field '{named}': {what}", remedy=remedy, file=where) from None


def _similar(name: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, list(JobRequest.model_fields), n=1)
    return f"Did you mean '{close[0]}'?" if close else "See `trainmaster submit --schema`."


def schema() -> dict[str, Any]:
    """JSON schema of job files: what `submit --schema` prints and docs/job-spec.schema.json holds."""
    made = JobRequest.model_json_schema()
    made["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    made["title"] = "Trainmaster job"
    made["description"] = "A job to submit. Everything except the command has a default."
    return made

"""Job files in YAML: read with the place of every field, so that a fault is shown where it stands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from trainmaster.model.errors import InputError

_MAX_BYTES = 1 << 20
_MAX_DEPTH = 20
Place = tuple[int, int]
"""Line and column, from 1."""


class SpecFile:
    """The fields of a job file and where each of them stands."""

    def __init__(self, path: Path, data: dict[str, Any], places: dict[tuple[str, ...], Place]) -> None:
        self.path = path
        self.data = data
        self._places = places

    def place(self, field: Sequence[str]) -> str:
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
        _check_depth(text, path)
        documents = list(yaml.compose_all(text, yaml.SafeLoader))
        if not documents:
            raise InputError("is empty", "fields such as `command: [python, train.py]`", file=path)
        if len(documents) != 1:
            raise InputError(f"holds {len(documents)} documents", "one job", "Give one file per job.", file=path)
        node = documents[0]
        if not isinstance(node, yaml.MappingNode):
            raise InputError("is not a mapping", "fields such as `command: [python, train.py]`", file=path)
        places: dict[tuple[str, ...], Place] = {}
        _locate(node, (), places, path)
        data = _constructed(node, path)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = _at(path, mark) if mark else str(path)
        raise InputError(f"is not YAML: {error.problem or error.context}", "a job in YAML", file=where) from None
    except yaml.YAMLError as error:
        raise InputError(f"is not YAML: {str(error).splitlines()[0]}", "a job in YAML", file=path) from None
    except RecursionError:
        raise InputError("is nested too deeply", "a job in YAML", file=path) from None
    return SpecFile(path, data, places)


def _check_depth(text: str, path: Path) -> None:
    """Before anything recursive reads it."""
    depth, field, is_key = 0, "", True
    for event in yaml.parse(text, yaml.SafeLoader):
        if depth == 1 and isinstance(event, yaml.NodeEvent):
            field = event.value if is_key and isinstance(event, yaml.ScalarEvent) else field
            is_key = not is_key
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            what = f"field '{field}': nested more than {_MAX_DEPTH} deep"
            raise InputError(what, "a job in YAML", file=_at(path, event.start_mark))


def _constructed(node: yaml.MappingNode, path: Path) -> dict[str, Any]:
    try:
        return yaml.SafeLoader("").construct_document(node)
    except ValueError:  # a number or date that Python does not take
        for key, value in node.value:
            try:
                yaml.SafeLoader("").construct_object(value, deep=True)
            except ValueError as error:
                where = _at(path, value.start_mark)
                raise InputError(f"field '{key.value}': invalid value: {error}", "a job in YAML", file=where) from None
        raise


def _at(path: Path, mark: yaml.Mark) -> str:
    return f"{path}:{mark.line + 1}:{mark.column + 1}"


def _locate(node: yaml.Node, field: tuple[str, ...], places: dict[tuple[str, ...], Place], path: Path) -> None:
    mark = node.start_mark
    if len(places) > 100_000:  # aliases of aliases: a small file that unfolds without end
        raise InputError(f"field '{field[0]}': expands to too many values", "a job in YAML", file=path)
    places[field] = (mark.line + 1, mark.column + 1)
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            at = _at(path, key.start_mark)
            if not isinstance(key, yaml.ScalarNode):
                raise InputError("invalid field name", "plain text before the colon", file=at)
            if key.value in seen:
                raise InputError(f"field '{key.value}' is given twice", "each field once", file=at)
            seen.add(key.value)
            _locate(value, (*field, key.value), places, path)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _locate(value, (*field, str(index)), places, path)

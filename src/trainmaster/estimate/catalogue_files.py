"""Catalogue files: Gavel's JSON and our own table as CSV or JSON, checked cell by cell.

Our table has one row per measurement, columns
`model, batch_size, accelerator, gpus, placement (packed|spread), steps_per_s, source (measured|estimated)`
and, for two jobs sharing the same GPUs, `other_model, other_batch_size, other_steps_per_s`.
As JSON the rows stand under `rows`: `{"kind": "throughputs", "rows": [{...}]}`.
"""

from __future__ import annotations

import ast
import csv
import io
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, get_args

from trainmaster.estimate.catalogue import (
    Entry,
    Origin,
    TableCatalogue,
    split_batch_size,
    with_batch_size,
)
from trainmaster.model.errors import InputError

COLUMNS = (
    "model",
    "batch_size",
    "accelerator",
    "gpus",
    "placement",
    "steps_per_s",
    "source",
    "other_model",
    "other_batch_size",
    "other_steps_per_s",
)
_REQUIRED = ("model", "accelerator", "gpus", "steps_per_s")
_SPREAD_SUFFIX = "_unconsolidated"
# Faster than any step ever measured: catches tables in samples/s of huge batches, or steps per hour.
_STEPS_PER_S_MAX = 1e6


def read_catalogue(path: Path) -> TableCatalogue:
    try:
        text = path.read_text("utf-8-sig")
    except FileNotFoundError:
        raise InputError("no such file", "a throughput table", "Check the path.", path) from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read ({error})", "a UTF-8 text file", "", path) from None
    if text.lstrip()[:1] in ("{", "["):
        document = _parse_json(text, path)
        entries = _own_json(document, path) if _is_own_json(document) else _gavel(document, path)
    else:
        entries = _own_csv(text, path)
    catalogue = TableCatalogue(path.stem, entries)
    if not catalogue.models:
        raise InputError("the table holds no throughputs", "at least one row", "", path)
    return catalogue


def write_catalogue(catalogue: TableCatalogue, path: Path) -> None:
    """Our CSV; jobs that run alone only."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS[:7])
    for entry in catalogue.entries:
        base, batch = split_batch_size(entry.model)
        placement = "spread" if entry.spread else "packed"
        writer.writerow(
            [
                base,
                batch or "",
                entry.accelerator,
                entry.gpus,
                placement,
                repr(entry.steps_per_s),
                entry.origin,
            ]
        )
    path.write_text(out.getvalue())


def _parse_json(text: str, path: Path) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(f"not JSON ({error})", "a JSON document", "", path, getattr(error, "lineno", None)) from None
    except RecursionError:
        raise InputError("JSON nested too deeply", "a throughput table", "", path) from None


def _is_own_json(document: Any) -> bool:
    return isinstance(document, list) or (isinstance(document, dict) and "rows" in document)


# -- Gavel: {worker_type: {"('MODEL', GPUS)": {"null": speed, "('OTHER', GPUS)": [speed, other_speed]}}}


def _gavel(document: Any, path: Path) -> Iterator[Entry]:
    for worker_type, table in _mapping(document, path, "the document").items():
        spread = worker_type.endswith(_SPREAD_SUFFIX)
        accelerator = worker_type.removesuffix(_SPREAD_SUFFIX)
        for key, row in _mapping(table, path, worker_type).items():
            model, gpus = _gavel_key(key, path, worker_type)
            for other, value in _mapping(row, path, f"{worker_type} > {key}").items():
                where = f"{worker_type} > {key} > {other}"
                if other == "null":
                    yield Entry(model, gpus, accelerator, spread, _speed(value, path, None, where))
                    continue
                if not isinstance(value, list) or len(value) != 2:
                    _fail("not a pair of speeds", "[own, other] in steps per second", path, None, where)
                other_model, other_gpus = _gavel_key(other, path, where)
                own, others = (_speed(item, path, None, where) for item in value)
                yield Entry(model, gpus, accelerator, spread, own, "measured", other_model, other_gpus, others)


def _mapping(value: Any, path: Path, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        _fail(
            f"{where} is not a JSON object",
            'a Gavel table {type: {"(\'MODEL\', GPUS)": {"null": steps_per_s}}} or our own {"rows": [...]}',
            path,
            None,
            None,
        )
    return value


def _gavel_key(key: str, path: Path, where: str) -> tuple[str, int]:
    """`"('LM (batch size 5)', 2)"` is the repr of a tuple; the oldest tables have the bare model name."""
    if not key.startswith("("):
        return key, 1
    try:
        model, gpus = ast.literal_eval(key)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        _fail(f"key {key[:60]!r} cannot be read", "('MODEL', GPUS)", path, None, where)
    if not isinstance(model, str) or not isinstance(gpus, int) or isinstance(gpus, bool) or gpus < 1:
        _fail(f"key {key[:60]!r} is not a model and a GPU count", "('MODEL', GPUS)", path, None, where)
    return model, gpus


# -- our own table


def _own_csv(text: str, path: Path) -> Iterator[Entry]:
    reader = csv.reader(io.StringIO(text))
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_header(header, path)
        for cells in reader:
            if len(cells) != len(header):
                _fail(f"{len(cells)} fields", f"{len(header)} as in the header", path, reader.line_num, None)
            yield _entry(dict(zip(header, cells, strict=True)), path, reader.line_num)
    except csv.Error as error:
        _fail(f"not CSV ({error})", "a comma-separated table", path, reader.line_num, None)


def _own_json(document: Any, path: Path) -> Iterator[Entry]:
    rows = document if isinstance(document, list) else document["rows"]
    if not isinstance(rows, list):
        _fail("`rows` is not a list", "a list of objects", path, None, "rows")
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            _fail(f"row {number} is not an object", "an object", path, None, "rows")
        _check_header([str(name) for name in row], path, f" (row {number})")
        yield _entry({k: "" if v is None else str(v) for k, v in row.items()}, path, None)


def _check_header(header: list[str], path: Path, where: str = "") -> None:
    for name in _REQUIRED:
        if name not in header:
            _fail(f"missing column {name}{where}", "columns " + ", ".join(COLUMNS), path, 1, name)
    for name in header:
        if name not in COLUMNS or header.count(name) > 1:
            _fail(f"unexpected column {name!r}{where}", "columns " + ", ".join(COLUMNS), path, 1, name)


def _entry(row: dict[str, str], path: Path, line: int | None) -> Entry:
    def cell(name: str, default: str = "") -> str:
        return row.get(name, "").strip() or default

    for name in _REQUIRED:
        if not cell(name):
            _fail("the cell is empty", "a value", path, line, name)
    placement = cell("placement", "packed")
    if placement not in ("packed", "spread"):
        _fail(f"invalid placement {placement!r}", "packed or spread", path, line, "placement")
    origin = cell("source", "measured")
    if origin not in get_args(Origin):
        _fail(f"invalid source {origin!r}", "measured or estimated", path, line, "source")
    other = cell("other_model")
    if other and not cell("other_steps_per_s"):
        _fail("a pair without the other's speed", "a number", path, line, "other_steps_per_s")
    return Entry(
        with_batch_size(cell("model"), _count(cell("batch_size"), path, line, "batch_size")),
        _count(cell("gpus"), path, line, "gpus") or 1,
        cell("accelerator"),
        placement == "spread",
        _speed(cell("steps_per_s"), path, line, "steps_per_s"),
        "estimated" if origin == "estimated" else "measured",
        with_batch_size(other, _count(cell("other_batch_size"), path, line, "other_batch_size")) if other else None,
        None,
        _speed(cell("other_steps_per_s"), path, line, "other_steps_per_s") if other else None,
    )


def _count(text: str, path: Path, line: int | None, column: str) -> int | None:
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or int(text[:18]) < 1 or len(text) > 18:
        _fail(f"invalid count {text[:40]!r}", "a whole number, at least 1", path, line, column)
    return int(text)


def _speed(value: Any, path: Path, line: int | None, column: str) -> float:
    try:
        if isinstance(value, bool) or value is None:
            raise ValueError
        speed = float(value)
    except (ValueError, TypeError, OverflowError):
        _fail(f"invalid speed {str(value)[:40]!r}", "a number of steps per second", path, line, column)
    if not math.isfinite(speed) or speed < 0:
        _fail(f"invalid speed {speed}", "steps per second, finite, at least 0", path, line, column)
    if speed > _STEPS_PER_S_MAX:
        _fail(f"{speed:g} steps per second is not believable", "mini-batches per second", path, line, column)
    return speed


def _fail(what: str, expected: str, path: Path, line: int | None, column: str | None) -> NoReturn:
    raise InputError(what, expected, "Correct the table.", path, line, column)

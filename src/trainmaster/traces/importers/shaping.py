"""What importers share: wall-clock times, jobs without known work, JSON records with their places."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from trainmaster.model.errors import InputError
from trainmaster.model.foreign import is_text, is_whole
from trainmaster.traces.cells import refuse
from trainmaster.traces.source import Source
from trainmaster.traces.trace import JobTrace, trace_from_table

ABSENT = ("", "none", "null", "unknown", "n/a", "nan")


def finish(table: pl.DataFrame, source: Source, kind: str, **companions: Any) -> JobTrace:
    """Validate an imported table. Jobs whose work or size the source does not tell cannot be replayed:
    they are left out and counted in `meta["left_out"]`."""
    known = pl.col("duration_s").is_not_null() if "duration_s" in table.columns else pl.lit(False)
    if "iterations" in table.columns:
        known = known | (pl.col("model").is_not_null() & pl.col("iterations").is_not_null())
    kept = table.filter(known & pl.col("gpus").is_not_null() & pl.col("submit_s").is_not_null())
    meta = dict(companions.pop("meta", None) or {})
    if kept.height < table.height:
        meta["left_out"] = {"jobs without known duration, size or submission": table.height - kept.height}
    if kept.is_empty():
        raise InputError(
            f"none of the {table.height} jobs has a known duration, size and submission time",
            f"a {kind} file with finished jobs",
            "",
            source.path,
        )
    return trace_from_table(kept, source.path, source=kind, sort=True, meta=meta, **companions)


def wall_clock(frame: pl.DataFrame, column: str, path: Path, *, required: bool = True) -> pl.Series:
    """A column of local wall times, `2020-06-09 18:41:01` or `2020-06-09T18:41:01`, as datetimes."""
    text = frame[column].str.strip_chars().str.replace("T", " ", literal=True)
    absent = text.is_null() | text.str.to_lowercase().is_in(ABSENT)
    times = text.str.to_datetime("%Y-%m-%d %H:%M:%S", strict=False)
    bad = times.is_null() & ~absent if not required else times.is_null()
    refuse(frame, bad, path, column, "invalid time {}", "YYYY-MM-DD HH:MM:SS", "Correct the cell.")
    return times


def since_first(frame: pl.DataFrame, submit: str, start: str, end: str, path: Path) -> tuple[list[pl.Series], datetime]:
    """Columns `submit_s start_s end_s` out of those wall times, and the first submission, from which they count."""
    submitted = wall_clock(frame, submit, path)
    epoch = submitted.min()
    assert isinstance(epoch, datetime)
    started, ended = (wall_clock(frame, name, path, required=False) for name in (start, end))
    named = zip(("submit_s", "start_s", "end_s"), (submitted, started, ended), strict=True)
    return [seconds_since(times, epoch).alias(name) for name, times in named], epoch


def seconds_since(times: pl.Series, epoch: datetime) -> pl.Series:
    return (times - epoch).dt.total_microseconds() / 1e6


def parse_instant(text: Any, path: Path, line: int | None, column: str) -> datetime | None:
    """One time out of a JSON record: RFC 3339 or `YYYY-MM-DD HH:MM:SS`; None when the source has none."""
    if text is None or (isinstance(text, str) and text.strip().lower() in ABSENT):
        return None
    try:
        instant = datetime.fromisoformat(text.strip())
    except (ValueError, AttributeError):
        raise InputError(
            f"invalid time {str(text)[:40]!r}",
            "an ISO time such as 2017-10-07 01:12:09",
            "Correct the record.",
            path,
            line,
            column,
        ) from None
    return instant.astimezone(UTC).replace(tzinfo=None) if instant.tzinfo else instant


def read_json(source: Source) -> Any:
    text = source.text_bytes().decode("utf-8")
    try:
        return json.loads(text)
    except ValueError as error:
        line = getattr(error, "lineno", None)
        raise InputError(f"not JSON ({_fault(error)})", "a complete JSON document", "", source.path, line) from None
    except RecursionError:
        raise InputError("JSON nested too deeply", "a list of records", "", source.path) from None


def _fault(error: Exception) -> str:
    """A number of thousands of digits is no `JSONDecodeError`, and has no place."""
    return getattr(error, "msg", "nested too deeply" if isinstance(error, RecursionError) else "a number is too large")


def json_records(source: Source) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, record) of each object in a JSON list, decoded one by one so that each has a place."""
    text = source.text_bytes().decode("utf-8")
    decoder = json.JSONDecoder()
    at, line, counted_to = _skip(text, 0), 1, 0
    if text[at : at + 1] != "[":
        raise InputError("not a JSON list", "a list of job records", "", source.path, 1)
    at = _skip(text, at + 1)
    while text[at : at + 1] != "]":
        line += text.count("\n", counted_to, at)
        counted_to = at
        try:
            record, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            broken = getattr(error, "lineno", line)
            raise InputError(
                f"not JSON ({_fault(error)})", "a complete JSON list", "The file may be cut off.", source.path, broken
            ) from None
        if not isinstance(record, dict):
            raise InputError("the record is not an object", "a job record", "", source.path, line)
        yield line, record
        at = _skip(text, at)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
        elif text[at : at + 1] != "]":
            raise InputError(
                "the list ends without `]`",
                "a complete JSON list",
                "The file may be cut off.",
                source.path,
                line + text.count("\n", counted_to, at),
            )


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def member(record: Any, key: str, kind: type, path: Path, line: int | None, *, default: Any = None) -> Any:
    """`record[key]` of the right JSON type; absent or null gives `default`."""
    value = record.get(key) if isinstance(record, dict) else None
    if value is None:
        return default
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise InputError(f"{key} is {type(value).__name__}", f"{kind.__name__}", "Correct the record.", path, line, key)
    if (kind is str and not is_text(value)) or (kind is int and not is_whole(value)):
        raise InputError(f"{key} is out of range", "valid Unicode, or a sane number", "", path, line, key)
    return value


def sibling(source: Source, *names: str) -> Path | None:
    """A companion file in the same folder (or in the folder itself), with or without `.gz`."""
    folder = source.path if source.path.is_dir() else source.path.parent
    for name in names:
        for candidate in (folder / name, folder / f"{name}.gz"):
            if candidate.is_file():
                return candidate
    return None

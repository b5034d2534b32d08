"""Chronus traces (SoCC'21): minutes throughout; strict, soft (value steps) and best-effort jobs."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from trainmaster.model.errors import InputError
from trainmaster.traces.cells import typed
from trainmaster.traces.delimited import read_table, sniff_columns
from trainmaster.traces.importers.shaping import finish
from trainmaster.traces.schema import LINE, Column
from trainmaster.traces.source import Source
from trainmaster.traces.trace import JobTrace
from trainmaster.traces.utility import format_steps

NAME = "chronus"
_COLUMNS = (
    Column("job_id", pl.String()),
    Column("user", pl.String()),
    Column("num_gpu", pl.Float64(), "GPUs", 0.0),
    Column("submit_time", pl.Float64(), "minutes", 0.0),
    Column("iterations", pl.Int64(), "steps", 0.0),
    Column("model_name", pl.String()),
    Column("duration", pl.Float64(), "minutes", 0.0),
    Column("interval", pl.Float64(), "minutes", 0.0),
    Column("expect_time_list", pl.String()),
    Column("expect_value_list", pl.String()),
    Column("best_effort", pl.Boolean()),
    Column("job_type", pl.String(), choices=("strict", "soft", "best")),
)
_REQUIRED = ("job_id", "num_gpu", "submit_time", "duration", "job_type")
_KIND = {"strict": "hard", "soft": "soft", "best": "none"}
_GENERATED = "model|iterations|deadline_s|deadline_kind|utility"


def recognises(source: Source) -> bool:
    return {"expect_time_list", "expect_value_list", "job_type"} <= set(sniff_columns(source))


def load(source: Source) -> JobTrace:
    raw = typed(read_table(source), _COLUMNS, source.path, required=_REQUIRED)
    deadlines, utilities = [], []
    needed = raw.select("job_type", "submit_time", "expect_time_list", "expect_value_list", LINE)
    for kind, submit_min, times, values, line in needed.iter_rows():
        if kind == "best":  # the lists of best-effort jobs mean nothing
            deadlines.append(None)
            utilities.append(None)
            continue
        offsets = _numbers(times, "expect_time_list", source.path, line)
        worths = _numbers(values, "expect_value_list", source.path, line)
        if len(offsets) != len(worths):
            raise InputError(
                f"{len(worths)} values for {len(offsets)} times",
                "lists of the same length",
                "",
                source.path,
                line,
                "expect_value_list",
            )
        ends_s = [(submit_min + offset) * 60 for offset in offsets]
        deadlines.append(ends_s[0])
        utilities.append(format_steps(ends_s, worths))
    jobs = raw.select(
        "job_id",
        "iterations",
        submit_s=pl.col("submit_time") * 60,
        duration_s=pl.col("duration") * 60,
        duration_kind=pl.lit("run"),
        status=pl.lit("unknown"),
        vc="user",
        gpus="num_gpu",
        gang=pl.lit(True),
        model="model_name",
        qos=pl.when(pl.col("job_type") == "best").then(pl.lit("best_effort")),
        deadline_s=pl.Series(deadlines, dtype=pl.Float64),
        deadline_kind=pl.col("job_type").replace_strict(_KIND, default=None),
        utility=pl.Series(utilities, dtype=pl.String),
        generated_fields=pl.lit(_GENERATED),
        interval_min="interval",
        line=LINE,
    )
    return finish(jobs, source, NAME)


def _numbers(text: str | None, column: str, path: Path, line: int) -> list[float]:
    try:
        numbers = [float(part) for part in (text or "").split("-")]
        if any(not 0 <= number < 1e12 for number in numbers) or (
            column == "expect_time_list" and sorted(set(numbers)) != numbers
        ):
            raise ValueError
    except ValueError:
        raise InputError(
            f"invalid list {text!r}", "numbers joined by -, such as 159-189-229", "", path, line, column
        ) from None
    return numbers

"""`JobTrace`: one validated trace in memory, and how a table becomes one."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from trainmaster.model.errors import InputError
from trainmaster.model.foreign import parse_json
from trainmaster.traces.cells import typed
from trainmaster.traces.schema import COMPANION_REQUIRED, COMPANIONS, JOB_COLUMN_NAMES, JOB_COLUMNS, LINE
from trainmaster.traces.validate import check_columns, check_jobs, check_order


@dataclass(frozen=True)
class JobTrace:
    """Jobs in order of submission with every schema column (null = unknown), and what came with them.

    `jobs` also has `line`, the place in the file each job came from. `source` is the format it was read from.
    """

    name: str
    jobs: pl.DataFrame
    meta: dict[str, Any] = field(default_factory=dict)
    nodes: pl.DataFrame | None = None
    quotas: pl.DataFrame | None = None
    attempts: pl.DataFrame | None = None
    source: str = "jobtrace"

    def __len__(self) -> int:
        return self.jobs.height

    @property
    def generated_fields(self) -> tuple[str, ...]:
        """Columns that somebody invented in at least one job: reports must say so."""
        marks = self.jobs["generated_fields"].drop_nulls().unique()
        return tuple(sorted({name for mark in marks for name in mark.split("|") if name}))


def trace_from_table(
    table: pl.DataFrame,
    path: Path,
    *,
    name: str | None = None,
    source: str = "jobtrace",
    sort: bool = False,
    meta: dict[str, Any] | None = None,
    nodes: pl.DataFrame | None = None,
    quotas: pl.DataFrame | None = None,
    attempts: pl.DataFrame | None = None,
) -> JobTrace:
    """Type, complete, validate and (if asked) sort a table that has jobtrace column names."""
    check_columns(set(table.columns), path)
    table = _fold_unknown_columns(table)
    jobs = typed(table, JOB_COLUMNS, path)
    check_jobs(jobs, path)
    if sort:
        jobs = jobs.sort("submit_s", maintain_order=True)
    else:
        check_order(jobs, path)
    if name is None:
        first = jobs["trace_id"].drop_nulls()
        name = str(first[0]) if len(first) else trace_name(path)
    jobs = jobs.with_columns(pl.col("trace_id").fill_null(name))
    return JobTrace(name, jobs, meta or {}, nodes, quotas, attempts, source)


def companion_from_table(table: pl.DataFrame, kind: str, path: Path) -> pl.DataFrame:
    """A typed `nodes`, `quotas` or `attempts` table."""
    for required in COMPANION_REQUIRED[kind]:
        if required not in table.columns:
            raise InputError(f"missing column {required}", f"a {kind} table", "Add the column.", path, 1, required)
    return typed(table, COMPANIONS[kind], path).drop(LINE)


def trace_name(path: Path) -> str:
    """File name without the suffixes that only say how it is stored."""
    name = path.name
    for suffix in (".gz", ".csv", ".parquet", ".json", ".trace", ".txt"):
        name = name.removesuffix(suffix)
    return name or "trace"


def _fold_unknown_columns(table: pl.DataFrame) -> pl.DataFrame:
    """Columns the schema does not know go into `extra` as JSON, so that nothing is lost."""
    unknown = [name for name in table.columns if name not in JOB_COLUMN_NAMES and name != LINE]
    if not unknown:
        return table
    old = table["extra"].to_list() if "extra" in table.columns else [None] * table.height
    merged = [
        merge_extra(extra, {key: value for key, value in row.items() if value is not None})
        for extra, row in zip(old, table.select(unknown).iter_rows(named=True), strict=True)
    ]
    return table.drop(unknown).with_columns(pl.Series("extra", merged, dtype=pl.String))


def merge_extra(extra: str | None, more: dict[str, Any]) -> str | None:
    """Add keys to a JSON object in a cell; text that is no object is kept under `text`."""
    if not more:
        return extra
    base: dict[str, Any] = {}
    if extra:
        try:
            parsed = parse_json(extra)
        except ValueError:
            parsed = extra
        base = parsed if isinstance(parsed, dict) else {"text": parsed}
    return json.dumps(base | more, sort_keys=True, default=str, ensure_ascii=False)

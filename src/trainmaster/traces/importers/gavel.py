"""Gavel traces: tab-separated, no header, 10 columns (current) or 7 (the older MSR/Philly-derived ones).

A job has steps instead of a duration: its run time follows from a throughput table. Weight and SLO (a
multiple of the ideal duration, negative = none) have no column of their own: `extra` holds them as `weight`
and `slo_multiple`.
"""

from __future__ import annotations

import polars as pl

from trainmaster.traces.cells import typed
from trainmaster.traces.delimited import read_table
from trainmaster.traces.importers.shaping import finish
from trainmaster.traces.schema import LINE, Column
from trainmaster.traces.source import Source
from trainmaster.traces.trace import JobTrace, merge_extra

NAME = "gavel"

_TEN = (
    Column("job_type", pl.String()),
    Column("command", pl.String()),
    Column("working_directory", pl.String()),
    Column("num_steps_arg", pl.String()),
    Column("needs_data_dir", pl.Boolean()),
    Column("total_steps", pl.Int64(), "steps", 0.0),
    Column("scale_factor", pl.Int64(), "GPUs", 1.0),
    Column("priority_weight", pl.Float64(), "", 0.0),
    Column("slo", pl.Float64(), "times the ideal duration, negative = none"),
    Column("arrival_time", pl.Float64(), "seconds", 0.0),
)
_SEVEN = (*(_TEN[at] for at in (0, 1, 3, 4, 5, 9)), _TEN[6])


def recognises(source: Source) -> bool:
    fields = source.first_line.split("\t")
    if len(fields) not in (10, 7):
        return False
    steps, flag = (fields[5], fields[4]) if len(fields) == 10 else (fields[4], fields[3])
    return flag.strip() in ("0", "1") or steps.strip().isdigit()


def load(source: Source) -> JobTrace:
    columns = _TEN if len(source.first_line.split("\t")) == 10 else _SEVEN
    names = tuple(column.name for column in columns)
    raw = typed(read_table(source, separator="\t", header=names, quoted=False), columns, source.path, required=names)
    extras = [_extra(row) for row in raw.iter_rows(named=True)]
    jobs = raw.select(
        job_id=(pl.col(LINE) - 1).cast(pl.String),
        submit_s="arrival_time",
        gpus=pl.col("scale_factor").cast(pl.Float64),
        gang=pl.lit(True),
        model="job_type",
        batch_size=pl.col("job_type").str.extract(r"\(batch size (\d+)\)$").cast(pl.Int64),
        iterations="total_steps",
        extra=pl.Series(extras, dtype=pl.String),
        line=LINE,
    )
    return finish(jobs, source, NAME)


def _extra(row: dict[str, object]) -> str | None:
    slo = row.get("slo")
    return merge_extra(
        None,
        {
            "command": row["command"],
            **({"weight": row["priority_weight"]} if row.get("priority_weight") is not None else {}),
            **({"slo_multiple": slo} if isinstance(slo, float) and slo >= 0 else {}),
        },
    )

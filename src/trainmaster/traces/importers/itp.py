"""Microsoft ITP and ElasticFlow traces: raw (4 columns), or with generated models and deadlines."""

from __future__ import annotations

import polars as pl

from trainmaster.traces.cells import typed
from trainmaster.traces.delimited import read_table, sniff_columns
from trainmaster.traces.importers.shaping import finish
from trainmaster.traces.schema import LINE, Column
from trainmaster.traces.source import Source
from trainmaster.traces.trace import JobTrace, trace_name

NAME = "elasticflow-itp"
_COLUMNS = (
    Column("job_id", pl.String()),
    Column("submission_time", pl.Float64(), "seconds", 0.0),
    Column("duration", pl.Float64(), "seconds", 0.0),
    Column("num_gpu", pl.Float64(), "GPUs", 0.0),
    Column("model_name", pl.String()),
    Column("batch_size", pl.Int64(), "samples", 1.0),
    Column("num_iteration", pl.Int64(), "steps", 0.0),
    Column("deadline", pl.Float64(), "seconds on the trace clock"),
)
# The older ElasticFlow files say the same with other names.
_OLD_NAMES = {"submit_time": "submission_time", "iteration": "num_iteration", "ddl": "deadline"}
_GENERATED = "model|batch_size|iterations|deadline_s"


def recognises(source: Source) -> bool:
    names = set(sniff_columns(source))
    recent = {"job_id", "submission_time", "duration", "num_gpu"} <= names
    return recent or {"job_id", "submit_time", "num_gpu", "duration", "ddl", "iteration"} <= names


def load(source: Source) -> JobTrace:
    table = read_table(source)
    if "submission_time" not in table.columns:
        columns = tuple(
            Column(old, c.dtype, c.unit, c.minimum, maximum=c.maximum)
            for c in _COLUMNS
            for old in [next((o for o, n in _OLD_NAMES.items() if n == c.name), c.name)]
        )
        raw = typed(table, columns, source.path).rename(_OLD_NAMES)
    else:
        raw = typed(table, _COLUMNS, source.path)
    generated = "model_name" in table.columns
    jobs = raw.select(
        "job_id",
        "batch_size",
        submit_s="submission_time",
        duration_s="duration",
        duration_kind=pl.lit("run"),
        status=pl.lit("unknown"),
        vc=pl.lit(trace_name(source.path)),
        gpus="num_gpu",
        gang=pl.lit(True),
        model="model_name",
        iterations="num_iteration",
        deadline_s="deadline",
        deadline_kind=pl.when(pl.col("deadline").is_not_null()).then(pl.lit("hard")),
        generated_fields=pl.lit(_GENERATED if generated else None, dtype=pl.String),
        line=LINE,
    )
    return finish(jobs, source, NAME, name=trace_name(source.path))

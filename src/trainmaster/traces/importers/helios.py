"""SenseTime Helios `cluster_log.csv` (Slurm accounting) with the GPU quotas of `cluster_gpu_number.csv`."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import polars as pl

from trainmaster.traces.cells import typed
from trainmaster.traces.delimited import read_table, sniff_columns
from trainmaster.traces.importers.shaping import finish, seconds_since, sibling, since_first, wall_clock
from trainmaster.traces.schema import LINE, Column
from trainmaster.traces.source import Source, read_source
from trainmaster.traces.trace import JobTrace, companion_from_table

NAME = "helios"
_COLUMNS = (
    *(Column(name, pl.String()) for name in ("job_id", "user", "vc", "state")),
    Column("gpu_num", pl.Float64(), "GPUs", 0.0),
    Column("cpu_num", pl.Float64(), "CPUs", 0.0),
    Column("node_num", pl.Int64(), "nodes", 0.0),
    *(Column(name, pl.String()) for name in ("submit_time", "start_time", "end_time")),
    Column("duration", pl.Float64(), "seconds", 0.0),
    Column("queue", pl.Float64(), "seconds", 0.0),
)
_STATES = ("completed", "failed", "cancelled", "timeout", "node_fail")


def recognises(source: Source) -> bool:
    names = set(sniff_columns(source))
    return {"gpu_num", "cpu_num", "node_num", "state", "submit_time", "queue"} <= names


def load(source: Source) -> JobTrace:
    raw = typed(read_table(source), _COLUMNS, source.path, required=("job_id", "submit_time"))
    times, epoch = since_first(raw, "submit_time", "start_time", "end_time", source.path)
    state = pl.col("state").str.to_lowercase()
    jobs = raw.with_columns(times).select(
        "job_id",
        "submit_s",
        "start_s",
        "end_s",
        "user",
        "vc",
        submit_wall="submit_time",
        duration_s="duration",
        duration_kind=pl.lit("run"),
        status=pl.when(state.is_in(_STATES)).then(state).otherwise(pl.lit("unknown")),
        gpus="gpu_num",
        cpus="cpu_num",
        num_workers="node_num",
        gpus_per_worker=pl.when(pl.col("node_num") > 0).then(pl.col("gpu_num") / pl.col("node_num")),
        line=LINE,
    )
    name = source.path.parent.name if source.path.name.startswith("cluster_log") else None
    return finish(
        jobs,
        source,
        NAME,
        name=f"helios-{name.lower()}" if name else None,
        quotas=_quotas(source, epoch),
        meta={"epoch": epoch.isoformat(sep=" "), "timezone": "local, as logged"},
    )


def _quotas(source: Source, epoch: datetime) -> pl.DataFrame | None:
    path = sibling(source, "cluster_gpu_number.csv")
    return None if path is None else _quota_table(path, epoch)


def _quota_table(path: Path, epoch: datetime) -> pl.DataFrame:
    """One column per virtual cluster and a row per day -> vc, from_s, gpus."""
    raw = read_table(read_source(path))
    dates = wall_clock(raw.with_columns(pl.col("date") + " 00:00:00"), "date", path)
    vcs = [name for name in raw.columns if name not in ("date", "total", LINE)]
    long = raw.with_columns(from_s=seconds_since(dates, epoch)).unpivot(
        vcs, index=["from_s", LINE], variable_name="vc", value_name="gpus"
    )
    return companion_from_table(long, "quotas", path)

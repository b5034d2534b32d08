"""Slurm accounting: `sacct --allusers --parsable2 --format=JobID,User,...` with its header line.

Needed: JobID (or JobIDRaw), Submit, and GPUs in ReqTRES, AllocTRES or AllocGRES; used if there: Start, End,
Elapsed(Raw), State, User, Account, Partition, QOS, NNodes, Timelimit(Raw), Restarts, JobName.
Job steps (`123.batch`, `123.0`) are skipped: `--allocations` leaves them out at the source.
"""

from __future__ import annotations

import polars as pl

from trainmaster.model.errors import InputError
from trainmaster.traces.cells import refuse, typed
from trainmaster.traces.delimited import read_table
from trainmaster.traces.importers.shaping import ABSENT, finish, since_first
from trainmaster.traces.schema import LINE, Column
from trainmaster.traces.source import Source
from trainmaster.traces.trace import JobTrace

NAME = "slurm-sacct"
_TEXT = [
    "jobid",
    "jobidraw",
    "user",
    "account",
    "partition",
    "qos",
    "state",
    "submit",
    "start",
    "end",
    "elapsed",
    "timelimit",
    "reqtres",
    "alloctres",
    "allocgres",
    "reqgres",
    "jobname",
]
_COUNTS = {"nnodes": "nodes", "elapsedraw": "seconds", "timelimitraw": "minutes", "restarts": ""}
# Priorities are unsigned 32-bit in Slurm; the raw limit may be a word.
_COLUMNS = (
    *(Column(name, pl.String()) for name in (*_TEXT, "timelimitraw")),
    *(Column(name, pl.Int64(), unit, 0.0) for name, unit in _COUNTS.items() if name != "timelimitraw"),
)
_STATES = {
    "COMPLETED": "completed",
    "FAILED": "failed",
    "OUT_OF_MEMORY": "failed",
    "BOOT_FAIL": "node_fail",
    "NODE_FAIL": "node_fail",
    "CANCELLED": "cancelled",
    "PREEMPTED": "cancelled",
    "REVOKED": "cancelled",
    "DEADLINE": "timeout",
    "TIMEOUT": "timeout",
    "RUNNING": "running",
    "SUSPENDED": "running",
    "PENDING": "pending",
    "REQUEUED": "pending",
}


def recognises(source: Source) -> bool:
    names = [name.strip().lower() for name in source.first_line.split("|")]
    return len(names) > 2 and ("jobid" in names or "jobidraw" in names)


def load(source: Source) -> JobTrace:
    raw = _read(source)
    times, epoch = since_first(raw, "submit", "start", "end", source.path)
    raw = raw.with_columns(
        *times, elapsed_s=_clock_seconds(raw, "elapsed", source), limit_s=_clock_seconds(raw, "timelimit", source)
    )
    ended = pl.col("end_s").is_not_null()
    run_s = pl.coalesce(pl.col("elapsedraw").cast(pl.Float64), "elapsed_s", pl.col("end_s") - pl.col("start_s"))
    tres = pl.coalesce("reqtres", "alloctres", "reqgres", "allocgres").fill_null("")
    state = pl.col("state").str.extract(r"^([A-Z_]+)")
    jobs = raw.select(
        "submit_s",
        # a job cancelled in the queue gets an end (and some versions a start) but never ran
        "user",
        "qos",
        "start_s",
        pl.when(pl.col("end_s") >= pl.col("start_s")).then("end_s").alias("end_s"),
        job_id=pl.coalesce("jobid", "jobidraw"),
        submit_wall="submit",
        duration_s=pl.when(ended & pl.col("start_s").is_not_null()).then(run_s),
        duration_kind=pl.lit("run"),
        status=state.replace_strict(_STATES, default="unknown"),
        tenant="account",
        vc="partition",
        gpus=_gpus(tres),
        num_workers="nnodes",
        gpus_per_worker=pl.when(pl.col("nnodes") > 0).then(_gpus(tres) / pl.col("nnodes")),
        gpu_types=tres.str.extract_all(r"gpu:[^=,:]+[=:]")
        .list.eval(pl.element().str.strip_prefix("gpu:").str.strip_chars_end("=:"))
        .list.unique()
        .list.sort()
        .list.join("|"),
        cpus=tres.str.extract(r"(?:^|,)cpu=(\d+)").cast(pl.Float64),
        mem_gib=_gib(tres),
        gang=pl.lit(True),
        limit_s=pl.coalesce(pl.col("timelimitraw").cast(pl.Float64, strict=False) * 60, "limit_s"),
        attempts=pl.col("restarts") + 1,
        job_name="jobname",
        line=LINE,
    )
    return finish(jobs, source, NAME, meta={"epoch": epoch.isoformat(), "timezone": "local, as logged"})


def _read(source: Source) -> pl.DataFrame:
    table = read_table(source, separator="|", quoted=False)
    table = table.rename({name: name.strip().lower() for name in table.columns if name != LINE})
    for needed, choices in {"Submit": ("submit",), "ReqTRES": ("reqtres", "alloctres", "reqgres", "allocgres")}.items():
        if not set(choices) & set(table.columns):
            raise InputError(
                f"the output has no column {needed}",
                "sacct --parsable2 --format=JobID,User,Partition,State,Submit,Start,End,ElapsedRaw,ReqTRES",
                "Run sacct with these fields.",
                source.path,
                1,
                needed,
            )
    raw = typed(table, _COLUMNS, source.path)
    return raw.filter(~pl.coalesce("jobid", "jobidraw").str.contains(".", literal=True))


def _gpus(tres: pl.Expr) -> pl.Expr:
    """`gres/gpu=8` counts all; without it the typed counts (`gres/gpu:a100=8`, GRES `gpu:a100:8`) add up."""
    total = tres.str.extract(r"(?:^|,)(?:gres/)?gpu[=:](\d+)(?:,|$)").cast(pl.Float64)
    typed_sum = (
        tres.str.extract_all(r"(?:gres/)?gpu:[^=,:]+[=:]\d+")
        .list.eval(pl.element().str.extract(r"(\d+)$").cast(pl.Float64))
        .list.sum()
    )
    return pl.coalesce(total, typed_sum)


def _gib(tres: pl.Expr) -> pl.Expr:
    amount = tres.str.extract(r"(?:^|,)mem=([\d.]+)").cast(pl.Float64, strict=False)
    unit = tres.str.extract(r"(?:^|,)mem=[\d.]+([KMGT]?)")
    scale = unit.replace_strict({"K": 2.0**-20, "M": 2.0**-10, "G": 1.0, "T": 1024.0}, default=2.0**-10)
    return amount * scale


def _clock_seconds(raw: pl.DataFrame, column: str, source: Source) -> pl.Series:
    """`[days-]hours:minutes:seconds` or `minutes:seconds`; UNLIMITED and Partition_Limit are no number."""
    text = raw[column].str.strip_chars()
    parts = text.str.extract_groups(r"^(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?$").struct.unnest()
    days, hours, minutes, seconds = (parts.to_series(i).cast(pl.Float64) for i in range(4))
    total = days.fill_null(0) * 86400 + hours.fill_null(0) * 3600 + minutes * 60 + seconds
    words = text.str.to_lowercase().is_in([*ABSENT, "unlimited", "partition_limit", "invalid"])
    bad = total.is_null() & text.is_not_null() & ~words
    refuse(raw, bad, source.path, column, "invalid span of time {}", "[days-]hours:minutes:seconds")
    return total

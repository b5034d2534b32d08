"""Alibaba PAI v2020: task table joined with the job table and, if there, the group tags.

The published CSV files have no header line. Times are seconds; CPU and GPU percentages; memory GB.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from trainmaster.model.errors import InputError
from trainmaster.traces.cells import typed
from trainmaster.traces.delimited import read_table
from trainmaster.traces.importers.shaping import finish, sibling
from trainmaster.traces.schema import LINE, Column
from trainmaster.traces.source import Source, read_source
from trainmaster.traces.trace import JobTrace

NAME = "alibaba-pai-2020"


def _text(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, pl.String()) for name in names)


_TIMES = (Column("start_time", pl.Float64(), "seconds", 0.0), Column("end_time", pl.Float64(), "seconds", 0.0))
_TASKS = (
    *_text("job_name", "task_name"),
    Column("inst_num", pl.Float64(), "instances", 0.0),
    *_text("status"),
    *_TIMES,
    Column("plan_cpu", pl.Float64(), "percent of a CPU", 0.0),
    Column("plan_mem", pl.Float64(), "GB", 0.0),
    Column("plan_gpu", pl.Float64(), "percent of a GPU", 0.0),
    *_text("gpu_type"),
)
_JOBS = (*_text("job_name", "inst_id", "user", "status"), *_TIMES)
_TAGS = _text("inst_id", "user", "gpu_type_spec", "group", "workload")
_STATUS = {"Terminated": "completed", "Failed": "failed", "Running": "running", "Waiting": "pending"}
_TASK_FILE, _JOB_FILE, _TAG_FILE = "pai_task_table.csv", "pai_job_table.csv", "pai_group_tag_table.csv"


def recognises(source: Source) -> bool:
    if source.path.is_dir():
        return sibling(source, _TASK_FILE) is not None
    fields = source.first_line.split(",")
    return _is_task_row(fields) or _is_job_row(fields)


def _is_task_row(fields: list[str]) -> bool:
    return len(fields) == 10 and (fields[3] in _STATUS or "plan_gpu" in fields)


def _is_job_row(fields: list[str]) -> bool:
    return len(fields) == 6 and (fields[3] in _STATUS or fields[:2] == ["job_name", "inst_id"])


def load(source: Source) -> JobTrace:
    tasks_source = source
    if source.path.is_dir() or not _is_task_row(source.first_line.split(",")):
        path = sibling(source, _TASK_FILE)
        if path is None:
            raise InputError(
                "the job table alone does not say how many GPUs a job asked for",
                f"{_TASK_FILE} beside it",
                "Put the task table into the same folder.",
                source.path,
            )
        tasks_source = read_source(path)
    tasks = _read(tasks_source, _TASKS)
    jobs = _per_job(tasks)
    job_path = sibling(source, _JOB_FILE)
    if job_path is not None:
        jobs = _with_job_table(jobs, job_path, sibling(source, _TAG_FILE))
    epoch_s = float(jobs["submit_s"].min() or 0.0)  # type: ignore[arg-type]
    jobs = jobs.with_columns(pl.col("submit_s", "start_s", "end_s") - epoch_s)
    return finish(jobs, tasks_source, NAME, name="alibaba-pai-2020", meta={"epoch_offset_s": epoch_s})


def _read(source: Source, columns: tuple[Column, ...]) -> pl.DataFrame:
    names = tuple(column.name for column in columns)
    has_header = source.first_line.split(",")[0] == names[0]
    return typed(read_table(source, header=None if has_header else names), columns, source.path, required=names[:1])


def _per_job(tasks: pl.DataFrame) -> pl.DataFrame:
    """Sum what the tasks of a job ask for; the job runs from its first task's start to its last one's end."""
    count = pl.col("inst_num").fill_null(1)
    with_gpu = pl.col("plan_gpu").fill_null(0) > 0
    one_role = with_gpu.sum() == 1
    status = pl.col("status")
    return (
        tasks.group_by("job_name", maintain_order=True)
        .agg(
            submit_s=pl.col("start_time").min(),
            start_s=pl.col("start_time").min(),
            end_s=pl.when(pl.col("end_time").null_count() == 0).then(pl.col("end_time").max()),
            duration_s=pl.when(pl.col("end_time").null_count() == 0).then(
                pl.col("end_time").max() - pl.col("start_time").min()
            ),
            duration_kind=pl.lit("run"),
            status=pl.when((status == "Failed").any())
            .then(pl.lit("failed"))
            .when((status == "Running").any())
            .then(pl.lit("running"))
            .when((status == "Waiting").any())
            .then(pl.lit("pending"))
            .otherwise(pl.lit("completed")),
            gpus=(pl.col("plan_gpu").fill_null(0) / 100 * count).sum(),
            cpus=(pl.col("plan_cpu") / 100 * count).sum(),
            mem_gib=(pl.col("plan_mem") * count).sum(),
            num_workers=pl.when(one_role).then(count.filter(with_gpu).first().cast(pl.Int64)),
            gpus_per_worker=pl.when(one_role).then(pl.col("plan_gpu").filter(with_gpu).first() / 100),
            gpu_types=pl.col("gpu_type").drop_nulls().unique().sort().str.join("|"),
            line=pl.col(LINE).first(),
        )
        .rename({"job_name": "job_id"})
    )


def _with_job_table(jobs: pl.DataFrame, job_path: Path, tag_path: Path | None) -> pl.DataFrame:
    table = _read(read_source(job_path), _JOBS).unique("job_name", keep="first", maintain_order=True)
    known = table.select(
        "user",
        "inst_id",
        job_id="job_name",
        job_submit_s="start_time",
        job_status=pl.col("status").replace_strict(_STATUS, default="unknown"),
    )
    jobs = jobs.join(known, on="job_id", how="left", maintain_order="left").with_columns(
        submit_s=pl.min_horizontal("submit_s", "job_submit_s"), status=pl.coalesce("job_status", "status")
    )
    if tag_path is not None:
        tags = _read(read_source(tag_path), _TAGS).unique("inst_id", keep="first", maintain_order=True)
        hints = tags.select("inst_id", "group", model="workload")
        jobs = jobs.join(hints, on="inst_id", how="left", maintain_order="left")
    return jobs.drop("job_submit_s", "job_status")

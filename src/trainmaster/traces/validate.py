"""What must hold across the cells of a jobs table: required values, unique ids, order, sane ranges."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import polars as pl

from trainmaster.model.errors import InputError
from trainmaster.traces.schema import JOB_REQUIRED, LINE
from trainmaster.traces.utility import EXPECTED, parse_cell


def check_columns(present: set[str], path: Path) -> None:
    """The header must promise what a simulation needs."""
    missing = [name for name in JOB_REQUIRED if name not in present]
    if missing:
        raise InputError(
            f"missing column{'s' if len(missing) > 1 else ''} {', '.join(missing)}",
            "at least job_id, submit_s, gpus and duration_s (or model and iterations)",
            "Add the columns, or run `trainmaster traces convert` if this is another format.",
            path,
            1,
            missing[0],
        )
    if "duration_s" not in present and not {"model", "iterations"} <= present:
        raise InputError(
            "missing column duration_s",
            "duration_s, or model and iterations",
            "Add one or the other: without them the amount of work is unknown.",
            path,
            1,
            "duration_s",
        )


def check_jobs(jobs: pl.DataFrame, path: Path) -> None:
    """Raise `InputError` at the first violation; `jobs` is typed and in file order."""
    if jobs.is_empty():
        raise InputError("the trace holds no jobs", "at least one job", "", path)
    for name in JOB_REQUIRED:
        _refuse(jobs, pl.col(name).is_null(), path, name, "the cell is empty", "a value for every job")
    no_work = pl.col("duration_s").is_null() & (pl.col("model").is_null() | pl.col("iterations").is_null())
    _refuse(
        jobs,
        no_work,
        path,
        "duration_s",
        "the job has neither duration_s nor model and iterations",
        "one of the two",
        "Drop jobs whose work is unknown.",
    )
    _check_unique(jobs, path)
    for low, high in (("start_s", "end_s"), ("min_gpus", "max_gpus"), ("min_servers", "max_servers")):
        _refuse(jobs, pl.col(high) < pl.col(low), path, high, f"{high} is below {low}", f"{low} <= {high}")
    _check_utilities(jobs, path)


def check_order(jobs: pl.DataFrame, path: Path) -> None:
    _refuse(
        jobs,
        pl.col("submit_s").diff() < 0,
        path,
        "submit_s",
        "the job was submitted before the one on the line above",
        "jobs in order of submit_s",
        "Sort the trace: `trainmaster traces convert --sort IN OUT`.",
    )


def _check_unique(jobs: pl.DataFrame, path: Path) -> None:
    duplicated = ~jobs["job_id"].is_first_distinct()
    if duplicated.any():
        at = duplicated.arg_true()[0]
        job_id = jobs["job_id"][at]
        first = jobs.filter(pl.col("job_id") == job_id)[LINE][0]
        raise InputError(
            f"job_id {job_id!r} was already used on line {first}",
            "each job_id once",
            "Rename or remove one of the two jobs.",
            path,
            int(jobs[LINE][at]),
            "job_id",
        )


def _check_utilities(jobs: pl.DataFrame, path: Path) -> None:
    given = jobs.filter(pl.col("utility").is_not_null())
    for text in given["utility"].unique(maintain_order=True):
        try:
            parse_cell(text)
        except ValueError as error:
            bad = given.filter(pl.col("utility") == text)
            raise InputError(str(error), EXPECTED, "", path, int(bad[LINE][0]), "utility") from None


def _refuse(
    jobs: pl.DataFrame, bad: pl.Expr, path: Path, column: str, what: str, expected: str, remedy: str = ""
) -> None:
    lines = jobs.filter(bad.fill_null(False))[LINE]
    if len(lines):
        _raise(what, expected, remedy, path, int(lines[0]), column)


def _raise(what: str, expected: str, remedy: str, path: Path, line: int, column: str) -> NoReturn:
    raise InputError(what, expected, remedy, path, line, column)

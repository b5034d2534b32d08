"""Cut a trace: by time, by jobs, by virtual cluster; change its load by stretching the arrivals."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from trainmaster.model.errors import InputError
from trainmaster.traces.trace import JobTrace
from trainmaster.traces.utility import shift_utility

_CLOCK_COLUMNS = ("submit_s", "start_s", "end_s", "deadline_s")


def slice_trace(
    trace: JobTrace,
    *,
    from_s: float | None = None,
    to_s: float | None = None,
    first: int = 0,
    jobs: int | None = None,
    vc: tuple[str, ...] = (),
    min_gpus: float | None = None,
    max_gpus: float | None = None,
    rebase: bool = True,
) -> JobTrace:
    """Jobs submitted in [from_s, to_s), of the given virtual clusters and sizes, then `jobs` of them after
    the first `first`. `rebase` moves the clock so that the first job comes at zero."""
    kept = trace.jobs
    if from_s is not None:
        kept = kept.filter(pl.col("submit_s") >= from_s)
    if to_s is not None:
        kept = kept.filter(pl.col("submit_s") < to_s)
    if vc:
        kept = kept.filter(pl.col("vc").is_in(list(vc)))
    if min_gpus is not None:
        kept = kept.filter(pl.col("gpus") >= min_gpus)
    if max_gpus is not None:
        kept = kept.filter(pl.col("gpus") <= max_gpus)
    kept = kept.slice(first, jobs)
    if kept.is_empty():
        raise InputError(
            "no job of the trace is in the slice",
            "at least one job",
            "Widen the range; `trainmaster traces describe` shows what the trace holds.",
        )
    if rebase:
        kept = move_clock(kept, -float(kept["submit_s"][0]))
    attempts = trace.attempts
    if attempts is not None:
        attempts = attempts.filter(pl.col("job_id").is_in(kept["job_id"].implode()))
    return replace(trace, jobs=kept, attempts=attempts)


def scale_load(trace: JobTrace, target: float, cluster_gpus: float) -> JobTrace:
    """Stretch or compress the arrivals so that offered work / capacity over the span of arrivals is `target`.

    Deadlines keep their distance to the submission; durations stay.
    """
    work = (trace.jobs["gpus"] * trace.jobs["duration_s"]).sum()
    span_s = float(trace.jobs["submit_s"][-1] - trace.jobs["submit_s"][0])
    if not work or span_s <= 0 or target <= 0 or cluster_gpus <= 0:
        raise InputError("the load cannot be set", "known durations, arrivals that differ, a positive load and cluster")
    return stretch(trace, float(work) / (target * cluster_gpus) / span_s)


def stretch(trace: JobTrace, factor: float) -> JobTrace:
    """Every submission `factor` times as late as before; deadlines keep their distance to it."""
    return replace(trace, jobs=move_rows(trace.jobs, trace.jobs["submit_s"] * (factor - 1.0)))


def move_clock(jobs: pl.DataFrame, by_s: float) -> pl.DataFrame:
    """The same jobs on a clock moved by `by_s`."""
    return jobs if by_s == 0 else move_rows(jobs, pl.Series("shift", [by_s]).new_from_index(0, jobs.height))


def move_rows(jobs: pl.DataFrame, shifts_s: pl.Series) -> pl.DataFrame:
    """Move every time of a row by the row's own shift, the steps of its utility included."""
    moved = jobs.with_columns((pl.col(name) + shifts_s).cast(jobs.schema[name]).alias(name) for name in _CLOCK_COLUMNS)
    if jobs["utility"].null_count() == jobs.height:
        return moved
    utilities = [
        None if text is None else shift_utility(text, by)
        for text, by in zip(jobs["utility"], shifts_s.to_list(), strict=True)
    ]
    return moved.with_columns(pl.Series("utility", utilities, dtype=pl.String))

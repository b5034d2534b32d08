"""Give a trace what it lacks, by seed: models, elastic ranges, deadlines, utilities. All of it is marked."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from trainmaster.model.errors import InputError
from trainmaster.traces.trace import JobTrace
from trainmaster.traces.utility import format_steps

DEFAULT_MODELS = ("ResNet-18", "ResNet-50", "VGG-16", "Inception-v3", "BERT-base", "GPT-2", "DeepSpeech2", "NCF")


@dataclass(frozen=True)
class Assignment:
    """Shares of jobs that get a thing; `slack` is the range of (deadline - submit) / duration."""

    models: tuple[str, ...] = ()
    elastic_fraction: float = 0.0
    elastic_factor: int = 2  # from gpus / factor (at least one) to gpus * factor
    deadline_fraction: float = 0.0
    soft_fraction: float = 0.0  # of the deadlines
    slack: tuple[float, float] = (1.2, 5.0)
    utility_fraction: float = 0.0  # sigmoid utilities, on jobs without soft deadlines

    def __post_init__(self) -> None:
        for name in ("elastic_fraction", "deadline_fraction", "soft_fraction", "utility_fraction"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{getattr(self, name)!r} is not a fraction of the jobs", "0 to 1", column=name)


def assign(trace: JobTrace, what: Assignment, seed: int) -> JobTrace:
    """Only empty cells are filled; `generated_fields` of a job names every column that got a value."""
    rng = np.random.Generator(np.random.PCG64(seed))
    jobs = trace.jobs
    count = jobs.height
    duration_s = jobs["duration_s"].fill_null(0.0).to_numpy()
    submit_s = jobs["submit_s"].to_numpy()
    gpus = jobs["gpus"].to_numpy()
    drawn: dict[str, list] = {}
    if what.models:
        names = rng.choice(np.array(what.models), count)
        drawn["model"] = names.tolist()
    if what.elastic_fraction > 0:
        elastic = (rng.random(count) < what.elastic_fraction) & (gpus >= 1)
        low = np.maximum(1, gpus // what.elastic_factor)
        drawn["min_gpus"] = np.where(elastic, low, np.nan).tolist()
        drawn["max_gpus"] = np.where(elastic, gpus * what.elastic_factor, np.nan).tolist()
    kinds: list[str | None] = [None] * count
    if what.deadline_fraction > 0:
        chosen = (rng.random(count) < what.deadline_fraction) & (duration_s > 0)
        slack = rng.uniform(*what.slack, count)
        soft = rng.random(count) < what.soft_fraction
        ends_s = np.round(submit_s + duration_s * slack)
        drawn["deadline_s"] = np.where(chosen, ends_s, np.nan).tolist()
        kinds = [("soft" if s else "hard") if c else "none" for c, s in zip(chosen, soft, strict=True)]
        drawn["deadline_kind"] = kinds
        drawn["utility"] = [
            _steps(end, length) if kind == "soft" else None
            for kind, end, length in zip(kinds, ends_s.tolist(), duration_s.tolist(), strict=True)
        ]
    if what.utility_fraction > 0:
        thetas = (rng.uniform(1, 100, count), rng.uniform(4, 6, count), rng.uniform(1, 3, count))
        chosen = (rng.random(count) < what.utility_fraction) & (duration_s > 0)
        old = drawn.get("utility", [None] * count)
        drawn["utility"] = [
            f"sigmoid:{t1:.3f},{t2 / length:.3e},{t3 * length:.1f}" if take and steps is None else steps
            for take, steps, t1, t2, t3, length in zip(chosen, old, *thetas, duration_s, strict=True)
        ]
    return replace(trace, jobs=_fill(jobs, drawn))


def _steps(deadline_s: float, duration_s: float) -> str:
    """Full value by the deadline, then 80, 50, 20 % after delays of a quarter, a half, a whole duration."""
    ends_s = [deadline_s] + [deadline_s + round(part * duration_s) + at for at, part in enumerate((0.25, 0.5, 1), 1)]
    return format_steps(ends_s, [10.0, 8.0, 5.0, 2.0])


def _fill(jobs: pl.DataFrame, drawn: dict[str, list]) -> pl.DataFrame:
    marks = jobs["generated_fields"].fill_null("").to_list()
    for name, values in drawn.items():
        new = pl.Series(name, values, strict=False).cast(jobs.schema[name])
        if new.dtype == pl.Float64:
            new = new.fill_nan(None)
        filled = jobs[name].is_null() & new.is_not_null()
        jobs = jobs.with_columns(pl.coalesce(pl.col(name), new).alias(name))
        marks = [
            "|".join(filter(None, (mark, name))) if got and name not in mark.split("|") else mark
            for mark, got in zip(marks, filled.to_list(), strict=True)
        ]
    cleaned = [mark or None for mark in marks]
    return jobs.with_columns(pl.Series("generated_fields", cleaned, dtype=pl.String))

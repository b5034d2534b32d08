"""What is in a trace: counts, quantiles, who uses what, what is missing and what somebody invented."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import polars as pl

from trainmaster.traces.schema import JOB_COLUMN_NAMES
from trainmaster.traces.trace import JobTrace

TOP = 8
"""Of virtual clusters and models, so many are told."""
_QUANTILES = (0.1, 0.5, 0.9, 0.99)
_SIZE_EDGES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


def describe(trace: JobTrace) -> dict[str, Any]:
    """A JSON-ready summary; times in seconds, work in GPU-hours (of jobs whose duration is known; None: of none)."""
    jobs = trace.jobs
    submit = jobs["submit_s"]
    span_s = float(submit[-1] - submit[0])
    known = jobs["duration_s"].drop_nulls()
    work_s = None if known.is_empty() else float((jobs["gpus"] * jobs["duration_s"]).sum())
    unknown = [name for name in JOB_COLUMN_NAMES if jobs[name].null_count() == jobs.height]
    return {
        "name": trace.name,
        "source": trace.source,
        "jobs": jobs.height,
        "first_submit_s": float(submit[0]),
        "span_s": span_s,
        "jobs_without_duration": jobs.height - len(known),
        "gpu_hours": None if work_s is None else work_s / 3600.0,
        "mean_gpus_in_demand": None if work_s is None or span_s <= 0 else work_s / span_s,
        "duration_s": _spread(known),
        "interarrival_s": _spread(submit.diff().drop_nulls()) | {"cv": _cv(submit.diff().drop_nulls())},
        "sizes": _sizes(jobs),
        "status": _shares(jobs, "status"),
        "top_vc": _shares(jobs, "vc", TOP),
        "top_model": _shares(jobs, "model", TOP),
        "deadlines": int(jobs["deadline_s"].is_not_null().sum()),
        "elastic": int((jobs["max_gpus"] > jobs["min_gpus"]).sum()),
        "nodes": None if trace.nodes is None else trace.nodes.height,
        "node_gpus": None if trace.nodes is None else float(trace.nodes["gpus"].sum()),
        "unknown_columns": unknown,
        "generated_fields": list(trace.generated_fields),
        "meta": trace.meta,
    }


def _spread(values: pl.Series) -> dict[str, float | None]:
    if values.is_empty():
        return dict.fromkeys(("mean", "max", *(f"p{round(q * 100)}" for q in _QUANTILES)))
    quantiles = {f"p{round(q * 100)}": float(values.quantile(q, "linear") or 0.0) for q in _QUANTILES}
    return {"mean": float(values.mean() or 0.0), "max": float(values.max() or 0.0)} | quantiles  # type: ignore[arg-type]


def _cv(gaps_s: pl.Series) -> float | None:
    """Coefficient of variation: 1 for Poisson arrivals, more for bursty ones."""
    mean = float(gaps_s.mean() or 0.0)  # type: ignore[arg-type]
    return float(gaps_s.std() or 0.0) / mean if mean > 0 else None  # type: ignore[arg-type]


def _sizes(jobs: pl.DataFrame) -> list[dict[str, Any]]:
    """Jobs and GPU-hours by size: (0,1), 1, (1,2], (2,4] ... and above 32."""
    work = jobs["gpus"] * jobs["duration_s"].fill_null(0.0)
    total_work = float(work.sum())
    rows = []
    gpus = jobs["gpus"]
    bounds = [("0", gpus == 0), ("below 1", (gpus > 0) & (gpus < 1)), ("1", gpus == 1)]
    for low, high in pairwise(_SIZE_EDGES):
        label = "2" if high == 2 else f"{low + 1:g}-{high:g}"
        bounds.append((label, (gpus > low) & (gpus <= high)))
    bounds.append(("above 32", gpus > _SIZE_EDGES[-1]))
    for label, mask in bounds:
        count = int(mask.sum())
        if count:
            share = float(work.filter(mask).sum()) / total_work if total_work > 0 else None
            rows.append({"gpus": label, "jobs": count, "job_share": count / jobs.height, "gpu_hour_share": share})
    return rows


def _shares(jobs: pl.DataFrame, column: str, top: int = 20) -> list[dict[str, Any]]:
    known = jobs[column].drop_nulls()
    if known.is_empty():
        return []
    counts = known.value_counts().sort(["count", column], descending=[True, False]).head(top)
    return [{"value": value, "jobs": count} for value, count in counts.iter_rows()]

"""Plots of a trace: durations, sizes, arrivals, demand over time."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill

import numpy as np
import polars as pl

from trainmaster.report.style import figure, legend_outside, look, save
from trainmaster.traces.describe import describe
from trainmaster.traces.trace import JobTrace

_TITLE_WIDTH = 70
_TIMES = ((1, "1 s"), (60, "1 min"), (3600, "1 h"), (86_400, "1 d"), (864_000, "10 d"))


def plot_trace(trace: JobTrace, folder: Path, suffix: str = "png") -> list[Path]:
    """Write every plot that the trace has the data for; returns the files."""
    made = [_arrivals(trace, folder / f"arrivals.{suffix}"), _sizes(trace, folder / f"sizes.{suffix}")]
    if trace.jobs["duration_s"].null_count() < trace.jobs.height:
        made.append(_durations(trace, folder / f"durations.{suffix}"))
        made.append(_demand(trace, folder / f"demand.{suffix}"))
    return made


def _title(trace: JobTrace, what: str) -> str:
    generated = ", ".join(trace.generated_fields)
    note = "\n" + fill(f"generated columns: {generated}", _TITLE_WIDTH) if generated else ""
    return f"{trace.name}: {what}{note}"


def _durations(trace: JobTrace, path: Path) -> Path:
    jobs = trace.jobs.filter((pl.col("duration_s") > 0) & (pl.col("gpus") > 0))
    classes = (
        ("1 GPU or less", jobs["gpus"] <= 1),
        ("2-7 GPUs", (jobs["gpus"] > 1) & (jobs["gpus"] < 8)),
        ("8 or more", jobs["gpus"] >= 8),
    )
    with figure(_title(trace, "durations by size"), "run time", "share of jobs") as (made, axes):
        for index, (label, mask) in enumerate(classes):
            values = np.sort(jobs["duration_s"].filter(mask).to_numpy())
            if len(values):
                shown = np.unique(np.linspace(0, len(values) - 1, 500).astype(int))
                axes.plot(
                    values[shown], (shown + 1) / len(values), label=f"{label} ({len(values):,})", **look(index).line()
                )
        axes.set_xscale("log")
        axes.set_ylim(0, 1.02)
        axes.set_xticks([t for t, _ in _TIMES], [name for _, name in _TIMES])
        axes.minorticks_off()
        legend_outside(axes)
        return save(made, path)


def _sizes(trace: JobTrace, path: Path) -> Path:
    rows = describe(trace)["sizes"]
    places = np.arange(len(rows))
    with figure(_title(trace, "sizes"), "GPUs of the job", "share") as (made, axes):
        for index, (key, label) in enumerate((("job_share", "of jobs"), ("gpu_hour_share", "of GPU-hours"))):
            if rows[0][key] is None:  # no duration is known
                continue
            axes.bar(places + (index - 0.5) * 0.4, [r[key] for r in rows], 0.38, label=label, **look(index).bar())
        axes.set_xticks(places, [r["gpus"] for r in rows])
        axes.grid(axis="x", visible=False)
        legend_outside(axes)
        return save(made, path)


def _arrivals(trace: JobTrace, path: Path) -> Path:
    days = trace.jobs["submit_s"].to_numpy() / 86_400.0
    bins = int(np.clip(np.ceil((days[-1] - days[0]) * 4), 10, 400))
    counts, edges = np.histogram(days, bins=bins)
    width_h = (edges[1] - edges[0]) * 24
    with figure(_title(trace, "arrivals"), "day of the trace", f"jobs per {width_h:.2g} h") as (made, axes):
        axes.stairs(counts, edges, fill=True, color=look(0).colour)
        return save(made, path)


def _demand(trace: JobTrace, path: Path) -> Path:
    """GPUs that would be busy if every job started when it was submitted."""
    jobs = trace.jobs.filter(pl.col("duration_s").is_not_null())
    starts = jobs["submit_s"].to_numpy()
    gpus = jobs["gpus"].to_numpy()
    times = np.concatenate([starts, starts + jobs["duration_s"].to_numpy()])
    changes = np.concatenate([gpus, -gpus])
    order = np.argsort(times, kind="stable")
    level = np.cumsum(changes[order])
    grid = np.linspace(starts[0], starts[-1] if starts[-1] > starts[0] else starts[0] + 1, 800)
    at = np.searchsorted(times[order], grid, side="right") - 1
    with figure(_title(trace, "demand without queueing"), "day of the trace", "GPUs") as (made, axes):
        axes.plot(grid / 86_400.0, level[at], **look(0).line())
        axes.set_ylim(bottom=0)
        return save(made, path)

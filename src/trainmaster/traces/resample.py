"""Seeded variants of a trace, so that a comparison over seeds says how much its result owes to chance.

`windows` is the non-overlapping block bootstrap: the span is cut into windows (a day each, when the trace
lasts ten days or more; else a tenth of the span), and as many windows are drawn with replacement and laid
end to end. What happens within a window stays together: bursts, batches of alike jobs, the hours of the day.
`jobs` keeps every arrival time and draws for each, with replacement, a job of the trace to arrive there.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from trainmaster.model.errors import InputError
from trainmaster.traces.slice import move_rows
from trainmaster.traces.trace import JobTrace

KINDS = ("windows", "jobs", "none")
DAY_S = 86_400.0
WINDOWS_MIN = 10


def window_s(trace: JobTrace) -> float:
    """Length of the windows that `windows` draws."""
    submits_s = trace.jobs["submit_s"]
    span_s = float(submits_s[-1] - submits_s[0])
    return DAY_S if span_s >= WINDOWS_MIN * DAY_S else max(span_s / WINDOWS_MIN, 1e-3)


def resample(trace: JobTrace, kind: str, seed: int) -> JobTrace:
    """Seed 0 is the trace itself; every other seed is a variant. Ids get `~k`, the k-th copy of it."""
    if kind not in KINDS:
        raise InputError(f"unknown resampling '{kind}'", "one of " + ", ".join(KINDS), column="--resample")
    if kind == "none" or seed == 0 or trace.jobs.height < 2:
        return trace
    rng = np.random.Generator(np.random.PCG64([seed, 11]))
    submits_s = trace.jobs["submit_s"].to_numpy()
    if kind == "jobs":
        rows = rng.integers(len(submits_s), size=len(submits_s))
        arrivals_s = submits_s
    else:
        rows, arrivals_s = _draw_windows(submits_s, window_s(trace), rng)
    drawn = move_rows(trace.jobs[rows.tolist()], pl.Series("shift", arrivals_s - submits_s[rows]))
    # Addition may leave the last bit off: say exactly when a job arrives, so that the order holds.
    drawn = drawn.with_columns(pl.Series("submit_s", arrivals_s))
    copies = pl.int_range(pl.len()).over("job_id").cast(pl.String)
    drawn = drawn.with_columns(job_id=pl.col("job_id") + "~" + copies)
    return replace(trace, jobs=drawn.select(trace.jobs.columns), attempts=None)


def _draw_windows(submits_s: np.ndarray, length_s: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows in their new order and when each arrives; redrawn if no job is in any window."""
    first_s = submits_s[0]
    windows = max(int(np.ceil((submits_s[-1] - first_s) / length_s)), 1)
    window_of = np.minimum(((submits_s - first_s) / length_s).astype(np.int64), windows - 1)
    edges: np.ndarray = np.searchsorted(window_of, np.arange(windows + 1))
    while True:
        chosen = rng.integers(windows, size=windows)
        rows = np.concatenate([np.arange(int(edges[w]), int(edges[w + 1])) for w in chosen.tolist()])
        if len(rows):
            break
    places = np.repeat(np.arange(windows), edges[chosen + 1] - edges[chosen])
    arrivals_s = submits_s[rows] + (places - window_of[rows]) * length_s
    order = np.argsort(arrivals_s, kind="stable")
    return rows[order], np.round(arrivals_s[order], 3)

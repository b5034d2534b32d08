"""From samples at every change to time-weighted means over equal intervals: what plots and tables hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from trainmaster.model.units import MS_PER_S

COLUMNS = ("gpus_in_use", "running", "waiting")


def binned(samples: Sequence[tuple[int, float, int, int]], first_s: float, width_s: float) -> pl.DataFrame:
    """Means over [first_s + k width_s, + width_s) until the last sample; each sample holds until the next."""
    names = ("time_s", *COLUMNS)
    if not samples:
        return pl.DataFrame(schema=dict.fromkeys(names, pl.Float64()))
    raw = np.array(samples, dtype=np.float64)
    times_s = raw[:, 0] / MS_PER_S
    count = max(int(np.ceil((times_s[-1] - first_s) / width_s)), 1)
    edges_s = first_s + width_s * np.arange(count + 1)
    columns = [edges_s[:-1]]
    for values in raw[:, 1:].T:
        # Integral of a step function, read off at the edges: linear between samples, level before and after.
        area = np.concatenate([[0.0], np.cumsum(values[:-1] * np.diff(times_s))])
        at_edges = np.interp(edges_s, times_s, area)
        columns.append(np.diff(at_edges) / width_s)
    return pl.DataFrame(dict(zip(names, columns, strict=True)))

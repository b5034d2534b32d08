"""Fit a generator to a trace, so that a private trace can be shared as a synthetic one.

What scheduling results depend on is kept: how sizes and durations go together, tail included, and how work
arrives over time at every scale above the window. Jobs fall into cells (size class x duration band). The
model holds, per cell, means of durations over slices of at least `SLICE_JOBS_MIN` jobs, and per time window
how many jobs of each cell arrived. No job of the original, no identifier and no single duration is in it.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from trainmaster.model.errors import InputError
from trainmaster.traces.generator import trace_from_arrays
from trainmaster.traces.trace import JobTrace

SLICE_JOBS_MIN = 5
# Fine at the top: when the few longest jobs arrive decides how long FIFO queues get.
_BANDS = (0.0, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 1.0)
_SLICES_MAX = 24
_FORMAT = "trainmaster-fitted-trace-1"


@dataclass(frozen=True)
class Cell:
    """Jobs of one size class and duration band: sizes with shares, ascending slice means of the duration."""

    gpus: tuple[float, ...]
    gpu_shares: tuple[float, ...]
    slice_means_s: tuple[float, ...]
    jobs: int


@dataclass(frozen=True)
class FittedTrace:
    """`counts[k]` are (window, cell, jobs) triples; `clumping` is the share of gaps below a second."""

    name: str
    jobs: int
    window_s: float
    windows: int
    cells: tuple[Cell, ...]
    counts: tuple[tuple[int, int, int], ...]
    clumping: float
    first_submit_s: float = 0.0
    format: str = _FORMAT


def fit(trace: JobTrace, *, window_s: float = 3 * 3600.0) -> FittedTrace:
    """The small model of a trace. Jobs without GPUs or without a duration are left out."""
    jobs = trace.jobs.filter(pl.col("duration_s").is_not_null() & (pl.col("gpus") > 0))
    if jobs.height < 4 * SLICE_JOBS_MIN:
        raise InputError(
            f"{jobs.height} jobs with GPUs and a duration are too few to fit",
            f"at least {4 * SLICE_JOBS_MIN}",
            "Fit a longer trace.",
        )
    if not window_s > 0:
        raise InputError(f"a window of {window_s} s", "a positive number of seconds", column="window_s")
    submits_s = jobs["submit_s"].to_numpy()
    gpus = jobs["gpus"].to_numpy()
    durations_s = jobs["duration_s"].to_numpy()
    cell_of, cells = _cells(gpus, durations_s)
    start_s = float(submits_s[0])
    windows = np.floor((submits_s - start_s) / window_s).astype(np.int64)
    keys, counts = np.unique(windows * len(cells) + cell_of, return_counts=True)
    gaps_s = np.diff(submits_s)
    return FittedTrace(
        name=f"{trace.name}-fitted",
        jobs=jobs.height,
        window_s=float(window_s),
        windows=int(windows[-1]) + 1,
        cells=tuple(cells),
        counts=tuple(
            (int(key) // len(cells), int(key) % len(cells), int(count)) for key, count in zip(keys, counts, strict=True)
        ),
        clumping=float(np.mean(gaps_s < 1.0)) if len(gaps_s) else 0.0,
    )


def _cells(gpus: np.ndarray, durations_s: np.ndarray) -> tuple[np.ndarray, list[Cell]]:
    """Size classes are powers of two (small ones join their neighbour below), bands quantiles of duration."""
    classes = np.floor(np.log2(np.maximum(gpus, 2.0**-4))).astype(int)
    labels, totals = np.unique(classes, return_counts=True)
    merged = _merge_small(labels, totals, 4 * SLICE_JOBS_MIN)
    classes = np.array([merged[label] for label in classes.tolist()])
    cell_of = np.empty(len(gpus), dtype=np.int64)
    cells: list[Cell] = []
    for label in sorted(set(merged.values())):
        members = np.flatnonzero(classes == label)
        order = members[np.argsort(durations_s[members], kind="stable")]
        start = 0
        for share in _BANDS[1:]:
            end = len(order) if share == 1.0 else round(share * len(order))
            left = len(order) - end
            if end - start < SLICE_JOBS_MIN or 0 < left < SLICE_JOBS_MIN:
                continue  # too few for a band of its own: the next one takes them
            band = order[start:end]
            cell_of[band] = len(cells)
            cells.append(_cell(gpus[band], durations_s[band]))
            start = end
        if start < len(order):
            raise AssertionError("every job has a cell")
    return cell_of, cells


def _merge_small(labels: np.ndarray, totals: np.ndarray, least: int) -> dict[int, int]:
    merged: dict[int, int] = {}
    groups: list[tuple[list[int], int]] = []
    for label, total in zip(labels.tolist(), totals.tolist(), strict=True):
        if groups and (groups[-1][1] < least or total < least):
            groups[-1] = ([*groups[-1][0], label], groups[-1][1] + total)
        else:
            groups.append(([label], total))
    if len(groups) > 1 and groups[0][1] < least:
        groups[1] = (groups[0][0] + groups[1][0], groups[0][1] + groups[1][1])
        groups.pop(0)
    for members, _ in groups:
        merged |= dict.fromkeys(members, members[0])
    return merged


def _cell(gpus: np.ndarray, durations_s: np.ndarray) -> Cell:
    sizes, counts = np.unique(gpus, return_counts=True)
    slices = int(np.clip(len(durations_s) // SLICE_JOBS_MIN, 1, _SLICES_MAX))
    means = [float(part.mean()) for part in np.array_split(np.sort(durations_s), slices)]
    return Cell(
        tuple(float(size) for size in sizes),
        tuple(float(count) / len(gpus) for count in counts),
        tuple(round(mean, 3) for mean in means),
        len(gpus),
    )


def sample(model: FittedTrace, seed: int) -> JobTrace:
    """A synthetic trace of the same length and work. Within a cell durations are drawn by strata, one per
    job, so that the tail weighs as much in every sample as in the original."""
    rng = np.random.Generator(np.random.PCG64(seed))
    cell_of = np.repeat([c for _, c, _ in model.counts], [n for *_, n in model.counts])
    window_of = np.repeat([w for w, _, _ in model.counts], [n for *_, n in model.counts])
    gpus = np.empty(len(cell_of))
    durations_s = np.empty(len(cell_of))
    for index, cell in enumerate(model.cells):
        members = np.flatnonzero(cell_of == index)
        count = len(members)
        ranks = (rng.permutation(count) + rng.random(count)) / max(count, 1)
        durations_s[members] = _quantile(np.array(cell.slice_means_s), cell.jobs, ranks)
        edges = np.cumsum(cell.gpu_shares)
        strata = (rng.permutation(count) + 0.5) / max(count, 1)
        gpus[members] = np.array(cell.gpus)[np.minimum(np.searchsorted(edges, strata), len(edges) - 1)]
    submits_s = _arrivals(model, window_of, rng)
    return trace_from_arrays(
        model.name, submits_s, gpus, np.maximum(np.ceil(durations_s), 0.0), {"fitted": model.name, "seed": seed}
    )


def _quantile(means: np.ndarray, fitted_jobs: int, ranks: np.ndarray) -> np.ndarray:
    """Piecewise linear through the slice means at slice centres, flat ends stretched so that slice means hold
    approximately: half a step beyond the outermost means."""
    if len(means) == 1:
        return np.full(len(ranks), means[0])
    centres = (np.arange(len(means)) + 0.5) / len(means)
    low = max(0.0, means[0] - (means[1] - means[0]) / 2)
    high = means[-1] + (means[-1] - means[-2]) / 2
    drawn = np.interp(ranks, [0.0, *centres, 1.0], [low, *means, high])
    # Linear interpolation overshoots convex tails: put the mean back. The first slices hold one job more.
    sizes = fitted_jobs // len(means) + (np.arange(len(means)) < fitted_jobs % len(means))
    mean = float(np.average(means, weights=sizes)) if fitted_jobs >= len(means) else float(means.mean())
    total = float(drawn.sum())
    return drawn * (mean * len(ranks) / total) if total > 0 else drawn


def _arrivals(model: FittedTrace, window_of: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Uniform within the window; a share `clumping` of the jobs comes together with another one."""
    places = rng.random(len(window_of))
    clumped = rng.random(len(window_of)) < model.clumping
    followed = np.maximum(np.arange(len(window_of)) - 1, 0)
    for index in np.flatnonzero(clumped).tolist():
        if window_of[followed[index]] == window_of[index]:
            places[index] = places[followed[index]]
    submits_s = (window_of + places) * model.window_s
    return submits_s - submits_s.min()


def to_json(model: FittedTrace) -> str:
    return json.dumps(asdict(model), sort_keys=True, separators=(",", ":")) + "\n"


def from_json(path: str | Path) -> FittedTrace:
    """Read a fitted model back; anything else is an `InputError`."""
    path = Path(path)
    try:
        document: Any = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"cannot read a model ({error})", "JSON written by `traces fit`", "", path) from None
    try:
        if document["format"] != _FORMAT:
            raise ValueError(f"format {document['format']!r}")
        cells = tuple(
            Cell(
                tuple(map(float, c["gpus"])),
                tuple(map(float, c["gpu_shares"])),
                tuple(map(float, c["slice_means_s"])),
                int(c["jobs"]),
            )
            for c in document["cells"]
        )
        counts = tuple((int(w), int(c), int(n)) for w, c, n in document["counts"])
        if not counts or any(not (0 <= c < len(cells) and n > 0 and w >= 0) for w, c, n in counts):
            raise ValueError("counts do not fit the cells")
        numbers = [x for c in cells for x in (*c.gpus, *c.gpu_shares, *c.slice_means_s)]
        if not all(math.isfinite(x) and x >= 0 for x in numbers) or not all(
            c.gpus and c.slice_means_s and len(c.gpus) == len(c.gpu_shares) for c in cells
        ):
            raise ValueError("a cell is damaged")
        window_s = float(document["window_s"])
        if not 0 < window_s < 1e12:
            raise ValueError("window_s")
        return FittedTrace(
            str(document["name"]),
            int(document["jobs"]),
            window_s,
            int(document["windows"]),
            cells,
            counts,
            float(document["clumping"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"not a fitted model ({error})", "JSON written by `traces fit`", "Fit the trace again.", path
        ) from None

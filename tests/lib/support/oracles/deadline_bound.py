"""How many deadlines any schedule could meet: a linear program, bounded by weak duality, that no policy can exceed.

Everything is made easier than it is: arrivals are known in advance, GPUs divide at will, stopping and resizing
cost nothing, a job may be met in part. What stays: between two moments at which a job comes or is due, no more
GPU time is used than the cluster has, a job uses no more GPUs than its largest size, and in all at least the
area it needs. That area is the least GPU time with which its work can be done within its window: with v = work
/ window, window * f(v), where f is the convex envelope of (speed, GPUs) over its sizes and standing still; by
Jensen no mixture of sizes over time needs less.
"""

from __future__ import annotations

from collections.abc import Sequence

import highspy
import numpy as np
import numpy.typing as npt

from support.weak_duality import bounded_maximum
from trainmaster.model.job import JobSpec
from trainmaster.model.units import GPU_MILLI, MS_PER_S

Floats = npt.NDArray[np.float64]


def least_area_gpu_s(spec: JobSpec, gpus: int) -> float:
    """Least GPU seconds for the whole job between submission and deadline; inf when it cannot be in time."""
    each = spec.worker.gpu_milli / GPU_MILLI
    sizes = np.arange(spec.workers_min, spec.workers_max + 1)
    sizes = sizes[sizes * each <= gpus]
    window_s = (spec.deadline_ms - spec.submit_ms) / MS_PER_S
    if sizes.size == 0 or spec.work_total is None or window_s <= 0.0:
        return np.inf
    base = max(spec.steps_per_s.values(), default=1.0) if spec.steps_per_s else 1.0
    speeds = base * np.asarray(spec.scaling.speed(sizes), float) / float(spec.scaling.speed(spec.workers_ref))
    return window_s * _envelope(speeds, np.asarray(sizes * each, np.float64), spec.work_total / window_s)


def _envelope(speeds: Floats, amounts: Floats, wanted: float) -> float:
    """The least amount on average for this average speed, mixing the points and standing still."""
    if wanted > speeds.max() * (1.0 + 1e-12):
        return float(np.inf)
    points = sorted([(0.0, 0.0), *zip(speeds.tolist(), amounts.tolist(), strict=True)])
    hull: list[tuple[float, float]] = []
    for point in points:
        while len(hull) > 1 and _not_below(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    return float(np.interp(wanted, [p[0] for p in hull], [p[1] for p in hull]))


def _not_below(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    """Whether b lies on or above the line from a to c."""
    return (b[1] - a[1]) * (c[0] - a[0]) >= (c[1] - a[1]) * (b[0] - a[0])


def most_in_time(specs: Sequence[JobSpec], gpus: int) -> float:
    """At most so many of the jobs with a deadline can be in time on this many GPUs of one type."""
    timed = [(spec, least_area_gpu_s(spec, gpus)) for spec in specs if spec.deadline_kind]
    timed = [(spec, area) for spec, area in timed if area < np.inf]
    if not timed:
        return 0.0
    breaks = np.unique([ms for spec, _ in timed for ms in (spec.submit_ms, spec.deadline_ms)])
    lengths_s = np.diff(breaks) / MS_PER_S
    n, m = len(timed), len(lengths_s)
    first = np.searchsorted(breaks, [spec.submit_ms for spec, _ in timed])
    last = np.searchsorted(breaks, [spec.deadline_ms for spec, _ in timed])
    # Columns: x (n), then GPU seconds y of each job in each interval of its window. Rows: jobs, then intervals.
    starts, index, value, upper = [], [], [], [np.ones(n)]
    for j, (_, area) in enumerate(timed):
        starts.append(len(index))
        index.append(j)
        value.append(-area)
    for j, (spec, _) in enumerate(timed):
        widest = min(spec.workers_max * spec.worker.gpu_milli / GPU_MILLI, gpus)
        upper.append(widest * lengths_s[first[j] : last[j]])
        for i in range(int(first[j]), int(last[j])):
            starts.append(len(index))
            index += [j, n + i]
            value += [1.0, 1.0]
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(starts), n + m
    lp.col_cost_ = np.concatenate([np.ones(n), np.zeros(len(starts) - n)])
    lp.col_lower_, lp.col_upper_ = np.zeros(len(starts)), np.concatenate(upper)
    infinity = highspy.kHighsInf
    lp.row_lower_ = np.concatenate([np.zeros(n), np.full(m, -infinity)])
    lp.row_upper_ = np.concatenate([np.full(n, infinity), gpus * lengths_s])
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.array([*starts, len(index)], np.int32)
    lp.a_matrix_.index_ = np.array(index, np.int32)
    lp.a_matrix_.value_ = np.array(value)
    return bounded_maximum(lp)

"""What DL2 believes of speeds when it has to measure them: profiles of all jobs of a model put together.

The paper's network knows a job by its type, so what one job of a type taught serves the next. Here each new job is
profiled at a few sizes, like Optimus's, but every job at other sizes, and the points of all jobs of one model are
fitted together, with every term of `Scaling` instead of the few that one job's points can tell apart. Jobs of a model
may differ by a factor (batch, data): a job's own points say which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt

from trainmaster.estimate.nonnegative import nonnegative_least_squares
from trainmaster.estimate.speed_fit import Point, doubling
from trainmaster.model.memo import Memo
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.stable_hash import stable_hash
from trainmaster.policies.optimus_estimates import TERMS

Floats = npt.NDArray[np.float64]
Cell = tuple[int, int, int, float]
"""(workers, servers, how often measured, mean logarithm of the speed)."""
Cells = tuple[Cell, ...]
MEMO = "dl2_profiles"
CURVES = "fitted_curve"


def measured(
    sizes: Sequence[tuple[int, int]], speed: Callable[[int, int], float], noise: float, rng: np.random.Generator
) -> list[Point]:
    """A job's speed at these sizes, each measured with this relative error."""
    return [(w, p, speed(w, p) * max(1.0 + noise * float(rng.standard_normal()), 0.05)) for w, p in sizes]


def sizes_to_profile(
    workers: tuple[int, int], servers: tuple[int, int], count: int, rng: np.random.Generator
) -> list[tuple[int, int]]:
    """`count` of the sizes made of powers of two and the ends of the ranges, drawn anew for each job."""
    grid = [(w, p) for w in doubling(*workers) for p in doubling(*servers)]
    picked = rng.choice(len(grid), size=min(count, len(grid)), replace=False)
    return [grid[k] for k in sorted(picked.tolist())]


def learned(known: Cells, points: Sequence[Point]) -> tuple[Cells, Floats]:
    """The cells with a job's points among them, and the job's curve (seconds per step)."""
    logs = np.array([np.log(speed) for _, _, speed in points])
    level = 0.0
    if known:
        curve = fitted(known)
        level = float(np.mean([log + np.log(step_s(curve, w, p)) for log, (w, p, _) in zip(logs, points, strict=True)]))
    cells = {(w, p): (n, mean) for w, p, n, mean in known}
    for (w, p, _), log in zip(points, (logs - level).tolist(), strict=True):
        n, mean = cells.get((w, p), (0, 0.0))
        cells[w, p] = (n + 1, mean + (log - mean) / (n + 1))
    merged = tuple((w, p, *cells[w, p]) for w, p in sorted(cells))
    return merged, fitted(merged) / np.exp(level)


@lru_cache(maxsize=256)
def fitted(cells: Cells) -> Floats:
    """Coefficients of `Scaling`, none negative, with the least relative errors; often measured counts more."""
    w, p, n, log_speed = (np.array(column, np.float64) for column in zip(*cells, strict=True))
    served = bool((p > 0).any())
    safe = np.maximum(p, 1.0)
    columns = [1 / w, np.ones_like(w), w / safe * served, w, p, 1 / safe * served, p / w]
    weight = np.sqrt(n)
    design = np.stack(columns, axis=1) * np.exp(log_speed)[:, None] * weight[:, None]
    return nonnegative_least_squares(design, weight)


def step_s(curve: Floats, w: int, p: int) -> float:
    time = curve[0] / w + curve[1] + curve[3] * w
    if p > 0:
        time += curve[2] * w / p + curve[4] * p + curve[5] / p + curve[6] * p / w
    return float(max(time, 1e-12))


def generator(seed: int, job_id: str) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([seed, stable_hash(job_id), 3]))


def profile_new(view: Snapshot, rows: npt.NDArray[np.int64], noise: float, count: int) -> Memo:
    """Profile the jobs that have no curve yet, in order of arrival. A job without a model's name stands alone."""
    jobs = view.jobs
    stored = view.memo.columns.get(CURVES)
    shape = (len(jobs), len(TERMS))
    curves = np.zeros(shape) if stored is None or stored.shape != shape else np.array(stored)
    pools: dict[str, list[list[float]]] = dict(_pools(view.memo))
    fresh = rows[~curves[rows].any(axis=1)]
    for row in fresh[np.argsort(jobs.arrival[fresh], kind="stable")].tolist():
        speeds = np.where(jobs.allowed[row], jobs.throughput[row], 0.0)
        if not speeds.any():
            continue
        kind, rng = int(np.argmax(speeds)), generator(view.seed, jobs.id(row))
        workers = (int(jobs.workers_min[row]), int(jobs.workers_max[row]))
        servers = (int(jobs.servers_min[row]), int(jobs.servers_max[row]))
        points = measured(sizes_to_profile(workers, servers, count, rng), partial(jobs.rate_at, row, kind), noise, rng)
        points = [point for point in points if point[0] > 0 and point[2] > 0]
        if not points:
            continue
        model = jobs.spec(row).model or ""
        known = tuple((int(w), int(p), int(n), mean) for w, p, n, mean in pools.get(model, [])) if model else ()
        cells, curves[row] = learned(known, points)
        if model:
            pools[model] = [list(cell) for cell in cells]
    return Memo({**view.memo.values, MEMO: pools}, {**view.memo.columns, CURVES: curves})


def _pools(memo: Memo) -> Mapping[str, list[list[float]]]:
    return memo.values.get(MEMO, {})

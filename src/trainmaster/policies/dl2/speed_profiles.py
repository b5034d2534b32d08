"""What DL2 believes of speeds when it has to measure them.

The paper's network knows a job by its type, so what one job of a type taught serves the next. Here each new job is
profiled at a few sizes, like Optimus's: half of them drawn, half near the best size by what is known of its model. How
far it then really gets in a slot is a measurement too, and a good one. Measurements of all jobs of a model are
put together (`speed_evidence`), and every job of the model is believed to be as fast as they say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from trainmaster.core.arrays import Floats, Ints
from trainmaster.estimate.speed_fit import doubling
from trainmaster.model.policy_state import PolicyState
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.stable_hash import stable_hash
from trainmaster.model.units import MS_PER_S
from trainmaster.policies.dl2.evidence_terms import N_TERM, PROGRESS_WEIGHT
from trainmaster.policies.dl2.speed_evidence import add_point, drawn_part, likely_best, move, settle, size_near

MEMO = "dl2_evidence"
CURVES = "fitted_curve"
OWN, FACTOR, BEFORE = "dl2_own_evidence", "dl2_factor", "dl2_before"
"""Columns: a job's evidence, its factor, and (work done, time, workers, servers, workers and servers already measured)
at the last decision."""
EVIDENCE = (N_TERM + 1, N_TERM)
LEAST_MEASURED_MS = 60_000
"""Progress over a shorter time says too little of the speed."""


class Draws(NamedTuple):
    """The chances of a job's profile: sizes for the drawn part, where to look near the best, errors."""

    sizes: Ints
    near: Floats
    noise: Floats


def profile_draws(workers: tuple[int, int], servers: tuple[int, int], count: int, seed: int, job_id: str) -> Draws:
    """From (seed, job id) alone. The drawn sizes are of powers of two and the ends of the ranges."""
    rng = np.random.Generator(np.random.PCG64([seed, stable_hash(job_id), 3]))
    grid = np.array([(w, p) for w in doubling(*workers) for p in doubling(*servers)], np.int64)
    drawn = grid[rng.permutation(len(grid))[:count]]
    sizes = drawn[np.arange(count) % len(drawn)]
    return Draws(sizes, rng.uniform(-1.0, 1.0, (count, 2)), rng.standard_normal(count))


def learn_speeds(view: Snapshot, rows: Ints, noise: float, count: int) -> PolicyState:
    """The memo with what these jobs have shown since the last decision: progress first, then profiles of the new ones
    in order of arrival, then a curve for each. A job without a model's name stands alone."""
    jobs, n = view.jobs, len(view.jobs)
    own = _column(view, OWN, EVIDENCE[0] * EVIDENCE[1]).reshape(n, *EVIDENCE)
    factors, before, curves = _column(view, FACTOR, 1)[:, 0], _column(view, BEFORE, 4), _column(view, CURVES, N_TERM)
    pools = {model: np.array(numbers).reshape(EVIDENCE) for model, numbers in _pools(view.memo).items()}
    changed: dict[str, list[int]] = {}
    for row in rows[factors[rows] > 0].tolist():
        if _progressed(view, row, own[row], before[row], pools, float(factors[row])):
            changed.setdefault(_model(view, row), [])
    fresh = rows[factors[rows] == 0]
    for row in fresh[np.argsort(jobs.arrival[fresh], kind="stable")].tolist():
        model = _model(view, row)
        pool = pools.get(model, np.zeros(EVIDENCE))
        if _profiled(view, row, own[row], pool, noise, count):
            factors[row] = 1.0
            move(pool, own[row], 0.0, 1.0)
            pools[model] = pool
            changed.setdefault(model, [])
    known = np.flatnonzero(factors > 0)
    for row in known.tolist():
        if (model := _model(view, row)) in changed:
            changed[model].append(row)
    for model, members in changed.items():
        curve = np.zeros(N_TERM)
        settle(pools[model], own, factors, np.array(members, np.int64), len(members), curve)
        curves[members] = curve * factors[members, None]
    before[:, 0], before[:, 1] = jobs.work_done, jobs.run_s
    kept = {model: pool.reshape(-1).tolist() for model, pool in pools.items() if not model.startswith(ALONE)}
    columns = {OWN: own.reshape(n, -1), FACTOR: factors[:, None], BEFORE: before, CURVES: curves}
    return PolicyState({**view.memo.values, MEMO: kept}, {**view.memo.columns, **columns})


ALONE = "job "
"""Begins the name under which a job without a model's is known while its curve is fitted."""


def _model(view: Snapshot, row: int) -> str:
    return view.jobs.spec(row).model or ALONE + view.jobs.id(row)


def _progressed(view: Snapshot, row: int, own: Floats, before: Floats, pools: dict[str, Floats], factor: float) -> bool:
    """Count what a job got done since the last decision, once for every size that it runs at."""
    jobs = view.jobs
    w, p, gpu_type = int(jobs.workers[row]), int(jobs.servers[row]), int(jobs.held_type[row])
    ran_s, done = float(jobs.run_s[row]) - before[1], float(jobs.work_done[row]) - before[0]
    if not jobs.holding[row] or gpu_type < 0 or (w, p) == (before[2], before[3]):
        return False
    if ran_s * MS_PER_S < LEAST_MEASURED_MS or done <= 0:
        return False
    fastest = _fastest(view, row)
    if fastest is None or not jobs.throughput[row, gpu_type] > 0:
        return False
    speed = done / ran_s * float(jobs.throughput[row, fastest] / jobs.throughput[row, gpu_type])
    model = _model(view, row)
    if model not in pools:  # it has no name: its own evidence is all there is
        pools[model] = np.zeros(EVIDENCE)
        move(pools[model], own, 0.0, factor)
    point = np.zeros(EVIDENCE)
    add_point(point, w, p, speed, PROGRESS_WEIGHT)
    own += point
    move(pools[model], point, 0.0, factor)
    before[2], before[3] = w, p
    return True


def _profiled(view: Snapshot, row: int, own: Floats, pool: Floats, noise: float, count: int) -> bool:
    """Measure a new job at a few sizes, each with this relative error; False if it runs nowhere."""
    jobs, gpu_type = view.jobs, _fastest(view, row)
    if gpu_type is None:
        return False
    workers = (int(jobs.workers_min[row]), int(jobs.workers_max[row]))
    servers = (int(jobs.servers_min[row]), int(jobs.servers_max[row]))
    draws = profile_draws(workers, servers, count, view.seed, jobs.id(row))
    best = (1, 1)
    least_w = max(workers[0], 1)
    for k in range(count):
        w, p = int(draws.sizes[k, 0]), int(draws.sizes[k, 1])
        if k == drawn_part(count):
            best = likely_best(pool, own, least_w, workers[1], *servers)
        if k >= drawn_part(count):
            w = int(size_near(best[0], least_w, workers[1], draws.near[k, 0]))
            p = int(size_near(best[1], *servers, draws.near[k, 1]))
        speed = jobs.rate_at(row, gpu_type, w, p) * max(1.0 + noise * float(draws.noise[k]), 0.05)
        if w > 0 and speed > 0:
            add_point(own, w, p, speed, 1.0)
    return bool(own[N_TERM].any())


def _fastest(view: Snapshot, row: int) -> int | None:
    """The type on which a job is profiled; speeds elsewhere are in proportion."""
    speeds = np.where(view.jobs.allowed[row], view.jobs.throughput[row], 0.0)
    return int(np.argmax(speeds)) if speeds.any() else None


def _column(view: Snapshot, name: str, width: int) -> Floats:
    stored, shape = view.memo.columns.get(name), (len(view.jobs), width)
    return np.zeros(shape) if stored is None or stored.shape != shape else np.array(stored)


def _pools(memo: PolicyState) -> Mapping[str, list[float]]:
    return memo.values.get(MEMO, {})

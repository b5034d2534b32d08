"""What Optimus believes about speed and remaining work: exact, with a given relative error, or really fitted.

Errors and profiles depend on (seed, job id) alone, so that they are stable for the life of a job. They are
kept in the memo once drawn, because drawing and fitting for every job at every decision would be slow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from trainmaster.core.arrays import Floats, Ints
from trainmaster.estimate.loss_fit import fit_loss
from trainmaster.estimate.speed_fit import fit_speed, profile_sizes
from trainmaster.model.policy_state import PolicyState
from trainmaster.model.scaling import Scaling
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.stable_hash import stable_hash

TERMS = ("a", "b", "c", "d", "e", "f", "g")
LEAST_LEFT = 0.01
"""A job that runs on has at least this fraction of its work before it, whatever the loss curve says."""


class Estimates(NamedTuple):
    """Per row: work left; the curve t(w, p) as coefficients, or as a row of `tables` (speed by workers) where
    `table` is not -1; and `scale`, by type, such that steps per second = scale / t(w, p)."""

    remaining: Floats
    coefficients: Floats
    table: Ints
    tables: Floats
    scale: Floats
    memo: PolicyState


Profile = Callable[[Snapshot, Ints, float, int], PolicyState]
"""(view, rows, noise, points per job) -> the memo with a `fitted_curve` for each row."""


def believe(
    view: Snapshot,
    rows: Ints,
    error: float,
    fitted: bool,
    profile_points: int,
    tolerance: float,
    profile: Profile | None = None,
) -> Estimates:
    """Beliefs about these rows (the others read zero). `profile`: how new jobs are fitted, if not each on its own."""
    jobs = view.jobs
    n = len(jobs)
    coefficients, table, tables = _curves(view, rows)
    reference = np.ones(n)
    asked = np.stack([jobs.curve[rows], jobs.workers_ref[rows], jobs.servers_ref[rows]], axis=1)
    distinct, member = np.unique(asked, axis=0, return_inverse=True)
    speeds = [float(jobs.curves[curve].speed(workers, servers)) for curve, workers, servers in distinct.tolist()]
    reference[rows] = np.maximum(np.array(speeds), 1e-300)[member.reshape(-1)]
    scale = jobs.throughput / reference[:, None]
    remaining = jobs.remaining.copy()
    memo = view.memo
    if fitted:
        memo = (profile or _fit_new)(view, rows, error, profile_points)
        curves = memo.columns["fitted_curve"]
        known = np.asarray(curves.any(axis=1))
        coefficients = np.where(known[:, None], curves, coefficients)
        table = np.where(known, -1, table)
        # Profiled on the fastest type; elsewhere in proportion.
        fastest = np.where(jobs.allowed, jobs.throughput, 0.0).max(axis=1, initial=0.0)
        relative = jobs.throughput / np.where(fastest > 0, fastest, 1.0)[:, None]
        scale = np.where(known[:, None], relative, scale)
        for row in rows.tolist():
            remaining[row] = _remaining_by_loss(view, row, tolerance, float(remaining[row]))
    elif error > 0:
        memo = _draw_new(view, rows, error)
        factors = memo.columns["estimate_factors"]
        scale = scale * factors[:, :1]
        remaining = remaining * factors[:, 1]
    return Estimates(remaining, coefficients, table, tables, scale, memo)


def _curves(view: Snapshot, rows: Ints) -> tuple[Floats, Ints, Floats]:
    """Coefficients by row; curves given as measured points become tables of speed by workers."""
    jobs = view.jobs
    n = len(jobs)
    coefficients, table = np.zeros((n, len(TERMS))), np.full(n, -1, np.int64)
    widest = int(jobs.workers_max[rows].max(initial=1))
    tables: list[Floats] = []
    curve_of = jobs.curve[rows]
    for index in np.unique(curve_of).tolist():
        curve = jobs.curves[index]
        members = rows[curve_of == index]
        if curve.points:
            table[members] = len(tables)
            tables.append(curve.speed(np.arange(widest + 2)))
        else:
            coefficients[members] = [getattr(curve, term) for term in TERMS]
    return coefficients, table, np.array(tables) if tables else np.zeros((1, widest + 2))


def _generator(view: Snapshot, row: int, salt: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([view.seed, stable_hash(view.jobs.id(row)), salt]))


def _draw_new(view: Snapshot, rows: Ints, error: float) -> PolicyState:
    """Factors of speed and work: off by `error`, up or down with equal chance, apart from each other."""
    factors = _column(view, "estimate_factors", 2)
    for row in rows[factors[rows, 0] == 0.0].tolist():
        signs = _generator(view, row, 1).integers(0, 2, size=2) * 2 - 1
        factors[row] = 1.0 + error * signs
    return PolicyState(view.memo.values, {**view.memo.columns, "estimate_factors": factors})


def _fit_new(view: Snapshot, rows: Ints, noise: float, count: int) -> PolicyState:
    """Profile each new job at a few sizes with measuring noise and fit its speed."""
    curves = _column(view, "fitted_curve", len(TERMS))
    jobs = view.jobs
    for row in rows[~curves[rows].any(axis=1)].tolist():
        speeds = np.where(jobs.allowed[row], jobs.throughput[row], 0.0)
        if not speeds.any():
            continue
        gpu_type = int(np.argmax(speeds))
        sizes = profile_sizes(
            (int(jobs.workers_min[row]), int(jobs.workers_max[row])),
            (int(jobs.servers_min[row]), int(jobs.servers_max[row])),
            count,
        )
        rng = _generator(view, row, 2)
        points = [
            (w, p, jobs.rate_at(row, gpu_type, w, p) * max(1.0 + noise * float(rng.standard_normal()), 0.05))
            for w, p in sizes
        ]
        curve: Scaling = fit_speed(points).scaling
        curves[row] = [getattr(curve, term) for term in TERMS]
    return PolicyState(view.memo.values, {**view.memo.columns, "fitted_curve": curves})


def _column(view: Snapshot, name: str, width: int) -> Floats:
    known = view.memo.columns.get(name)
    if known is None or known.shape != (len(view.jobs), width):
        return np.zeros((len(view.jobs), width))
    return np.array(known)


def _remaining_by_loss(view: Snapshot, row: int, tolerance: float, declared: float) -> float:
    """Work left until an epoch lowers the loss by less than `tolerance` of the first loss seen.

    What the job declares holds while it has not reported enough losses, or does not say what an epoch is.
    """
    history = view.jobs.losses(row)
    spec = view.jobs.spec(row)
    if not history or not spec.epochs_total or not spec.work_total:
        return declared
    curve = fit_loss(history)
    if curve is None:
        return declared
    steps = curve.converged_step(spec.work_total / spec.epochs_total, tolerance * history[0][1])
    return max(steps - float(view.jobs.work_done[row]), LEAST_LEFT * spec.work_total)

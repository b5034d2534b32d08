"""Dorm's program (Sun et al., 2017): worker counts over pooled capacity that use most of it.

    max sum_i u_i n_i,  least_i <= n_i <= most_i whole
    capacity of every resource of both roles;  sum_i |s_i n_i - fair_i| <= 2 theta1 R;
    at most ceil(theta2 * jobs that run) of those that run are adjusted

u_i is the part of all resources that a worker takes, s_i its dominant share. The program is dived into: its relaxation
says which jobs to adjust; with the others held, a second relaxation is rounded down and filled up. A whole solve by
branch and bound takes thirty times as long and is what is left when the dive ends outside the bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import highspy
import numpy as np

from trainmaster.model.utility import FloatArray
from trainmaster.policies.oasis.formulation import AdmissionJob, Cluster

_DUST = 1e-9


@dataclass(frozen=True)
class Share:
    """A job to be given workers: what it has now, its least and most, its dominant share in fairness."""

    job: AdmissionJob
    now: int
    least: int
    most: int
    fair: float


@dataclass(frozen=True)
class Program:
    """The program's figures; job i has the column i for its workers and N + i for its loss of fairness."""

    worth: FloatArray
    share: FloatArray
    fair: FloatArray
    least: FloatArray
    most: FloatArray
    now: FloatArray
    """Workers of those that run and need not shrink in any case; else 0."""
    use: FloatArray
    """(resources, jobs): what a worker takes, with its part of a parameter server."""
    limit: FloatArray
    loss_max: float
    adjusted_max: int


def dorm_counts(shares: list[Share], cluster: Cluster, theta1: float, theta2: float) -> list[int] | None:
    """Workers of each job; None when the bounds cannot be met together."""
    if not shares:
        return []
    program = _program(shares, cluster, theta1, theta2)
    counts = _dive(program)
    return _branch_and_bound(program) if counts is None else counts


def _program(shares: list[Share], cluster: Cluster, theta1: float, theta2: float) -> Program:
    worker_total = cluster.capacity[cluster.hosts_workers].sum(axis=0)
    ps_total = cluster.capacity[cluster.hosts_ps].sum(axis=0)
    total = cluster.capacity.sum(axis=0)
    # PS enter as b/B per worker: capacity is pooled here anyway, and placement rounds up.
    ratio = np.array([s.job.worker_mb_per_slot / s.job.server_mb_per_slot for s in shares])
    worker = np.array([s.job.worker_demand for s in shares]).T
    ps = ratio * np.array([s.job.server_demand for s in shares]).T
    both = worker + ps
    now = np.array([s.now if s.now <= s.most else 0 for s in shares], float)
    return Program(
        worth=(both[total > 0] / total[total > 0, None]).sum(axis=0),
        share=np.vstack([
            worker[worker_total > 0] / worker_total[worker_total > 0, None],
            ps[ps_total > 0] / ps_total[ps_total > 0, None],
            np.zeros((1, len(shares))),
        ]).max(axis=0),
        fair=np.array([s.fair for s in shares]),
        least=np.array([s.least for s in shares], float),
        most=np.array([s.most for s in shares], float),
        now=now,
        use=np.vstack([worker, ps, both]),
        limit=np.concatenate([worker_total, ps_total, total]),
        loss_max=2.0 * theta1 * len(cluster.resources),
        adjusted_max=math.ceil(theta2 * int((now > 0).sum())),
    )  # fmt: skip


def _model(p: Program) -> tuple[highspy.Highs, list[int], list[int]]:
    """The relaxation; with the columns of the adjusted flags, and of the jobs they belong to."""
    model = highspy.Highs()
    for name, setting in (
        ("output_flag", False), ("threads", 1), ("random_seed", 0), ("mip_rel_gap", 1e-2),
        ("mip_max_nodes", 10),
    ):  # fmt: skip
        model.setOptionValue(name, setting)
    model.changeObjectiveSense(highspy.ObjSense.kMaximize)
    infinity = highspy.kHighsInf
    jobs = len(p.worth)
    running = np.flatnonzero(p.now > 0).tolist()
    for i in range(jobs):
        model.addCol(float(p.worth[i]), float(p.least[i]), float(p.most[i]), 0, [], [])
    for _ in range(jobs):
        model.addCol(0.0, 0.0, infinity, 0, [], [])
    flags = [2 * jobs + j for j in range(len(running))]
    for _ in flags:
        model.addCol(0.0, 0.0, 1.0, 0, [], [])
    for i in range(jobs):
        model.addRow(-float(p.fair[i]), infinity, 2, [jobs + i, i], [1.0, -float(p.share[i])])
        model.addRow(float(p.fair[i]), infinity, 2, [jobs + i, i], [1.0, float(p.share[i])])
    for i, flag in zip(running, flags, strict=True):
        now, most = float(p.now[i]), float(p.most[i])
        model.addRow(-infinity, now, 2, [i, flag], [1.0, -most])
        model.addRow(now, infinity, 2, [i, flag], [1.0, most])
    for use, limit in zip(p.use, p.limit, strict=True):
        taken = np.flatnonzero(use)
        if taken.size:
            model.addRow(-infinity, float(limit), len(taken), taken.tolist(), use[taken].tolist())
    model.addRow(-infinity, p.loss_max, jobs, list(range(jobs, 2 * jobs)), [1.0] * jobs)
    if flags:
        model.addRow(-infinity, float(p.adjusted_max), len(flags), flags, [1.0] * len(flags))
    return model, flags, running


def _dive(p: Program) -> list[int] | None:
    model, flags, running = _model(p)
    model.run()
    if model.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    values = np.array(model.getSolution().col_value)
    moved = np.array([max(values[f], abs(values[i] - p.now[i]) * _DUST) for f, i in zip(flags, running, strict=True)])
    held = np.zeros(len(p.worth), np.bool_)
    for j in np.argsort(-moved, kind="stable")[p.adjusted_max :].tolist():
        i = running[j]
        if not p.least[i] <= p.now[i]:
            return None
        held[i] = True
        model.changeColBounds(i, float(p.now[i]), float(p.now[i]))
        model.changeColBounds(flags[j], 0.0, 0.0)
    if held.any():
        model.run()
        if model.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        values = np.array(model.getSolution().col_value)
    counts = np.where(held, p.now, np.maximum(np.floor(values[: len(p.worth)] + _DUST), p.least))
    _fill_up(p, counts, held)
    fits = (p.use @ counts <= p.limit * (1 + _DUST)).all()
    return [round(count) for count in counts.tolist()] if fits and _loss(p, counts) <= p.loss_max + _DUST else None


def _fill_up(p: Program, counts: FloatArray, held: np.ndarray) -> None:
    """One worker more where it fits and keeps fairness, the most useful first, until there is none; a job that
    lacks fairness (its share below the fair one) before all others while the loss is too great."""
    while True:
        room = (p.use @ counts)[:, None] + p.use <= p.limit[:, None] * (1 + _DUST)
        open_jobs = ~held & (counts < p.most) & room.all(axis=0)
        loss = _loss(p, counts)
        after = loss + np.abs(p.share * (counts + 1) - p.fair) - np.abs(p.share * counts - p.fair)
        open_jobs &= (after <= p.loss_max + _DUST) | (after < loss - _DUST)
        rows = np.flatnonzero(open_jobs)
        if rows.size == 0:
            return
        gain = loss - after[rows] if loss > p.loss_max + _DUST else p.worth[rows]
        counts[rows[np.argmax(gain)]] += 1


def _loss(p: Program, counts: FloatArray) -> float:
    return float(np.abs(p.share * counts - p.fair).sum())


def _branch_and_bound(p: Program) -> list[int] | None:
    model, flags, _ = _model(p)
    for column in (*range(len(p.worth)), *flags):
        model.changeColIntegrality(column, highspy.HighsVarType.kInteger)
    model.run()
    if model.getInfo().primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return None
    return [round(value) for value in model.getSolution().col_value[: len(p.worth)]]

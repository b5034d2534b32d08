"""Dorm's program (Sun et al., 2017): worker counts over pooled capacity that use most of it.

    max sum_i u_i n_i,  least_i <= n_i <= most_i whole
    capacity of every resource of both roles;  sum_i |s_i n_i - fair_i| <= 2 theta1 R;
    at most ceil(theta2 * jobs that run) of those that run are adjusted

u_i is the part of all resources that a worker takes, s_i its dominant share, fair_i that of progressive filling. The
program is dived into: its relaxation says which jobs to adjust; with the others held, a second relaxation is rounded
down and filled up. A whole solve by branch and bound takes thirty times as long and is what is left when the dive ends
outside the bounds. Nothing rests on the solver: counts are used once they pass our own check (`_keeps_bounds`); when
neither way finds any, jobs get their fair counts. No optimum is claimed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import highspy
import numpy as np
from numpy.typing import NDArray

from trainmaster.model.utility import FloatArray
from trainmaster.policies.oasis.instance.fair_filling import FairFilling

Ints = NDArray[np.int64]
_DUST = 1e-9


@dataclass(frozen=True)
class Division:
    """Jobs that share servers; demands are jobs x resources, `hosts` is roles x servers."""

    capacity: FloatArray
    hosts: NDArray[np.bool_]
    worker: FloatArray
    ps: FloatArray
    ps_per_worker: FloatArray
    now: Ints
    least: Ints
    most: Ints

    def fair(self) -> FairFilling:
        """Progressive filling, with at most `most` workers each."""
        filling = FairFilling(self.capacity, self.hosts[0], self.hosts[1])
        filling.run(self.worker, self.ps, self.ps_per_worker, self.most)
        return filling


@dataclass(frozen=True)
class DormProgram:
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


def divide(d: Division, theta1: float, theta2: float) -> list[int]:
    """Workers of each job."""
    if (d.least == d.most).all():
        return d.least.tolist()
    filling = d.fair()
    program = _program(d, np.asarray(filling.share), theta1, theta2)
    counts = _dive(program)
    if counts is None:
        counts = _branch_and_bound(program)
    if counts is None:
        # The bounds cannot be met together: fair counts, raised to the least sizes, as far as there is room.
        counts = program.least.copy()
        fair = np.asarray(filling.on_workers).sum(axis=1)
        for i in range(len(counts)):
            taken = program.use[:, i] > 0
            left = (program.limit - program.use @ counts)[taken] / program.use[taken, i]
            room = math.inf if not taken.any() else max(0, math.floor(left.min() + _DUST))
            counts[i] += max(0, min(fair[i] - d.least[i], room))
    return [round(count) for count in counts.tolist()]


def _program(d: Division, fair_share: FloatArray, theta1: float, theta2: float) -> DormProgram:
    totals = [d.capacity[role].sum(axis=0) for role in d.hosts]
    total = d.capacity.sum(axis=0)
    # PS enter as b/B per worker: capacity is pooled here anyway, and placement rounds up.
    worker, ps = d.worker.T, d.ps_per_worker * d.ps.T
    both = worker + ps
    parts = [use[have > 0] / have[have > 0, None] for use, have in zip((worker, ps), totals, strict=True)]
    now = np.where(d.now <= d.most, d.now, 0).astype(np.float64)
    return DormProgram(
        worth=(both[total > 0] / total[total > 0, None]).sum(axis=0),
        share=np.vstack([*parts, np.zeros((1, len(now)))]).max(axis=0),
        fair=fair_share,
        least=d.least.astype(np.float64),
        most=d.most.astype(np.float64),
        now=now,
        use=np.vstack([worker, ps, both]),
        limit=np.concatenate([*totals, total]),
        loss_max=2.0 * theta1 * d.capacity.shape[1],
        adjusted_max=math.ceil(theta2 * int((now > 0).sum())),
    )


def _model(p: DormProgram) -> tuple[highspy.Highs, list[int], list[int]]:
    """The relaxation; with the columns of the adjusted flags, and of the jobs they belong to."""
    model = highspy.Highs()
    for name, setting in (
        ("output_flag", False),
        ("threads", 1),
        ("random_seed", 0),
        ("mip_rel_gap", 1e-2),
        ("mip_max_nodes", 10),
    ):
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


def _dive(p: DormProgram) -> FloatArray | None:
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
    return counts if _keeps_bounds(p, counts) else None


def _keeps_bounds(p: DormProgram, counts: FloatArray) -> bool:
    """Sizes, capacity, fairness and the number of adjusted jobs, recomputed."""
    return bool(
        (p.least <= counts).all()
        and (counts <= p.most).all()
        and (p.use @ counts <= p.limit * (1 + _DUST)).all()
        and _loss(p, counts) <= p.loss_max + _DUST
        and ((p.now > 0) & (counts != p.now)).sum() <= p.adjusted_max
    )


def _fill_up(p: DormProgram, counts: FloatArray, held: np.ndarray) -> None:
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


def _loss(p: DormProgram, counts: FloatArray) -> float:
    return float(np.abs(p.share * counts - p.fair).sum())


def _branch_and_bound(p: DormProgram) -> FloatArray | None:
    model, flags, _ = _model(p)
    for column in (*range(len(p.worth)), *flags):
        model.changeColIntegrality(column, highspy.HighsVarType.kInteger)
    model.run()
    if model.getInfo().primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return None
    counts = np.rint(np.array(model.getSolution().col_value[: len(p.worth)]))
    return counts if _keeps_bounds(p, counts) else None

"""How low any schedule of a trace can get: a bound on the mean completion time, whoever decides and whatever it knows.

A job that has work W and step times t(w, p) takes at least `alone` = W min t, and may begin at the first slot after it
came. With shares l of one resource and 1 - l of the other as its price, it costs the cluster at least
W min (l w/G + (1 - l) p/P) t(w, p) seconds of the whole. Let x_ji be the part of job j done in interval i. Then

    completion_j >= sum_i x_ji begin_i + alone_j / 2        (mean busy time: work is done at a rate of 1/alone at most)
    sum_j cost_j x_ji <= length_i,   x_ji <= length_i / alone_j,   sum_i x_ji = 1

and the least sum over j is a linear program, bounded from below by weak duality. Beginnings instead of middles of
intervals make it a little lower.
"""

from __future__ import annotations

import highspy
import numpy as np
import numpy.typing as npt

from support.weak_duality import bounded_maximum
from trainmaster.learn.sizing.trace import SizingTrace
from trainmaster.model.units import MS_PER_S

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
PRICES = (0.25, 0.5, 0.75)


def least_mean_completion_s(trace: SizingTrace, interval_s: float = 400.0) -> float:
    """No schedule that acts at the beginnings of slots has a lower mean completion time on this trace."""
    submit_s = trace.submit_ms / MS_PER_S
    slot_s = trace.spec.slot_s
    ready_s = np.ceil(submit_s / slot_s) * slot_s
    alone_s, cost_s = _alone_and_costs(trace)
    simple = float(np.mean(ready_s - submit_s + alone_s))
    # All of it fits into this horizon: one job after the other at its cheapest would.
    horizon_s = float(ready_s.max() + cost_s.max(axis=0).sum() + alone_s.max()) + interval_s
    begin_s = np.arange(0.0, horizon_s, interval_s)
    n, m = len(trace), len(begin_s)
    job, at = np.nonzero(begin_s[None, :] + interval_s > ready_s[:, None])
    began_s = np.maximum(begin_s[at], ready_s[job])
    most = np.minimum(interval_s / alone_s[job], 1.0)
    least = _least(n, m, job, at, began_s, most, cost_s[:, job], interval_s)
    return max(simple, (least + float((alone_s / 2 - submit_s).sum())) / n)


def _least(
    n: int, m: int, job: Ints, at: Ints, price: Floats, most: Floats, cost_s: Floats, interval_s: float
) -> float:
    """Minimum of price . x with every job done once and every interval's capacity kept, from below."""
    kinds, size = cost_s.shape
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = size, n + kinds * m
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = -price, np.zeros(size), most
    lp.row_lower_ = np.concatenate([np.ones(n), np.full(kinds * m, -highspy.kHighsInf)])
    lp.row_upper_ = np.concatenate([np.ones(n), np.full(kinds * m, interval_s)])
    rows = np.concatenate([job[:, None], n + at[:, None] + m * np.arange(kinds)[None, :]], axis=1)
    values = np.concatenate([np.ones((size, 1)), cost_s.T], axis=1)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.arange(0, (kinds + 1) * size + 1, kinds + 1)
    lp.a_matrix_.index_, lp.a_matrix_.value_ = rows.reshape(-1), values.reshape(-1)
    return -bounded_maximum(lp)


def _alone_and_costs(trace: SizingTrace) -> tuple[Floats, Floats]:
    """Seconds alone at the best size by job; least seconds of the whole cluster by price and job."""
    spec = trace.spec
    w, p = np.meshgrid(np.arange(1.0, spec.workers_max + 1), np.arange(1.0, spec.servers_max + 1), indexing="ij")
    servers = spec.cpus / spec.server_cpus
    alone, costs = np.empty(len(trace)), np.empty((len(PRICES), len(trace)))
    fits = (w <= spec.gpus) & (p <= servers)
    for k, c in enumerate(trace.curve):
        step = c[0] / w + c[1] + c[2] * w / p + c[3] * w + c[4] * p + c[5] / p + c[6] * p / w
        work = trace.work[k] / trace.speed_factor[k]
        alone[k] = work * step[fits].min()
        for row, price in enumerate(PRICES):
            costs[row, k] = work * ((price * w / spec.gpus + (1 - price) * p / servers) * step)[fits].min()
    return alone, costs

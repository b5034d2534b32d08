"""Whether demand fits at all, and how fast jobs could be: what is needed before a reservation is tried."""

from __future__ import annotations

import numpy as np

from trainmaster.policies.deadline.reservation_layout import CLASS, DUE, PROMISED
from trainmaster.policies.deadline.reservations import Floats, Ints, JobArrays


def demand_fits(now: float, jobs: JobArrays, certs: Floats, capacity: Ints, row: int, due: float) -> bool:
    """Whether the work promised until each deadline fits by area alone (necessary for one type; else True).

    The processor-demand test: for every deadline d >= due, the least GPU time of all promised jobs with
    deadlines up to d, and of this one, is at most the capacity until d.
    """
    if capacity.size > 1:
        return True
    counted = certs[:, CLASS] == PROMISED
    counted[row] = True
    rows = np.flatnonzero(counted)
    dues = np.where(rows == row, due, certs[rows, DUE])
    order = np.argsort(dues, kind="stable")
    rows, dues = rows[order], dues[order]
    base = jobs.base[rows, 0]
    known = np.arange(jobs.sizes.shape[1]) < jobs.levels[rows, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        least = np.where(known, jobs.sizes[rows] / jobs.speeds[rows], np.inf).min(axis=1, initial=np.inf)
        areas = np.where(base > 0.0, jobs.work[rows] * 1000.0 / base * least * jobs.each[rows], 0.0)
    total = np.cumsum(areas)
    last = np.append(dues[1:] > dues[:-1], True)  # of those due at the same moment
    short = last & (dues >= due) & (total > capacity[0] * (dues - now) * (1 + 1e-9))
    return not short.any()


def fastest_rates(jobs: JobArrays, capacity: Ints) -> Floats:
    """Steps a second of each job if the whole cluster were its own: the best size that a type has room for."""
    known = np.arange(jobs.sizes.shape[1]) < np.maximum(jobs.levels, 1)[:, None]
    rates = np.zeros(len(jobs.work))
    for k, room in enumerate(capacity.tolist()):
        fits = known & (jobs.sizes * jobs.each[:, None] <= room)
        speed = np.where(fits, jobs.speeds, 0.0).max(axis=1, initial=0.0)
        rates = np.maximum(rates, jobs.base[:, k] * speed)
    return rates

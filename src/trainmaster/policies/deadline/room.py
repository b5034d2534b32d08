"""How much room there is: what a profile has free at least and in all, whether demand fits at all, the best sizes."""

from __future__ import annotations

import numpy as np
from numba import njit

from trainmaster.policies.deadline.reservations import CLASS, DUE


@njit(cache=True)
def lowest_free(times, free, n, k, until):
    """The least that is free on a type from now until then."""
    low = free[k, 0]
    for i in range(1, n[k]):
        if times[k, i] >= until:
            break
        low = min(low, free[k, i])
    return low


@njit(cache=True)
def demand_fits(now, jobs, certs, capacity, row, due):
    """Whether the work promised until each deadline fits by area alone (necessary for one type; else True).

    The processor-demand test: for every deadline d >= due, the least GPU time of all promised jobs with
    deadlines up to d, and of this one, is at most the capacity until d.
    """
    if capacity.size > 1:
        return True
    count = 0
    dues = np.empty(certs.shape[0] + 1)
    areas = np.empty(certs.shape[0] + 1)
    for other in range(certs.shape[0]):
        if other == row or certs[other, CLASS] == 2.0:
            least = np.inf
            for c in range(jobs.levels[other]):
                least = min(least, jobs.sizes[other, c] / jobs.speeds[other, c])
            base = jobs.base[other, 0]
            dues[count] = due if other == row else certs[other, DUE]
            areas[count] = jobs.work[other] * 1000.0 / base * least * jobs.each[other] if base > 0.0 else 0.0
            count += 1
    order = np.argsort(dues[:count], kind="mergesort")
    total = 0.0
    for i in range(count):
        total += areas[order[i]]
        at = dues[order[i]]
        if at >= due and (i + 1 == count or dues[order[i + 1]] > at) and total > capacity[0] * (at - now) * (1 + 1e-9):
            return False
    return True


@njit(cache=True)
def free_area(times, free, n, k, until):
    """Free milli-GPU milliseconds of a type from now until then."""
    area = 0.0
    for i in range(n[k]):
        if times[k, i] >= until:
            break
        end = min(times[k, i + 1], until) if i + 1 < n[k] else until
        area += free[k, i] * (end - times[k, i])
    return area


@njit(cache=True)
def fastest_rates(jobs, capacity):
    """Steps a second of each job if the whole cluster were its own: the best size that a type has room for."""
    rates = np.zeros(jobs.work.size)
    for row in range(rates.size):
        for k in range(capacity.size):
            speed = 0.0
            for c in range(max(jobs.levels[row], 1)):
                if jobs.sizes[row, c] * jobs.each[row] <= capacity[k]:
                    speed = max(speed, jobs.speeds[row, c])
            rates[row] = max(rates[row], jobs.base[row, k] * speed)
    return rates

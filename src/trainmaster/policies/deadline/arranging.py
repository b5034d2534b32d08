"""Orders in which reservations are made anew around a newcomer: which one keeps them all, and who gives way."""

from __future__ import annotations

import numpy as np
from numba import njit

from trainmaster.policies.deadline.reservations import COUNT, FIRST, PROMISED, reserve, reserve_in_order


@njit(cache=True)
def rearrange(times, free, n, jobs, rows, due, capacity, certs, tries):
    """Reserve for all of these rows, in this order; a row that fails goes to the front and all start again.

    Returns whether an order was found within `tries`; the profile and `certs` are then those of it.
    """
    order = rows.copy()
    first_times, first_free, first_n = times.copy(), free.copy(), n.copy()
    for _ in range(tries):
        done = reserve_in_order(times, free, n, jobs, order, due, capacity, PROMISED, certs)
        if done == order.size:
            return True
        if done == 0:
            return False
        failed = order[done]
        for i in range(done, 0, -1):
            order[i] = order[i - 1]
        order[0] = failed
        times[:], free[:], n[:] = first_times, first_free, first_n
    return False


@njit(cache=True)
def _area(cert, each):
    area = 0.0
    for s in range(int(cert[COUNT])):
        area += (cert[FIRST + 3 * s + 1] - cert[FIRST + 3 * s]) * cert[FIRST + 3 * s + 2] * each
    return area


@njit(cache=True)
def _least_area(jobs, row):
    """GPU milliseconds (x 1000) of the work left at the size that needs fewest, on the best type."""
    per_speed = np.inf
    for c in range(jobs.levels[row]):
        per_speed = min(per_speed, jobs.sizes[row, c] / jobs.speeds[row, c])
    fastest = 0.0
    for k in range(jobs.base.shape[1]):
        fastest = max(fastest, jobs.base[row, k])
    return np.inf if fastest <= 0.0 else jobs.work[row] * 1000.0 / fastest * per_speed * jobs.each[row]


@njit(cache=True)
def keep_most(times, free, n, jobs, rows, due, capacity, certs, worth, dropped, tries):
    """Reserve in this order (earliest deadline first); who does not fit costs a droppable one its place.

    The rule of Moore and Hodgson (1968) for the most jobs in time, with sizes that are found: at the first
    failure, of the droppable rows so far (`worth` above 0) the one with the largest area per worth leaves,
    and all start again. Rows with `worth` 0 may not be dropped. Marks `dropped` by row; False when a row that
    may not be dropped finds no place, or `tries` are used up.
    """
    order = rows.copy()
    first_times, first_free, first_n = times.copy(), free.copy(), n.copy()
    size = order.size
    done = 0
    while done < size:
        failed = order[done]
        if reserve(times, free, n, jobs, failed, due[failed], capacity, PROMISED, certs[failed]):
            done += 1
            continue
        victim, largest = -1, -1.0
        for i in range(done + 1):
            row = order[i]
            if worth[row] > 0.0:
                area = _least_area(jobs, row) if i == done else _area(certs[row], jobs.each[row])
                if area / worth[row] > largest:
                    victim, largest = i, area / worth[row]
        if victim < 0:
            return False
        dropped[order[victim]] = True
        certs[order[victim], COUNT] = 0
        for i in range(victim, size - 1):
            order[i] = order[i + 1]
        size -= 1
        if victim < done:  # else nothing before it changes
            tries -= 1
            if tries <= 0:
                return False
            times[:], free[:], n[:] = first_times, first_free, first_n
            done = 0
    return True

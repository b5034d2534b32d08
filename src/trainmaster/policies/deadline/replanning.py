"""Orders in which reservations are made anew around a newcomer: which one keeps them all, and who gives way.

Compiled (`arranging.pxd`).
"""

from __future__ import annotations

import numpy as np

from trainmaster.policies.deadline.reservation_layout import COUNT, FIRST, PROMISED
from trainmaster.policies.deadline.reservations import Bools, Floats, Ints, JobArrays, Profile

INFINITY = float("inf")


def rearrange(profile: Profile, jobs: JobArrays, rows: Ints, due: Floats, certs: Floats, tries: int) -> bool:
    """Reserve for all of these rows, in this order; a row that fails goes to the front and all start again.

    Returns whether an order was found within `tries`; the profile and `certs` are then those of it.
    """
    order = np.array(rows)
    before = profile.saved()
    for _ in range(tries):
        done = profile.reserve_in_order(jobs, order, due, PROMISED, certs)
        if done == len(order):
            return True
        if done == 0:
            return False
        failed: int = order[done]
        for i in range(done, 0, -1):
            order[i] = order[i - 1]
        order[0] = failed
        profile.restore(before)
    return False


def _area(cert: Floats, each: int) -> float:
    area = 0.0
    for s in range(int(cert[COUNT])):
        area += (cert[FIRST + 3 * s + 1] - cert[FIRST + 3 * s]) * cert[FIRST + 3 * s + 2] * each
    return area


def _least_area(jobs: JobArrays, row: int) -> float:
    """GPU milliseconds (x 1000) of the work left at the size that needs fewest, on the best type."""
    per_speed = INFINITY
    for c in range(jobs._levels[row]):
        per_speed = min(per_speed, jobs._sizes[row, c] / jobs._speeds[row, c])
    fastest = 0.0
    for k in range(jobs._base.shape[1]):
        fastest = max(fastest, jobs._base[row, k])
    return INFINITY if fastest <= 0.0 else jobs._work[row] * 1000.0 / fastest * per_speed * jobs._each[row]


def keep_most(
    profile: Profile,
    jobs: JobArrays,
    rows: Ints,
    due: Floats,
    certs: Floats,
    worth: Floats,
    dropped: Bools,
    tries: int,
) -> bool:
    """Reserve in this order (earliest deadline first); who does not fit costs a droppable one its place.

    The rule of Moore and Hodgson (1968) for the most jobs in time, with sizes that are found: at the first
    failure, of the droppable rows so far (`worth` above 0) the one with the largest area per worth leaves,
    and all start again. Rows with `worth` 0 may not be dropped. Marks `dropped` by row; False when a row that
    may not be dropped finds no place, or `tries` are used up.
    """
    order = np.array(rows)
    before = profile.saved()
    size = len(order)
    done = 0
    while done < size:
        failed: int = order[done]
        if profile.reserve(jobs, failed, due[failed], PROMISED, certs[failed]):
            done += 1
            continue
        victim, largest = -1, -1.0
        for i in range(done + 1):
            row: int = order[i]
            if worth[row] > 0.0:
                area = _least_area(jobs, row) if i == done else _area(certs[row], jobs._each[row])
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
            profile.restore(before)
            done = 0
    return True

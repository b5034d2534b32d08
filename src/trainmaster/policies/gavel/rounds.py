"""The round mechanism: from time shares to who runs next, on what.

Priority of a job on a type is the share it should have over the share it has had; each round takes
(job, type) entries greedily by priority, whole gangs, never a job twice (Gavel, OSDI'20, section 5).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

NEVER_RUN = 1e9
"""Scales the priority of a job that has had nothing yet, so that such jobs still rank by their share."""


def priorities(share: Floats, received: Floats) -> Floats:
    """share / received, or a very large multiple of the share where nothing was received."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = share / received
    return np.where(share <= 0.0, 0.0, np.where(received > 0.0, ratio, share * NEVER_RUN))


def entry_order(priority: Floats, second: Floats, third: Floats, type_order: Ints, job_order: Ints) -> Ints:
    """(job, type) entries as flat indices m * J + j, best first: by priority, then by the second and third
    key; ties in the order of types given, then of jobs given."""
    types = priority.shape[1]
    flat = (job_order[None, :] * types + type_order[:, None]).ravel()
    keys = (-third.ravel()[flat], -second.ravel()[flat], -priority.ravel()[flat])
    return flat[np.lexsort(keys)]


@njit(cache=True)
def select(order, priority, usable, gpus, free, only_positive, eligible):
    """Greedy choice down the entries: type of each chosen job, -1 for the others. Uses up `free`."""
    n, types = priority.shape
    chosen = np.full(n, -1, np.int64)
    for k in range(order.size):
        m = order[k] // types
        j = order[k] % types
        if chosen[m] >= 0 or not eligible[m] or not usable[m, j] or gpus[m] > free[j]:
            continue
        if only_positive and priority[m, j] <= 0.0:
            continue
        chosen[m] = j
        free[j] -= gpus[m]
    return chosen

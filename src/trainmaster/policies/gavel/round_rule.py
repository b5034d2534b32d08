"""When shares are computed anew, and in which order types have their turn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from numba import njit

PUBLISHED_ORDER = ("v100", "p100", "k80")


def type_order(types: Sequence[str]) -> npt.NDArray[np.int64]:
    """Where each type has a queue of its own: the order of the original, then by name."""
    rank = {name: k for k, name in enumerate(PUBLISHED_ORDER)}
    return np.array(sorted(range(len(types)), key=lambda j: (rank.get(types[j].lower(), len(rank)), types[j])))


@njit(cache=True)
def shares_are_due(
    original, time_dependent, stale, to_run, now_ms, last_reset_ms, reset_ms
):  # fmt: skip
    """Shares are computed anew when jobs, nodes or speeds changed, at least `reset_ms` apart; sooner when the present
    shares leave nothing to run, and (unless `original`) for policies whose shares change with time."""
    if not original and time_dependent:
        return stale or now_ms - last_reset_ms >= reset_ms
    return stale and (now_ms - last_reset_ms >= reset_ms or last_reset_ms == 0 or not to_run)

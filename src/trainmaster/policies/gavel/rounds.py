"""The round mechanism: from time shares to who runs next, on what.

Priority of a job on a type is the share it should have over the share it has had; each round takes
(job, type) entries greedily by priority, whole gangs, never a job twice (Gavel, OSDI'20, section 5).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

NEVER_RUN = 1e9
"""Scales the priority of a job that has had nothing yet, so that such jobs still rank by their share."""


def priorities(share: Floats, received: Floats) -> Floats:
    """share / received, or a very large multiple of the share where nothing was received."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = share / received
    return np.where(share <= 0.0, 0.0, np.where(received > 0.0, ratio, share * NEVER_RUN))

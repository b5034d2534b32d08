"""Numbers that stand for words in the compiled rounds, and the order of types in the original."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

BY_TYPE, SHUFFLED, ONLY_POSITIVE = 1, 2, 4
"""How entries queue, as the original has it: one type after the other, in a new order each time, and only those with a
share. 0: one queue over all types."""
NEXT_ROUND, SHARE_DUE = 5, 16
"""Why a job waits (`model.reasons.Why`: NEXT_ROUND and SHARE)."""
DEFAULT_ROUND_MS = 360_000
PUBLISHED_ORDER = ("v100", "p100", "k80")


def type_order(types: Sequence[str]) -> npt.NDArray[np.int64]:
    """Where each type has a queue of its own: the order of the original, then by name."""
    rank = {name: k for k, name in enumerate(PUBLISHED_ORDER)}
    return np.array(sorted(range(len(types)), key=lambda j: (rank.get(types[j].lower(), len(rank)), types[j])))

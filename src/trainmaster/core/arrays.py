"""Types of NumPy arrays, for annotations; arrays that grow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def lengthen(owner: Any, ints: Iterable[str], floats: Iterable[str], more: int) -> None:
    """Append so many zeros to each of these arrays of an object."""
    for names, dtype in ((ints, np.int64), (floats, np.float64)):
        for name in names:
            setattr(owner, name, np.concatenate([np.asarray(getattr(owner, name)), np.zeros(more, dtype)]))

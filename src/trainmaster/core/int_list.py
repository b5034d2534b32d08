"""Work arrays of compiled passes: a list of whole numbers, and new arrays of zeros."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def new_ints(n: int) -> Ints:
    return np.zeros(n, np.int64)


def new_floats(n: int) -> Floats:
    return np.zeros(n)


class IntList:
    """The first `n` of `values`. Who appends has made room (`reserve`)."""

    def __init__(self, capacity: int = 64) -> None:
        self.values = new_ints(capacity)
        self.n = 0

    def append(self, value: int) -> None:
        self.values[self.n] = value
        self.n += 1

    def clear(self) -> None:
        self.n = 0

    def reserve(self, capacity: int) -> None:
        """Make room for so many in all."""
        if capacity > len(self.values):
            more = new_ints(2 * capacity)
            more[: self.n] = self.values[: self.n]
            self.values = more

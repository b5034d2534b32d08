"""One attempt of the simulated world as an object, for checkers and tests: reads the world's arrays when asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trainmaster.model.allocation import Allocation
from trainmaster.model.capacity.packed_allocation import unpacked
from trainmaster.model.job import JobSpec

if TYPE_CHECKING:
    from trainmaster.sim.backend import SimulatedBackend


class AttemptView:
    """A run of a job's gang. Valid until the world moves."""

    def __init__(self, backend: SimulatedBackend, row: int) -> None:
        self._attempts = backend.core.attempts
        self._row = row
        self.spec: JobSpec = backend.spec(int(self._attempts.job[row]))
        self.generation = int(self._attempts.generation[row])

    @property
    def allocation(self) -> Allocation:
        attempts = self._attempts
        return unpacked(np.asarray(attempts.packed.values), self._row * attempts.width)

    @property
    def alive(self) -> set[int]:
        """Nodes on which its members exist."""
        attempts, row = self._attempts, self._row
        return {attempts.node(row, part) for part in range(attempts.n_parts(row)) if attempts.alive[row, part]}

    @property
    def work(self) -> float:
        return float(self._attempts.work[self._row])

    @property
    def work_at_start(self) -> float:
        return float(self._attempts.work_at_start[self._row])

    @property
    def rate(self) -> float:
        return float(self._attempts.rate[self._row])

    @property
    def allocation_seq(self) -> int:
        return int(self._attempts.seq[self._row])

    @property
    def started(self) -> bool:
        return bool(self._attempts.started[self._row])

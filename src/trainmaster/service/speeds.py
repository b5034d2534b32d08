"""What the live service believes of speeds: what jobs declare, corrected by what they measure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.model.job import JobId, JobSpec

Floats = npt.NDArray[np.float64]
MAX_JOBS = 50_000


class LiveSpeeds:
    """A measured speed replaces the declared one on its type; the other types move by the same factor, until they
    are measured themselves. It is forgotten with the process, but what it said of a job is in the job's record."""

    def __init__(self, spread_penalty: float = 0.0) -> None:
        self._declared = DeclaredSpeeds(spread_penalty)
        self._measured: dict[JobId, dict[tuple[str, bool], float]] = {}

    def observe(self, job_id: JobId, accelerator: str, steps_per_s: float, *, spread: bool = False) -> None:
        if not 0.0 < steps_per_s < np.inf:
            return
        if job_id not in self._measured and len(self._measured) >= MAX_JOBS:
            self._measured.pop(next(iter(self._measured)))
        self._measured.setdefault(job_id, {})[accelerator, spread] = steps_per_s

    def profile(self, spec: JobSpec, types: Sequence[str]) -> tuple[Floats, Floats]:
        here, apart = self._declared.profile(spec, types)
        measured = self._measured.get(spec.id)
        if not measured:
            return here, apart
        found = []
        for table, spread in ((here, False), (apart, True)):
            ratios = [
                speed / table[types.index(name)]
                for (name, was_spread), speed in sorted(measured.items())
                if was_spread == spread and name in types and table[types.index(name)] > 0
            ]
            factor = float(np.exp(np.mean(np.log(ratios)))) if ratios else 1.0
            exact = [measured.get((name, spread)) for name in types]
            found.append(np.array([table[k] * factor if speed is None else speed for k, speed in enumerate(exact)]))
        return found[0], found[1]

    def pair_speeds(self, spec_a: JobSpec, spec_b: JobSpec, types: Sequence[str]) -> Floats | None:
        return self._declared.pair_speeds(spec_a, spec_b, types)

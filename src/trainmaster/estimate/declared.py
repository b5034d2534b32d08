"""The simplest estimator: believe what the job declares about its speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainmaster.model.job import JobSpec

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class DeclaredSpeeds:
    """Steps per second as the job states them, or one step per second on every type.

    `spread_penalty` stands in where nothing is known of spread placement.
    """

    spread_penalty: float = 0.0

    def profile(self, spec: JobSpec, types: Sequence[str]) -> tuple[Floats, Floats]:
        if not spec.steps_per_s:
            here = np.ones(len(types))
        else:
            here = np.array([spec.steps_per_s.get(name, 0.0) for name in types])
        spread = here * (1.0 - self.spread_penalty)
        if spec.steps_per_s_spread:
            spread = np.array([spec.steps_per_s_spread.get(name, spread[k]) for k, name in enumerate(types)])
        return here, spread

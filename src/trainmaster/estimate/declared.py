"""The simplest estimator: believe what the job declares about its speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from trainmaster.core.arrays import Floats
from trainmaster.estimate.pairs import PairSlowdowns
from trainmaster.model.job import JobSpec


@dataclass(frozen=True)
class DeclaredSpeeds:
    """Steps per second as the job states them, or one step per second on every type.

    `spread_penalty` stands in where nothing is known of spread placement; `pairs` is what is known of jobs that
    share devices.
    """

    spread_penalty: float = 0.0
    pairs: PairSlowdowns | None = field(default=None, compare=False)

    def profile(self, spec: JobSpec, types: Sequence[str]) -> tuple[Floats, Floats]:
        if not spec.steps_per_s:
            here = np.ones(len(types))
        else:
            here = np.array([spec.steps_per_s.get(name, 0.0) for name in types])
        spread = here * (1.0 - self.spread_penalty) if self.spread_penalty else here
        if spec.steps_per_s_spread:
            spread = np.array([spec.steps_per_s_spread.get(name, spread[k]) for k, name in enumerate(types)])
        return here, spread

    def pair_kept(
        self, spec_a: JobSpec, spec_b: JobSpec, types: Sequence[str], _probability: float = 0.5
    ) -> Floats | None:
        """The parts of their speeds that both keep on the same devices, J x 2, at every probability; None when no type
        is known."""
        return None if self.pairs is None else self.pairs.kept_by_type(spec_a, spec_b, tuple(types))

"""How jobs may really be: their speeds and amounts of work, drawn for one future from what is believed of them.

Seed 0 draws nothing and takes the middle of every belief. Seeds come in pairs with opposite luck (1 and 2, 3 and 4), so
that the middle of a few futures is not a matter of luck. There is one stream of random numbers per (seed, job): a
job's luck does not depend on who else is there.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from trainmaster.core.arrays import Floats
from trainmaster.forecast.situation import UNKNOWN_WORK, Belief
from trainmaster.model.job import JobSpec
from trainmaster.model.stable_hash import stable_hash


class Believed:
    """What is believed of some jobs. `speeds`: by job and type on one node, then by type on several; 0 or NaN where it
    cannot run or nothing is known. `work_done`: by job."""

    def __init__(self, specs: Sequence[JobSpec], beliefs: Sequence[Belief], speeds: Floats, work_done: Floats) -> None:
        speeds = np.array(speeds, float)
        for row, belief in enumerate(beliefs):
            if belief.speeds is not None:
                speeds[row] = belief.speeds
        here, spread = np.hsplit(np.maximum(np.nan_to_num(speeds), 0.0), 2)
        here[~here.any(axis=1)] = 1.0
        self._rates = np.hstack([here, np.where(spread > 0, spread, here)])
        self._jobs = [
            (stable_hash(spec.id) << 32, belief, spec.work_total, done, fastest)
            for spec, belief, done, fastest in zip(
                specs, beliefs, work_done.tolist(), here.max(axis=1, initial=0.0).tolist(), strict=True
            )
        ]

    def draw(self, seed: int) -> tuple[Floats, Floats]:
        """Rates as `speeds`, with a figure everywhere, and the work of each job in all."""
        factors, work = [], []
        slower, percentile = 0.0, 0.5
        for key, belief, total, done, fastest in self._jobs:
            if seed:
                rng = random.Random(key | (seed + 1) // 2)
                slower, percentile = rng.gauss(), rng.uniform(0.01, 0.99)
                if seed % 2 == 0:
                    slower, percentile = -slower, 1.0 - percentile
            factors.append(math.exp(slower * belief.sigma))
            if total is None:
                total = _more_work(belief, done, fastest, percentile)
            work.append(max(total, done * (1 + 1e-9)))
        return self._rates * np.array(factors)[:, None], np.array(work)


def _more_work(belief: Belief, done: float, speed: float, percentile: float) -> float:
    """The amount in all, drawn from the log-normal belief given that `done` was not all of it."""
    median, sigma = belief.work or (UNKNOWN_WORK[0] * speed, UNKNOWN_WORK[1])
    normal = NormalDist(math.log(max(median, 1e-9)), max(sigma, 1e-3))
    below = normal.cdf(math.log(done)) if done > 0 else 0.0
    if below > 0.999:  # beyond anything seen: as much again, more or less
        return done * (1.0 + percentile)
    return math.exp(normal.inv_cdf(min(below + (1.0 - below) * percentile, 1 - 1e-9)))

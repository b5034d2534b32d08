"""When a training run will have converged, from its loss so far (Optimus, EuroSys'18, section 3.1).

    l(k) = 1 / (b0 k + b1) + b2,   b0, b1, b2 >= 0

For a given b2 the curve is linear in b0 and b1 after inversion; b2 is found by a bounded search.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainmaster.core.arrays import Floats
from trainmaster.estimate.nonnegative import nonnegative_least_squares

MIN_POINTS = 4
COARSE_STEPS = 24
FINE_STEPS = 40
GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


@dataclass(frozen=True)
class LossCurve:
    """`error` is the root mean square error relative to the largest loss seen."""

    b0: float
    b1: float
    b2: float
    error: float = 0.0

    def at(self, step: npt.ArrayLike) -> Floats:
        k = np.asarray(step, np.float64)
        return 1.0 / np.maximum(self.b0 * k + self.b1, 1e-300) + self.b2

    def converged_step(self, per_epoch: float, tolerance: float) -> float:
        """First step from which an epoch of `per_epoch` steps lowers the loss by at most `tolerance`.

        With u = b0 k + b1 and d = b0 per_epoch, 1/u - 1/(u + d) <= tolerance means u^2 + d u >= d/tolerance.
        """
        if self.b0 <= 0:
            return 0.0
        d = self.b0 * per_epoch
        u = (-d + math.sqrt(d * d + 4.0 * d / tolerance)) / 2.0
        return max(0.0, (u - self.b1) / self.b0)


def fit_loss(points: Sequence[tuple[float, float]]) -> LossCurve | None:
    """The curve through (step, loss) points; None when there are too few or they do not fall."""
    known = [(k, loss) for k, loss in points if loss > 0 and math.isfinite(loss)]
    if len(known) < MIN_POINTS:
        return None
    k = np.array([point[0] for point in known])
    loss = np.array([point[1] for point in known])
    scale_k, scale_l = max(float(k.max()), 1.0), float(loss.max())
    k, loss = k / scale_k, loss / scale_l
    lowest = float(loss.min())
    floors = np.linspace(0.0, lowest * (1.0 - 1e-6), COARSE_STEPS)
    errors = [_with_floor(k, loss, float(floor))[2] for floor in floors]
    best = int(np.argmin(errors))
    low, high = float(floors[max(best - 1, 0)]), float(floors[min(best + 1, COARSE_STEPS - 1)])
    for _ in range(FINE_STEPS):
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        if _with_floor(k, loss, left)[2] <= _with_floor(k, loss, right)[2]:
            high = right
        else:
            low = left
    floor = (low + high) / 2.0
    b0, b1, error = _with_floor(k, loss, floor)
    if b0 <= 0:
        return None
    return LossCurve(b0 / (scale_k * scale_l), b1 / scale_l, floor * scale_l, error)


def _with_floor(k: Floats, loss: Floats, floor: float) -> tuple[float, float, float]:
    """Best b0 and b1 for this b2, and the error in the loss itself."""
    above = np.maximum(loss - floor, 1e-9)
    # An error e in 1/(l - b2) is an error of about e (l - b2)^2 in l: weight by that.
    weight = above**2
    design = np.stack([k, np.ones_like(k)], axis=1) * weight[:, None]
    b0, b1 = nonnegative_least_squares(design, weight / above).tolist()
    error = float(np.sqrt(np.mean((1.0 / np.maximum(b0 * k + b1, 1e-12) + floor - loss) ** 2)))
    return b0, b1, error

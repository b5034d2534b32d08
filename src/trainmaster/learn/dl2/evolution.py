"""Evolution strategies (Salimans et al., 2017): follow the slope of the completion time itself.

A slot holds dozens of actions and one reward, so a policy gradient must tell the merit of each from noise. Here
whole policies are compared instead: mirrored perturbations of the last layers, both of each pair played on the same
traces by always taking the best action, as the policy does in use. The slope is estimated as in the paper, from the
differences of the logarithms of the mean completion times, and followed with Adam.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainmaster.core.arrays import Floats
from trainmaster.learn.dl2.rollout import play
from trainmaster.learn.sizing.trace import SizingTrace
from trainmaster.policies.dl2.network import ScoringNetwork

Arrays = dict[str, npt.NDArray[np.float32]]

PERTURBED = ("S", "a", "A", "B", "b")
LEAST_SCALE = 0.05
"""Weights that are all near zero are still varied by this much."""


@dataclass
class Ascent:
    """Adam's moments, kept between steps."""

    first: Floats | None = None
    second: Floats | None = None
    steps: int = 0

    def step(self, slope: Floats) -> Floats:
        """The direction to go, about one in size per weight."""
        if self.first is None or self.second is None:
            self.first, self.second = np.zeros_like(slope), np.zeros_like(slope)
        self.steps += 1
        self.first = 0.9 * self.first + 0.1 * slope
        self.second = 0.99 * self.second + 0.01 * slope**2
        corrected = self.first / (1 - 0.9**self.steps)
        return corrected / (np.sqrt(self.second / (1 - 0.99**self.steps)) + 1e-8)


def evolve(
    weights: Arrays,
    traces: Sequence[SizingTrace],
    ascent: Ascent,
    rng: np.random.Generator,
    *,
    pairs: int,
    width: float,
    rate: float,
    floor: bool = True,
) -> tuple[Arrays, float]:
    """New weights after one step, and the mean completion time over all that was played."""
    flat, scale = _flat(weights)
    noise = rng.standard_normal((pairs, len(flat)))
    gained, played = np.zeros(pairs), []
    for k in range(pairs):
        better = play(traces, ScoringNetwork(_unflat(weights, flat + width * scale * noise[k])), floor)
        worse = play(traces, ScoringNetwork(_unflat(weights, flat - width * scale * noise[k])), floor)
        gained[k] = np.log(worse / better).mean()
        played += [better.mean(), worse.mean()]
    spread = float(np.sqrt(np.mean(gained**2)))
    slope = (gained / max(spread, 1e-12)) @ noise / pairs
    return _unflat(weights, flat + rate * scale * ascent.step(slope)), float(np.mean(played))


def _flat(weights: Arrays) -> tuple[Floats, Floats]:
    flat = np.concatenate([weights[name].reshape(-1) for name in PERTURBED]).astype(np.float64)
    scale = [np.full(weights[name].size, max(float(weights[name].std()), LEAST_SCALE)) for name in PERTURBED]
    return flat, np.concatenate(scale)


def _unflat(weights: Arrays, flat: Floats) -> Arrays:
    out, first = dict(weights), 0
    for name in PERTURBED:
        size = weights[name].size
        out[name] = flat[first : first + size].reshape(weights[name].shape).astype(np.float32)
        first += size
    return out

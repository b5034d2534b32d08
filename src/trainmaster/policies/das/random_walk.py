# cython: cdivision=True
"""The random walk among machines, and the least of several normal variables, compiled (see `gaussian`)."""

from __future__ import annotations

import math

import numpy as np

from trainmaster.core.int_list import Floats, Ints, new_floats, new_ints
from trainmaster.policies.das.random_walk_constants import FAR, LEAST_POINTS, PHI_STEP, STEPS


class Walk:
    """Machines in the same state and rack are one node with a weight; the walk between those, then psi of each.
    `rounded` is phi in steps of PHI_STEP; walks of 0 .. STEPS - 1 steps are counted, with a decay below 1 the rest is
    small; machines of another rack are FAR as near."""

    def __init__(self, rounded: Ints, rack_of: Ints, width: float, frequency: Floats, phase: Floats) -> None:
        n = len(rounded)
        self.rounded, self.rack_of, self.width, self.frequency, self.phase = rounded, rack_of, width, frequency, phase
        self.node_of, self.first, self.count, self.n = new_ints(n), new_ints(n), new_floats(n), 0
        self._lump()
        self.psi, self.near = np.zeros((self.n, STEPS * len(phase))), np.zeros((self.n, self.n))

    def features(self, decay: float) -> Floats:
        """psi of every machine."""
        self._waves()
        self._edges()
        self._spread(math.sqrt(decay))
        return np.asarray(self.psi)[np.asarray(self.node_of)]

    def _lump(self) -> None:
        for k in range(self.rounded.shape[0]):
            found = -1
            for c in range(self.n):
                j = self.first[c]
                if (
                    self.rack_of[j] == self.rack_of[k]
                    and self.rounded[j, 0] == self.rounded[k, 0]
                    and self.rounded[j, 1] == self.rounded[k, 1]
                    and self.rounded[j, 2] == self.rounded[k, 2]
                ):
                    found = c
                    break
            if found < 0:
                found = self.n
                self.first[found] = k
                self.n += 1
            self.node_of[k] = found
            self.count[found] += 1.0

    def _waves(self) -> None:
        waves = self.phase.shape[0]
        for c in range(self.n):
            for w in range(waves):
                angle = self.phase[w]
                for i in range(3):
                    angle += self.rounded[self.first[c], i] * PHI_STEP * self.frequency[i, w] / self.width
                self.psi[c, w] = math.sqrt(2.0 / waves) * math.cos(angle)

    def _edges(self) -> None:
        machines = self.rounded.shape[0]
        for c in range(self.n):
            for e in range(c + 1):
                distance = 0.0
                for i in range(3):
                    apart = (self.rounded[self.first[c], i] - self.rounded[self.first[e], i]) * PHI_STEP
                    distance += apart * apart
                edge = 1.0 if self.rack_of[self.first[c]] == self.rack_of[self.first[e]] else FAR
                near = edge * math.exp(-distance / (2.0 * (self.width * self.width)))
                self.near[c, e] = near * self.count[e] / machines
                self.near[e, c] = near * self.count[c] / machines

    def _spread(self, root: float) -> None:
        waves = self.phase.shape[0]
        for step in range(1, STEPS):
            for c in range(self.n):
                for e in range(self.n):
                    weight = root * self.near[c, e]
                    for w in range(waves):
                        self.psi[c, step * waves + w] += weight * self.psi[e, (step - 1) * waves + w]
        for c in range(self.n):
            length = 0.0
            for i in range(self.psi.shape[1]):
                length += self.psi[c, i] * self.psi[c, i]
            length = max(math.sqrt(length), 1e-12)
            for i in range(self.psi.shape[1]):
                self.psi[c, i] /= length


def least(mean: Floats, deviation: Floats, p: Floats) -> float:
    """How likely each of several independent normal variables is the least (into `p`), and the mean of the least: by
    summation over where the least may lie."""
    n = len(mean)
    low, high = mean[0] - 5.0 * deviation[0], mean[0] + 5.0 * deviation[0]
    for i in range(1, n):
        low, high = min(low, mean[i] - 5.0 * deviation[i]), min(high, mean[i] + 5.0 * deviation[i])
    mean_least = total = 0.0
    step = (high - low) / LEAST_POINTS
    for t in range(LEAST_POINTS):
        x = low + (t + 0.5) * step
        above = 1.0
        for i in range(n):
            above *= max(0.5 * math.erfc((x - mean[i]) / deviation[i] / math.sqrt(2.0)), 1e-12)
        for i in range(n):
            z = (x - mean[i]) / deviation[i]
            beyond = max(0.5 * math.erfc(z / math.sqrt(2.0)), 1e-12)
            density = math.exp(-0.5 * z * z) / deviation[i] * above / beyond
            p[i] += density
            mean_least += density * x
            total += density
    for i in range(n):
        p[i] /= total
    return mean_least / total

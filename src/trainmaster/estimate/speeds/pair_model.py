"""What profiles cost each other on the same devices, from measured pairs: one Gaussian over the logarithm of the part
of its speed that each keeps. A mean by type, how sensitive a profile is, how aggressive its partner; models at the
nearest batch are most alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from trainmaster.core.arrays import Bools, Floats
from trainmaster.estimate.speeds.axes import pairs_alike
from trainmaster.estimate.speeds.observations import Observation, Place, Profile

PAIRS_KEPT = 400
"""Measured pairs that are looked at, the newest."""
BETWEEN_RUNS = 0.08
"""Relative spread of speeds between restarts."""
BAND = 0.88
"""Of the standard deviation, such that 80 % bands hold 80 % (`bench/study_speeds.py`)."""
PAIR_MEAN, PAIR_SIGMA = math.log(0.65), 0.3
OF_TYPE, SENSITIVE, AGGRESSIVE, TOGETHER, OWN = 0.1, 0.2, 0.25, 0.2, 0.02
PRIOR = PAIR_SIGMA**2 + OF_TYPE**2 + SENSITIVE**2 + AGGRESSIVE**2 + TOGETHER**2 + OWN**2
"""Variance where nothing was measured."""
TYPES_ALIKE = 0.3
"""How alike what two jobs cost each other is on two types."""


class Who(NamedTuple):
    """A profile beside another on a type."""

    profile: Profile
    partner: Profile
    type: str


class KeptPart(NamedTuple):
    """Measured: the logarithm of the part of its speed that one keeps, and for how long that was seen."""

    who: Who
    log_kept: float
    variance: float
    seconds: float


class PairModel:
    """What measured pairs say of any pair. `known` holds those that were measured."""

    def __init__(self, measured: Sequence[KeptPart]) -> None:
        self.known = {one.who: one for one in measured}
        kept = list(self.known.values())[-PAIRS_KEPT:]
        self._who = sorted(one.who for one in kept)
        values = np.array([self.known[who].log_kept - PAIR_MEAN for who in self._who])
        noise = np.array([self.known[who].variance for who in self._who])
        self._inverse = np.linalg.inv(covariance(self._who, self._who) + np.diag(noise)) if kept else np.zeros((0, 0))
        self._pull = self._inverse @ values

    def kept(self, asked: Sequence[Who]) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the logarithm of the part that is kept."""
        own = np.full(len(asked), PRIOR)
        if not self._who:
            return np.full(len(asked), PAIR_MEAN), BAND * np.sqrt(own)
        cross = covariance(asked, self._who)
        variance = own - ((cross @ self._inverse) * cross).sum(axis=1)
        return PAIR_MEAN + cross @ self._pull, BAND * np.sqrt(np.maximum(variance, 1e-12))


def covariance(rows: Sequence[Who], columns: Sequence[Who]) -> Floats:
    """Between the logarithms of what is kept."""
    sensitive = _alike([who.profile for who in rows], [who.profile for who in columns])
    aggressive = _alike([who.partner for who in rows], [who.partner for who in columns])
    same: Bools = np.array([who.type for who in rows])[:, None] == np.array([who.type for who in columns])[None, :]
    parts = SENSITIVE**2 * sensitive + AGGRESSIVE**2 * aggressive
    parts = np.where(same, 1.0, TYPES_ALIKE) * (parts + TOGETHER**2 * sensitive * aggressive)
    itself = (sensitive == 1.0) & (aggressive == 1.0) & same
    return PAIR_SIGMA**2 + OF_TYPE**2 * same + parts + OWN**2 * itself


def _alike(rows: Sequence[Profile], columns: Sequence[Profile]) -> Floats:
    left, right = list(dict.fromkeys(rows)), list(dict.fromkeys(columns))
    table = np.array([[pairs_alike(a, b) for b in right] for a in left])
    at_left, at_right = {p: k for k, p in enumerate(left)}, {p: k for k, p in enumerate(right)}
    return table[np.ix_([at_left[p] for p in rows], [at_right[p] for p in columns])]


def measured_pairs(observations: Iterable[Observation]) -> list[KeptPart]:
    """What pairs kept of their speeds alone at the same size. A run that was seen alone too is compared with itself,
    another one with all runs of its profile; of a profile that was never seen alone there, nothing follows."""
    alone: dict[tuple[str, Place], dict[str, Observation]] = {}
    shared: list[Observation] = []
    profiles: dict[str, Profile] = {}
    for seen in observations:
        profiles[seen.profile.key] = seen.profile
        if seen.place.partner:
            shared.append(seen)
        else:
            alone.setdefault((seen.profile.key, seen.place), {})[seen.run] = seen
    sums: dict[Who, list[tuple[float, float, float]]] = {}
    for seen in shared:
        runs = alone.get((seen.profile.key, seen.place._replace(partner="")))
        if runs is None:
            continue
        beside = profiles.get(seen.place.partner, Profile(seen.place.partner))
        compared = [runs[seen.run]] if seen.run in runs else list(runs.values())
        between = 0.0 if seen.run in runs else BETWEEN_RUNS**2 * (1.0 + 1.0 / len(compared))
        usual = sum(one.log_speed for one in compared) / len(compared)
        variance = seen.variance + sum(one.variance for one in compared) / len(compared) ** 2 + between
        figure = (seen.log_speed - usual, max(variance, 1e-6), seen.seconds)
        sums.setdefault(Who(seen.profile, beside, seen.place.type), []).append(figure)
    return [_mean(who, figures) for who, figures in sums.items()]


def _mean(who: Who, figures: Sequence[tuple[float, float, float]]) -> KeptPart:
    weight = sum(1.0 / variance for _, variance, _ in figures)
    mean = sum(value / variance for value, variance, _ in figures) / weight
    return KeptPart(who, mean, 1.0 / weight, max(seconds for _, _, seconds in figures))

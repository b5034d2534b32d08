"""The estimator: mean and band of a profile's speed anywhere, from its own measurements, those of other batches of its
model, and the population. One Gaussian weighs them: what is nearest counts most.

Pairs add to the logarithm of the speed alone: a mean, how sensitive the profile is, how aggressive its partner.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from trainmaster.core.arrays import Floats
from trainmaster.estimate.speeds.axes import (
    KNOTS,
    alike_table,
    design,
    own_part,
    pairs_alike,
    profiles_alike,
    types_alike,
)
from trainmaster.estimate.speeds.observations import Observation, Place, Profile, merged
from trainmaster.estimate.speeds.population import FLAT, Population

BETWEEN_RUNS = 0.08
"""Relative spread of speeds between restarts: no measurement is believed to better than that."""
BAND = 0.88
"""Of the standard deviation, such that 80 % bands hold 80 % (`bench/study_speeds.py`)."""
ALIKE_KEPT = 64
"""Measurements of other batches of a model that are looked at, nearest batches first."""
PAIRS_KEPT = 400
PAIR_MEAN, PAIR_SIGMA = math.log(0.65), 0.3
PAIR_OF_TYPE, PAIR_SENSITIVE, PAIR_AGGRESSIVE, PAIR_TOGETHER, PAIR_OWN = 0.1, 0.2, 0.25, 0.2, 0.02
PAIR_TYPES_ALIKE = 0.3
"""How alike what two jobs cost each other is on two types."""


class Estimate(NamedTuple):
    """Of the logarithm of a speed, by place."""

    mean: Floats
    sigma: Floats

    def speed(self, probability: float = 0.5) -> Floats:
        """The speed that is exceeded with this probability."""
        return np.exp(self.mean - NormalDist().inv_cdf(probability) * self.sigma)


class SpeedModel:
    """What observations say under a population. Their order does not matter."""

    def __init__(
        self, population: Population, observations: Iterable[Observation] = (), between_runs: float = BETWEEN_RUNS
    ) -> None:
        self.population = population
        self._alone: dict[str, list[Observation]] = {}
        self._models: dict[str, dict[str, Profile]] = {}
        self._profiles: dict[str, Profile] = {}
        self._pairs: list[Observation] = []
        self._means: dict[tuple[str, Place], float] = {}
        for seen in merged(observations, between_runs):
            self._profiles[seen.profile.key] = seen.profile
            if seen.place.partner:
                self._pairs.append(seen)
                continue
            self._alone.setdefault(seen.profile.key, []).append(seen)
            if seen.profile.model:
                self._models.setdefault(seen.profile.model, {})[seen.profile.key] = seen.profile

    def estimate(self, profile: Profile, places: Sequence[Place], own: Sequence[Observation] = ()) -> Estimate:
        """Without any measurement of the profile its level is unknown (a very wide band), its shape is not. `own`: what
        the run in question showed itself; then this is how fast that run is, which differs from others."""
        found = self._alone_at(profile, [place._replace(partner="") for place in places], own)
        shared = np.array([bool(place.partner) for place in places])
        if not shared.any():
            return found
        kept = self.kept(profile, places)
        mean = found.mean + np.where(shared, kept.mean, 0.0)
        return Estimate(mean, np.where(shared, np.hypot(found.sigma, kept.sigma), found.sigma))

    def most_informative(self, profile: Profile, places: Sequence[Place], noise: float = BETWEEN_RUNS) -> int:
        """Which of the places, when measured, leaves the least doubt about all of them."""
        _, cov = self._curve(profile, places)
        after = np.diag(cov)[:, None] - cov**2 / (np.diag(cov) + noise**2)
        return int(np.argmin(np.sqrt(np.maximum(after, 0.0)).sum(axis=0)))

    def kept(self, profile: Profile, places: Sequence[Place]) -> Estimate:
        """The logarithm of the part of its speed that a profile keeps beside each partner."""
        seen = self._pairs_near(profile, places)
        who = [*(one.profile for one in seen), *[profile] * len(places)]
        where = [*(one.place for one in seen), *places]
        prior = _pair_covariance(who, [self._partner(place) for place in where], [place.type for place in where])
        values = np.array([one.log_speed - self._alone_mean(one) - PAIR_MEAN for one in seen])
        mean, cov = _condition(np.full(len(places), PAIR_MEAN), prior, values, [one.variance for one in seen])
        return _with_band(mean, cov)

    # -- how it is done ------------------------------------------------------------------------------

    def _alone_at(self, profile: Profile, places: Sequence[Place], own: Sequence[Observation] = ()) -> Estimate:
        if not own:
            return _with_band(*self._curve(profile, places))
        mean, cov = self._curve(profile, [*(seen.place for seen in own), *places])
        values = np.array([seen.log_speed for seen in own]) - mean[: len(own)]
        noise = [seen.variance for seen in own]
        return _with_band(*_condition(mean[len(own) :], cov + BETWEEN_RUNS**2, values, noise))

    def _curve(self, profile: Profile, places: Sequence[Place]) -> tuple[Floats, Floats]:
        """Mean and covariance of the logarithms of the speeds alone."""
        seen = self._evidence(profile)
        everywhere = [*(one.place for one in seen), *places]
        who = [*(one.profile for one in seen), *[profile] * len(places)]
        rows = design(everywhere, self.population.types)
        prior = rows @ self.population.cov @ rows.T
        sizes = rows[:, :KNOTS] @ self.population.cov[:KNOTS, :KNOTS] @ rows[:, :KNOTS].T
        alike = alike_table(who)
        own = np.where(alike == 1.0, own_part(everywhere) + FLAT, 0.0)
        prior = alike * (prior - (1.0 - types_alike(everywhere)) * sizes) + own
        mean = rows @ self.population.mean + np.log([place.workers for place in everywhere])
        n = len(seen)
        values = np.array([one.log_speed for one in seen]) - mean[:n]
        return _condition(mean[n:], prior, values, [one.variance for one in seen])

    def _evidence(self, profile: Profile) -> list[Observation]:
        own = self._alone.get(profile.key, [])
        others = [other for key, other in self._models.get(profile.model, {}).items() if key != profile.key]
        others.sort(key=lambda other: (-profiles_alike(profile, other), other))
        return (own + [seen for other in others for seen in self._alone[other.key]])[: len(own) + ALIKE_KEPT]

    def _pairs_near(self, profile: Profile, places: Sequence[Place]) -> list[Observation]:
        """At most `PAIRS_KEPT` measured pairs, those first that are most like what is asked."""
        partners = [self._partner(place) for place in {place.partner: place for place in places}.values()]
        kinds = {place.type for place in places}

        def nearness(seen: Observation) -> float:
            partner = self._partner(seen.place)
            alike = pairs_alike(profile, seen.profile) + max(pairs_alike(partner, other) for other in partners)
            return alike + (seen.place.type in kinds)

        return sorted(self._pairs, key=lambda seen: (-nearness(seen), seen.profile, seen.place))[:PAIRS_KEPT]

    def _partner(self, place: Place) -> Profile:
        return self._profiles.get(place.partner, Profile(place.partner))

    def _alone_mean(self, seen: Observation) -> float:
        key = (seen.profile.key, seen.place._replace(partner=""))
        if key not in self._means:
            self._means[key] = float(self._curve(seen.profile, [key[1]])[0][0])
        return self._means[key]


def _pair_covariance(who: Sequence[Profile], beside: Sequence[Profile], types: Sequence[str]) -> Floats:
    known = sorted({*who, *beside})
    at = {profile: k for k, profile in enumerate(known)}
    table = np.array([[pairs_alike(a, b) for b in known] for a in known])
    own, other = np.array([at[profile] for profile in who]), np.array([at[profile] for profile in beside])
    sensitive, aggressive = table[np.ix_(own, own)], table[np.ix_(other, other)]
    same = np.array(types)[:, None] == np.array(types)[None, :]
    parts = PAIR_SENSITIVE**2 * sensitive + PAIR_AGGRESSIVE**2 * aggressive
    parts = np.where(same, 1.0, PAIR_TYPES_ALIKE) * (parts + PAIR_TOGETHER**2 * sensitive * aggressive)
    itself = (sensitive == 1.0) & (aggressive == 1.0) & same
    return PAIR_SIGMA**2 + PAIR_OF_TYPE**2 * same + parts + PAIR_OWN**2 * itself


def _condition(mean: Floats, prior: Floats, values: Floats, noise: Sequence[float]) -> tuple[Floats, Floats]:
    """Of the last variables, given values (less their means) of the first."""
    n = len(values)
    if not n:
        return mean, prior
    cross = prior[n:, :n]
    gain = np.linalg.solve(prior[:n, :n] + np.diag(noise), cross.T).T
    return mean + gain @ values, prior[n:, n:] - gain @ cross.T


def _with_band(mean: Floats, cov: Floats) -> Estimate:
    return Estimate(mean, BAND * np.sqrt(np.maximum(np.diag(cov), 1e-12)))

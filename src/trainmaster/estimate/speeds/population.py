"""How profiles' efficiencies vary: a Gaussian over knots, learned from applications with equal weight each.

    log s(place) = l + log workers + (knots of the place) . z + own part;   z ~ N(mean, cov);   l flat

found by expectation and maximisation from any mixture of sizes and types. What was known before counts as so many
applications.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

import numpy as np

from trainmaster.core.arrays import Floats
from trainmaster.estimate.speeds.axes import (
    ACROSS,
    ALONE,
    KNOTS,
    SERVERS,
    WITHIN,
    WORKERS,
    design,
    own_part,
    types_alike,
)
from trainmaster.estimate.speeds.observations import Observation

FLAT = 1e4
"""Variance of a level of which nothing is known."""
TURNS = 30
TAME = 6.0
"""An application so many standard deviations (squared) from the mean moves it half as much as one at the mean."""
TYPE_SIGMA = 0.45
"""How far speeds of types by their specifications are off, for one application."""


@dataclass(frozen=True, eq=False)
class Population:
    """`applications`: how many it was learned from. `types` follow the knots of sizes."""

    mean: Floats
    cov: Floats
    applications: float
    types: tuple[str, ...] = ()

    def with_types(self, types: Sequence[str], speeds: Sequence[float]) -> Population:
        """Extended by what is presumed of types: relative speeds, known to `TYPE_SIGMA`."""
        n = len(types)
        cov = np.zeros((KNOTS + n, KNOTS + n))
        cov[:KNOTS, :KNOTS] = self.cov[:KNOTS, :KNOTS]
        cov[KNOTS:, KNOTS:] = TYPE_SIGMA**2 * np.eye(n)
        return Population(np.concatenate([self.mean[:KNOTS], np.log(speeds)]), cov, self.applications, tuple(types))


def vague() -> Population:
    """Before any application was seen: efficiency falls with size, more so across nodes."""
    w = np.log2([*WITHIN, *ACROSS])
    across = np.arange(ALONE) >= len(WITHIN)
    mean, cov = np.zeros(KNOTS), np.zeros((KNOTS, KNOTS))
    mean[:ALONE] = -0.1 * w - 0.3 * across
    cov[:ALONE, :ALONE] = 0.15**2 * np.minimum.outer(w, w) + 0.4**2 * np.logical_and.outer(across, across)
    w = np.log2([workers for workers in WORKERS for _ in SERVERS])
    p = np.log2([servers for _ in WORKERS for servers in SERVERS])
    mean[ALONE:] = -0.3 * np.maximum(w - p, 0.0) - 0.1 * w
    cov[ALONE:, ALONE:] = 0.2**2 * (np.minimum.outer(w, w) + np.minimum.outer(p, p)) + 0.1**2 * np.eye(len(w))
    return Population(mean, cov, 1.0)


def learn(curves: Sequence[tuple[str, Sequence[Observation]]], before: Population, turns: int = TURNS) -> Population:
    """`curves`: (application, what was observed of one of its profiles)."""
    curves = [(name, seen) for name, seen in curves if len(seen) > 1]
    names = [name for name, _ in curves]
    if not names:
        return before
    share = [1.0 / names.count(name) for name in names]
    parts = [_known(seen, before.types) for _, seen in curves]
    mean, cov = before.mean, before.cov
    count = before.applications + len(set(names))
    for _ in range(turns):
        found = [(part, *_posterior(*known, mean, cov)) for part, known in zip(share, parts, strict=True)]
        far = np.linalg.pinv(cov, rcond=1e-6)
        pull = [part * TAME / (TAME + (m - mean) @ far @ (m - mean)) for part, m, _ in found]
        weight = before.applications * sum(pull) / len(set(names))
        new = (weight * before.mean + sum(w * m for w, (_, m, _) in zip(pull, found, strict=True))) / (
            weight + sum(pull)
        )
        spread = before.applications * (before.cov + np.outer(before.mean - new, before.mean - new))
        spread = spread + sum(part * (c + np.outer(m - new, m - new)) for part, m, c in found)
        mean, cov = new, spread / (count - 1.0)
    return Population(mean, cov, count, before.types)


def _known(seen: Sequence[Observation], types: Sequence[str]) -> tuple[Floats, Floats, Floats, Floats]:
    places = [one.place for one in seen]
    values = np.array([one.log_speed - np.log(one.place.workers) for one in seen])
    noise = own_part(places) + np.diag([one.variance for one in seen]) + FLAT
    return design(places, types), values, noise, types_alike(places)


def _posterior(
    rows: Floats, values: Floats, noise: Floats, alike: Floats, mean: Floats, cov: Floats
) -> tuple[Floats, Floats]:
    cross = cov @ rows.T
    apart = (1.0 - alike) * (rows[:, :KNOTS] @ cross[:KNOTS])
    gain = np.linalg.solve(rows @ cross - apart + noise, cross.T).T
    return mean + gain @ (values - rows @ mean), cov - gain @ cross.T


def to_json(population: Population, rank: int = 12) -> dict[str, list[list[float]] | list[float] | float]:
    """Sizes alone, the covariance by its largest components; rounded."""
    values, vectors = np.linalg.eigh(population.cov[:KNOTS, :KNOTS])
    top = np.argsort(-values)[:rank]
    factors = vectors[:, top] * np.sqrt(np.maximum(values[top], 0.0))
    factors *= np.where(factors.sum(axis=0) < 0, -1.0, 1.0)
    rest = np.diag(population.cov)[:KNOTS] - (factors**2).sum(axis=1)
    return {
        "applications": population.applications,
        "mean": population.mean[:KNOTS].round(3).tolist(),
        "factors": factors.T.round(3).tolist(),
        "rest": np.maximum(rest, 0.0).round(4).tolist(),
    }


def shipped() -> Population:
    """The population that comes with the product (`bench/study_speeds.py --population` makes it)."""
    text = resources.files("trainmaster.estimate.speeds").joinpath("population.json").read_text(encoding="utf-8")
    data = json.loads(text)
    factors = np.array(data["factors"])
    return Population(np.array(data["mean"]), factors.T @ factors + np.diag(data["rest"]), data["applications"])

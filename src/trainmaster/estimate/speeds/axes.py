"""Where a place lies on the axes along which profiles differ, and how alike places and profiles are."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from trainmaster.core.arrays import Floats
from trainmaster.estimate.speeds.observations import Place, Profile

WITHIN = (2, 4, 8)
ACROSS = (2, 4, 8, 16, 32, 64)
WORKERS = SERVERS = (1, 2, 4, 8, 16, 32)
ALONE = len(WITHIN) + len(ACROSS)
KNOTS = ALONE + len(WORKERS) * len(SERVERS)
"""Sizes at which a population is described, linear in the logarithm of the size in between: without servers relative to
one worker; with servers, a grid. Types follow, a knot for each."""
BEYOND = 1.0
"""Doublings by which the last two knots are drawn out."""
WALK, BOUNDARY, OWN = 0.08, 0.12, 0.04
"""Standard deviations of what is a profile's own: per root of a doubling, across nodes, at each place."""
TYPE_APART = 0.8
"""How alike efficiencies are on two types."""
SAME_MODEL, BATCH_APART = 0.9, 8.0
"""How alike two profiles of a model are at nearly the same batch, and after how many doublings of it by 1/e of that."""
PAIR_SAME_MODEL, PAIR_BATCH_APART = 0.99, 12.0
"""The same of what they do to a partner, and it to them."""


def design(places: Sequence[Place], types: Sequence[str]) -> Floats:
    """A row of knot weights for each place."""
    at = {name: KNOTS + k for k, name in enumerate(types)}
    rows = np.zeros((len(places), KNOTS + len(types)))
    for row, place in zip(rows, places, strict=True):
        if place.servers > 0:
            row[ALONE:KNOTS] = np.outer(_along(WORKERS, place.workers), _along(SERVERS, place.servers)).reshape(-1)
        elif crosses(place):
            row[len(WITHIN) : ALONE] = _along(ACROSS, place.workers)
        else:
            row[: len(WITHIN)] = _along((1, *WITHIN), place.workers)[1:]
        if place.type in at:
            row[at[place.type]] = 1.0
    return rows


def crosses(place: Place) -> bool:
    return place.across and place.workers + place.servers > 1


def _along(sizes: tuple[int, ...], size: float) -> Floats:
    logs = [math.log2(known) for known in sizes]
    at = min(max(math.log2(size), logs[0]), logs[-1] + BEYOND)
    k = max(min(sum(at >= mark for mark in logs), len(sizes) - 1), 1)
    part = (at - logs[k - 1]) / (logs[k] - logs[k - 1])
    row = np.zeros(len(sizes))
    row[k - 1], row[k] = 1.0 - part, part
    return row


def own_part(places: Sequence[Place]) -> Floats:
    """Covariance of what is a profile's own beside the population."""
    w = np.log2([place.workers for place in places])
    p = np.log2([1.0 + place.servers for place in places])
    across = np.array([crosses(place) for place in places])
    number: dict[tuple[object, ...], int] = {}
    which = np.array([number.setdefault(place[:4], len(number)) for place in places])
    same = which[:, None] == which[None, :]
    walk = np.minimum.outer(w, w) + np.minimum.outer(p, p)
    return WALK**2 * walk + BOUNDARY**2 * np.logical_and.outer(across, across) + OWN**2 * same


def types_alike(places: Sequence[Place]) -> Floats:
    kinds = np.array([place.type for place in places])
    return np.where(kinds[:, None] == kinds[None, :], 1.0, TYPE_APART)


def profiles_alike(a: Profile, b: Profile, same_model: float = SAME_MODEL, apart: float = BATCH_APART) -> float:
    """1 for the same profile, less for other batches of its model, 0 for others."""
    if a.key == b.key:
        return 1.0
    if not a.model or a.model != b.model:
        return 0.0
    doublings = abs(math.log2(a.batch / b.batch)) if a.batch > 0 and b.batch > 0 else 2.0
    return same_model * math.exp(-doublings / apart)


def alike_table(profiles: Sequence[Profile]) -> Floats:
    """How alike each two of them are."""
    number: dict[Profile, int] = {}
    which = np.array([number.setdefault(profile, len(number)) for profile in profiles], np.int64)
    table = np.array([[profiles_alike(a, b) for b in number] for a in number]).reshape(len(number), len(number))
    return table[np.ix_(which, which)]


def pairs_alike(a: Profile, b: Profile) -> float:
    return profiles_alike(a, b, PAIR_SAME_MODEL, PAIR_BATCH_APART)

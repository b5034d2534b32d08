"""Speed as a function of workers and servers, fitted to profiled points (Optimus, EuroSys'18, section 3.2).

Both forms are linear in their coefficients once inverted:

    synchronous   1/f = t0 M/w + t1 + t2 w/p + t3 w + t4 p
    asynchronous  w/f = t0 + t1 w/p + t2 w + t3 p,  so  1/f = t0/w + t1/p + t2 + t3 p/w

and both are special cases of `Scaling`. With p = w in every point, w/p is constant and w equals p: the
coefficients cannot be told apart, hence `profile_sizes` avoids the diagonal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainmaster.estimate.nonnegative import nonnegative_least_squares
from trainmaster.model.scaling import Scaling

Point = tuple[int, int, float]
"""(workers, servers, steps per second)."""

SYNCHRONOUS = ("a", "b", "c", "d", "e")
ASYNCHRONOUS = ("a", "b", "f", "g")
WITHOUT_SERVERS = ("a", "b", "d")


@dataclass(frozen=True)
class SpeedFit:
    """A fitted curve; `scaling.speed` is in steps per second, `error` the root mean square relative error."""

    scaling: Scaling
    error: float


def fit_speed(points: Sequence[Point]) -> SpeedFit:
    """The better of the two forms. Needs at least one point of positive speed."""
    usable = [point for point in points if point[0] > 0 and point[2] > 0]
    if not usable:
        raise ValueError("no profiled point with a positive speed")
    if any(p > 0 for _, p, _ in usable):
        fits = [_fit(usable, SYNCHRONOUS), _fit(usable, ASYNCHRONOUS)]
        return min(fits, key=lambda fit: fit.error)
    return _fit(usable, WITHOUT_SERVERS)


def _fit(points: Sequence[Point], terms: Sequence[str]) -> SpeedFit:
    w = np.array([float(point[0]) for point in points])
    p = np.array([float(max(point[1], 1)) for point in points])
    step_s = 1.0 / np.array([point[2] for point in points])
    column = {"a": 1 / w, "b": np.ones_like(w), "c": w / p, "d": w, "e": p, "f": 1 / p, "g": p / w}
    # Divided by the measured time: the error that counts is relative.
    design = np.stack([column[term] for term in terms], axis=1) / step_s[:, None]
    found = nonnegative_least_squares(design, np.ones_like(w))
    error = float(np.sqrt(np.mean((design @ found - 1.0) ** 2)))
    values = {"a": 0.0, **dict(zip(terms, found.tolist(), strict=True))}
    return SpeedFit(Scaling(**values), error)


def profile_sizes(workers: tuple[int, int], servers: tuple[int, int], count: int) -> list[tuple[int, int]]:
    """At most `count` sizes to try in these ranges: powers of two and the ends, off the diagonal p = w."""
    ws, ps = doubling(*workers), doubling(*servers)
    sizes = [(w, p) for w in ws for p in ps]
    if servers[1] > 0:
        sizes = [(w, p) for w, p in sizes if w != p and p > 0] or sizes
    sizes.sort(key=lambda size: (size[0] * max(size[1], 1), size[0]))
    if len(sizes) <= count:
        return sizes
    picked = np.unique(np.linspace(0, len(sizes) - 1, count).round().astype(int))
    return [sizes[k] for k in picked.tolist()]


def doubling(low: int, high: int) -> list[int]:
    """The ends of a range and the powers of two between them."""
    values = {low, high}
    step = 1
    while step < high:
        if step >= low:
            values.add(step)
        step *= 2
    return sorted(values)

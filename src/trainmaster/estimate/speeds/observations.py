"""What was measured or declared of speeds: a profile at a place."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from trainmaster.model.errors import InputError


class Profile(NamedTuple):
    """Jobs that are taken to be as fast as each other: same model, batch and code. `model`: what other batches of it
    share (empty: nothing is alike)."""

    key: str
    model: str = ""
    batch: float = 0.0


class Place(NamedTuple):
    """Where a job runs. `across`: on more than one node; `partner`: key of the profile on the same devices."""

    workers: int
    servers: int = 0
    across: bool = False
    type: str = ""
    partner: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """`log_speed`: of the work per second of all workers together. `variance`: of that logarithm, as measured.
    `run`: attempts differ more from each other than measurements of one do."""

    profile: Profile
    place: Place
    log_speed: float
    variance: float
    seconds: float = 0.0
    run: str = ""

    def __post_init__(self) -> None:
        figures = (self.log_speed, self.variance, self.seconds, self.profile.batch)
        if not all(map(math.isfinite, figures)) or min(figures[1:]) < 0:
            raise InputError(
                f"speed of profile '{self.profile.key}': log speed {self.log_speed}, variance {self.variance}, "
                f"{self.seconds} s, batch {self.profile.batch}",
                "finite numbers, none but the first negative",
            )
        if not self.profile.key or self.place.workers < 1 or self.place.servers < 0:
            raise InputError(
                f"speed of profile '{self.profile.key}' at {self.place.workers} workers, {self.place.servers} servers",
                "a profile's name, 1 or more workers, 0 or more servers",
            )


def observed(
    profile: Profile, place: Place, steps_per_s: float, sigma: float, seconds: float = 0.0, run: str = ""
) -> Observation:
    """A measured speed with its relative error."""
    if not 0.0 < steps_per_s < math.inf:
        raise InputError(f"speed of profile '{profile.key}': {steps_per_s}", "a positive, finite number")
    return Observation(profile, place, math.log(steps_per_s), sigma * sigma, seconds, run)


def merged(observations: Iterable[Observation], between_runs: float) -> list[Observation]:
    """One figure per profile and place, sorted, whatever the order. However well each run was measured, a figure is
    believed to no better than `between_runs` divided among the runs."""
    groups: dict[tuple[Profile, Place], dict[str, list[tuple[float, float]]]] = {}
    for seen in observations:
        runs = groups.setdefault((seen.profile, seen.place), {})
        runs.setdefault(seen.run, []).append((seen.log_speed, max(seen.variance, 1e-8)))
    result = []
    for (profile, place), runs in sorted(groups.items()):
        weights = total = 0.0
        for _, figures in sorted(runs.items()):
            inverse = sum(1.0 / variance for _, variance in sorted(figures))
            mean = sum(value / variance for value, variance in sorted(figures)) / inverse
            weight = 1.0 / (1.0 / inverse + between_runs**2)
            weights, total = weights + weight, total + weight * mean
        result.append(Observation(profile, place, total / weights, 1.0 / weights))
    return result

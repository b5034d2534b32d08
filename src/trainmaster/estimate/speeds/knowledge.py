"""What is known of speeds, by profile: bounded plain data that a store keeps, filled by jobs, by `profile` and by old
stores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainmaster.estimate.likeness import levels_of, name_stem
from trainmaster.estimate.speeds.observations import Observation, Place, Profile
from trainmaster.model.errors import InputError
from trainmaster.model.job import JobSpec
from trainmaster.model.units import GPU_MILLI

KEPT_PROFILES = 300
"""Those of which nothing was measured for longest go first."""
KEPT_FIGURES = 24
"""Of a profile: (place, run)."""
KEPT_RUNS = 4
"""Of a profile at a place."""
OLD_SIGMA = 0.08


def profile_of(spec: JobSpec) -> Profile:
    """Jobs with the same key are taken to be as fast as each other: same model and batch; else the same name apart from
    trailing numbers; else the same command apart from numbers. A job without any of these stands alone."""
    if spec.model:
        key = f"model:{spec.model}:{spec.batch_size or ''}"
    elif name_stem(spec):
        key = f"name:{name_stem(spec)}"
    else:
        by_command = (level.key for level in levels_of(spec) if level.key.startswith("arguments:"))
        key = ":".join(next(by_command, f"job:{spec.id}:").split(":")[:3])
    return Profile(_of_size(key, spec.worker.gpu_milli), spec.model, float(spec.batch_size or 0))


def _of_size(key: str, gpu_milli: int) -> str:
    return key if gpu_milli == GPU_MILLI else f"{key}:{gpu_milli}"


@dataclass
class Knowledge:
    """At most `KEPT_PROFILES`; of each the newest figures. `changes` counts up."""

    profiles: dict[str, dict[tuple[Place, str], Observation]] = field(default_factory=dict)
    changes: int = 0

    def add(self, seen: Observation) -> None:
        """What the same run showed at the same place before is replaced."""
        self.changes += 1
        known = self.profiles.pop(seen.profile.key, {})
        known.pop((seen.place, seen.run), None)
        known[seen.place, seen.run] = seen
        here = [key for key in known if key[0] == seen.place]
        for key in here[: len(here) - KEPT_RUNS]:
            del known[key]
        while len(known) > KEPT_FIGURES:
            del known[next(iter(known))]
        self.profiles[seen.profile.key] = known
        while len(self.profiles) > KEPT_PROFILES:
            del self.profiles[next(iter(self.profiles))]

    def about(self, profile: Profile) -> list[Observation]:
        """Of the profile and of other batches of its model, alone on their devices."""
        own = self.profiles.get(profile.key, {})
        found = [own] + [seen for key, seen in self.profiles.items() if profile.model and key != profile.key]
        return [
            one
            for figures in found
            for one in figures.values()
            if not one.place.partner and (figures is own or one.profile.model == profile.model)
        ]

    def __iter__(self) -> Iterator[Observation]:
        return (seen for figures in self.profiles.values() for seen in figures.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "profiles": [
                [*next(iter(figures.values())).profile, [_row(seen) for seen in figures.values()]]
                for figures in self.profiles.values()
            ]
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Knowledge:
        """Figures that cannot be are left out: they are of use, not needed."""
        known = cls()
        for key, model, batch, rows in data.get("profiles", ()):
            for row in rows:
                try:
                    known.add(_seen(Profile(str(key), str(model), float(batch)), row))
                except (InputError, TypeError, ValueError):
                    continue
        return known

    def take_old(self, speeds: Mapping[str, Mapping[str, list[float]]]) -> None:
        """What stores of earlier versions hold: by kind of job and type, at the size that ends the kind's name."""
        for kind, by_label in speeds.items():
            name, _, size = kind.removesuffix(":steps").rpartition(":")
            gpu_milli, _, gang = size.partition("x")
            workers, _, servers = gang.partition("+")
            model, batch = ([*name.split(":"), "", ""][1:3]) if name.startswith("model:") else ("", "")
            for label, (count, mean, *_) in by_label.items():
                try:
                    profile = Profile(_of_size(name, int(gpu_milli)), model, float(batch or 0))
                    place = Place(
                        int(workers), int(servers), label.endswith(_OLD_SPREAD), label.removesuffix(_OLD_SPREAD)
                    )
                    self.add(Observation(profile, place, mean, OLD_SIGMA**2 / max(count, 1.0), run="earlier"))
                except (InputError, ValueError):
                    continue


_OLD_SPREAD = "/spread"


def _row(seen: Observation) -> list[Any]:
    place = seen.place
    return [
        place.workers,
        place.servers,
        int(place.across),
        place.type,
        place.partner,
        round(seen.log_speed, 6),
        float(f"{seen.variance:.6g}"),
        round(seen.seconds, 1),
        seen.run,
    ]


def _seen(profile: Profile, row: list[Any]) -> Observation:
    workers, servers, across, kind, partner, log_speed, variance, seconds, run = row
    place = Place(int(workers), int(servers), bool(across), str(kind), str(partner))
    return Observation(profile, place, float(log_speed), float(variance), float(seconds), str(run))

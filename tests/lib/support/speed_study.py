"""Measured speed profiles of others (AdaptDL's six applications, Gavel's families), and how well the estimator tells
what it was not shown of them. Always leaves the tested application, all batches of it, out."""

from __future__ import annotations

import ast
import csv
import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trainmaster.core.arrays import Floats
from trainmaster.estimate.accelerators import type_speeds
from trainmaster.estimate.catalogue import split_batch_size
from trainmaster.estimate.speeds.model import SpeedModel
from trainmaster.estimate.speeds.observations import Observation, Place, Profile, observed
from trainmaster.estimate.speeds.population import Population, learn, vague

NOISE = 0.03
Z80 = 1.2816
TYPES = ("k80", "p100", "v100")
SIZES = (1, 2, 4, 8, 16, 32)
Curve = Mapping[Place, float]
Curves = Mapping[Profile, Curve]
_ONE_NODE = {1: "1", 2: "2", 3: "3", 4: "4", 8: "44", 12: "444", 16: "4444"}


def adaptdl(folder: Path, sizes: Sequence[int] = SIZES) -> Curves:
    """Data-parallel jobs on nodes of four GPUs, at the least number of nodes."""
    found: dict[Profile, Curve] = {}
    for application in sorted(path.name for path in folder.iterdir() if path.is_dir()):
        step_s: dict[tuple[str, int], float] = {}
        for row in _rows(folder / application / "placements.csv"):
            step_s[row["placement"], int(row["local_bsz"])] = float(row["step_time"])
        for row in _rows(folder / application / "scalability.csv"):
            if int(row["num_nodes"]) * 4 == int(row["num_replicas"]):
                name = _ONE_NODE.get(int(row["num_replicas"]), row["num_replicas"])
                step_s.setdefault((name, int(row["local_bsz"])), float(row["step_time"]))
        for batch in sorted({batch for _, batch in step_s}):
            places = {Place(n, 0, n > 4): step_s.get((_ONE_NODE.get(n, str(n)), batch)) for n in sizes}
            curve = {place: place.workers / seconds for place, seconds in places.items() if seconds}
            if len(curve) > 3:
                found[Profile(f"{application}:{batch}", application, float(batch))] = curve
    return found


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open() as lines:
        yield from csv.DictReader(lines)


class Gavel:
    """Gavel's table: speeds by type and size, and of pairs on one device."""

    def __init__(self, path: Path) -> None:
        self.alone: dict[Profile, dict[Place, float]] = {}
        self.pairs: dict[tuple[Profile, Place], float] = {}
        for kind, by_model in json.loads(path.read_text()).items():
            name, _, across = kind.partition("_")
            for key, speeds in sorted(by_model.items()):
                model, gpus = ast.literal_eval(key)
                self._add(_profile(model), Place(gpus, 0, bool(across), name), speeds)

    def _add(self, profile: Profile, place: Place, speeds: Mapping[str, float | Sequence[float]]) -> None:
        if place.across and place.workers == 1:
            return
        for other, speed in sorted(speeds.items()):
            if isinstance(speed, (int, float)):
                if speed > 0:
                    self.alone.setdefault(profile, {})[place] = speed
            elif place.workers == 1 and min(speed) > 0:
                partner, gpus = ast.literal_eval(other)
                if gpus == 1:
                    self.pairs[profile, place._replace(partner=_profile(partner).key)] = speed[0]

    def curves(self, kind: str, across: bool) -> Curves:
        """Speeds over sizes on one type; with `across`, also on several nodes."""
        wanted = {
            profile: {place: speed for place, speed in curve.items()
                      if place.type == kind and (across or not place.across)}
            for profile, curve in self.alone.items()
        }  # fmt: skip
        return {
            profile._replace(key=f"{profile.key}@{kind}"): curve for profile, curve in wanted.items() if len(curve) > 3
        }


def _profile(model: str) -> Profile:
    name, batch = split_batch_size(model)
    return Profile(model, name, float(batch or 0))


def as_seen(profile: Profile, curve: Curve) -> list[Observation]:
    return [observed(profile, place, speed, NOISE) for place, speed in sorted(curve.items())]


@dataclass
class Errors:
    """Relative errors by application, and how far off in standard deviations, with the width of the 80 % band."""

    by_application: dict[str, list[float]] = field(default_factory=dict)
    held: list[bool] = field(default_factory=list)
    widths: list[float] = field(default_factory=list)

    def add(self, application: str, model: SpeedModel, profile: Profile, truth: Curve) -> None:
        found = model.estimate(profile, list(truth))
        self.note(application, found.mean - np.log(list(truth.values())), found.sigma)

    def note(self, application: str, off: Floats, sigma: Floats) -> None:
        self.by_application.setdefault(application, []).extend(np.abs(np.expm1(off)).tolist())
        self.held.extend((np.abs(off) < Z80 * sigma).tolist())
        self.widths.extend((2 * Z80 * sigma).tolist())

    @property
    def median_percent(self) -> float:
        """Over applications, of the median in each."""
        return 100 * float(np.median([np.median(errors) for errors in self.by_application.values()]))

    @property
    def median_of_all_percent(self) -> float:
        return 100 * float(np.median([one for errors in self.by_application.values() for one in errors]))

    @property
    def held_percent(self) -> float:
        return 100 * float(np.mean(self.held))

    @property
    def width(self) -> float:
        return float(np.mean(self.widths))


Learnt = Callable[[str], Population]


def without(curves: Curves, before: Population | None = None) -> Learnt:
    """The population that the other applications show."""
    found: dict[str, Population] = {}

    def of(application: str) -> Population:
        if application not in found:
            others = [(p.model, as_seen(p, curve)) for p, curve in curves.items() if p.model != application]
            found[application] = learn(others, before or vague())
        return found[application]

    return of


def _noisy(profile: Profile, place: Place, speed: float, rng: np.random.Generator) -> Observation:
    return observed(profile, place, speed * math.exp(NOISE * rng.standard_normal()), NOISE)


def sizes(curves: Curves, learnt: Learnt, tried: int, draws: int = 12, chosen: bool = False) -> Errors:
    """At sizes that were not tried, after `tried` random ones, or those that the estimator asks for."""
    errors = Errors()
    for profile, curve in curves.items():
        rng = np.random.default_rng([zlib.crc32(profile.key.encode()), tried])
        places = sorted(curve)
        for _ in range(draws):
            order = [places[k] for k in rng.permutation(len(places)).tolist()]
            seen: list[Observation] = []
            for k in range(tried):
                at = order[k]
                if chosen:
                    left = [place for place in places if place not in {one.place for one in seen}]
                    asked = SpeedModel(learnt(profile.model), seen, 0.0)
                    at = left[asked.most_informative(profile, left, NOISE)]
                seen.append(_noisy(profile, at, curve[at], rng))
            rest = {place: curve[place] for place in places if place not in {one.place for one in seen}}
            if rest:
                errors.add(profile.model, SpeedModel(learnt(profile.model), seen, 0.0), profile, rest)
    return errors


def types(gavel: Gavel, model_seen: bool) -> Errors:
    """Two types by a third; `model_seen`: other batches of the model were measured on all."""
    single = {profile: {place: speed for place, speed in curve.items() if place.workers == 1}
              for profile, curve in gavel.alone.items()}  # fmt: skip
    learnt = without(single, vague().with_types(TYPES, type_speeds(TYPES)))
    errors = Errors()
    for profile, curve in single.items():
        rng = np.random.default_rng(zlib.crc32(profile.key.encode()))
        alike = [one for p, c in single.items() if p.model == profile.model and p != profile for one in as_seen(p, c)]
        if model_seen and not alike:
            continue
        for known in curve:
            seen = [_noisy(profile, known, curve[known], rng), *(alike if model_seen else ())]
            rest = {place: speed for place, speed in curve.items() if place != known}
            errors.add(profile.model, SpeedModel(learnt(profile.model), seen, 0.0), profile, rest)
    return errors


def pairs(gavel: Gavel, models_seen: bool, probes: int = 1, kept: int = 800) -> Errors:
    """What a profile keeps beside partners with which it was not tried, after so many that were. Without `models_seen`,
    nothing of its model was measured in pairs; else other batches of it were, but not it itself."""
    population = vague().with_types(TYPES, type_speeds(TYPES))
    alone = [one for p, curve in gavel.alone.items() for one in as_seen(p, {q: s for q, s in curve.items()
                                                                            if q.workers == 1})]  # fmt: skip
    models = {profile.key: profile.model for profile in gavel.alone}
    errors = Errors()
    for profile in sorted(gavel.alone):
        rng = np.random.default_rng([zlib.crc32(profile.key.encode()), probes])
        others = [
            observed(p, place, speed, NOISE) for (p, place), speed in sorted(gavel.pairs.items())
            if profile.key not in (p.key, place.partner)
            and (models_seen or profile.model not in (p.model, models[place.partner]))
        ]  # fmt: skip
        if models_seen and not any(one.profile.model == profile.model for one in others):
            continue
        if not models_seen:
            others = [others[k] for k in rng.permutation(len(others))[:kept].tolist()]
        for kind in TYPES:
            mine = [
                place for p, place in sorted(gavel.pairs)
                if p == profile and place.type == kind and place.partner != profile.key
                and (models_seen or models[place.partner] != profile.model)
            ]  # fmt: skip
            if len(mine) <= probes + 1:
                continue
            probed = [mine[k] for k in rng.permutation(len(mine))[:probes].tolist()]
            seen = [_noisy(profile, place, gavel.pairs[profile, place], rng) for place in probed]
            model = SpeedModel(population, [*alone, *others, *seen], 0.0)
            places = [place for place in mine if place not in probed]
            found = model.kept(profile, places)
            truth = [math.log(gavel.pairs[profile, q] / gavel.alone[profile][q._replace(partner="")]) for q in places]
            off = found.mean - np.array(truth)
            errors.note(profile.model, off, found.sigma)
    return errors

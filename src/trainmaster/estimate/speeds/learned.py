"""What an engine asks of speeds: what jobs declare, what they measure and what jobs alike measured, in one estimate.

A job begins with what it declares (or, where it declares nothing, with how fast types are relative to each other),
moved by how far declarations were off; once its profile was measured anywhere, that counts. What the job itself
measures comes first, and it follows a speed that changes: a report weighs more than all before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np

from trainmaster.core.arrays import Floats
from trainmaster.estimate.accelerators import type_speeds
from trainmaster.estimate.likeness import LIKE_IT, Expectation, LogFigure, expect
from trainmaster.estimate.profiles import UNKNOWN_SECONDS, JobProfiles, first_of, ratio_levels
from trainmaster.estimate.speed_fit import doubling, fit_speed
from trainmaster.estimate.speeds.knowledge import Knowledge, profile_of
from trainmaster.estimate.speeds.model import SpeedModel
from trainmaster.estimate.speeds.observations import Observation, Place, Profile
from trainmaster.estimate.speeds.population import Population, shipped
from trainmaster.estimate.speeds.sharing import PairBelief, SharedSpeeds
from trainmaster.model.cluster import Cluster
from trainmaster.model.job import ExpectedWork, JobSpec
from trainmaster.model.scaling import LINEAR, Measurement, News, Scaling, SpeedTable

DECLARED_SIGMA = 0.4
"""Relative spread of a speed that is only declared: users guess."""
ALIKE_SIGMA = 0.35
"""Presumed among jobs of a profile, until enough of them were measured."""
UNKNOWN_SIGMA = 0.6
"""And of one of which nothing was said."""
CURVE_SIGMA = 0.05
"""Of each point of a declared curve, relative to the others."""
MEASURED_SIGMA = 0.04
SHORT_SIGMA = 0.25
"""Of a speed that was measured for less than `MEASURED_S` or `MEASURED_STEPS`: the first steps take longer."""
MEASURED_S, MEASURED_STEPS, MEASURED_ANYHOW_S = 10.0, 30.0, 60.0
FOLLOW = 0.7
"""Weight of the newest report: after three, at most 0.3^3 = 2.7 % of an old speed is left."""
MOVED, MOVED_OWN = 0.05, 0.01
"""Relative changes of a speed from which on others, and the job itself, are told."""
STARVED = 0.01
"""Part of its speed that a job is taken to keep that makes no step beside another."""
EVERY_SIZE_UP_TO = 8


class Speeds(NamedTuple):
    """Steps per second by type on one node and on several, at the reference size; `sigma`: relative spread; `jobs`,
    which are `text`, say so (0: it is declared, or measured by the job itself); `known`: they are more than a guess."""

    here: Floats
    spread: Floats
    sigma: float
    known: bool
    jobs: int = 0
    text: str = ""


def basis_of(found: Speeds | Expectation) -> str:
    """The jobs that say so, in words."""
    return f"{found.jobs} {'job' if found.jobs == 1 else 'jobs'} {found.text}" if found.jobs else ""


def _spread_of_jobs(seen: Mapping[tuple[Place, str], Observation]) -> float:
    """How far jobs of one profile are apart at a place: a profile is a name or a command, not the same work."""
    figures: dict[Place, LogFigure] = {}
    for (place, _), found in sorted(seen.items()):
        figures.setdefault(place, LogFigure()).add(math.exp(found.log_speed))
    return max(figure.sigma(ALIKE_SIGMA) for figure in figures.values())


def workers_per_node(spec: JobSpec, cluster: Cluster) -> list[int]:
    """How many workers of a job fit on a node, by type."""
    each = max(spec.worker.devices, 1)
    return [int(cluster.gpus[cluster.type_of == kind].max()) // each for kind in range(len(cluster.types))]


class Prior(Protocol):
    def profile(self, spec: JobSpec, types: Sequence[str]) -> tuple[Floats, Floats]: ...


class LearningEstimator:
    """See the module's text. Not `declared`: what jobs say of their speeds is not believed."""

    def __init__(
        self,
        prior: Prior,
        profiles: JobProfiles | None = None,
        knowledge: Knowledge | None = None,
        declared: bool = True,
        population: Population | None = None,
    ) -> None:
        self.prior = prior
        self.profiles = profiles or JobProfiles()
        self.knowledge = knowledge or Knowledge()
        self._declared = declared
        self._population = population or shipped()
        self._own: dict[str, dict[Place, _Own]] = {}
        self._tables: dict[tuple[object, ...], tuple[int, SpeedTable]] = {}
        self._shared = SharedSpeeds(lambda: self.knowledge)

    # -- what is told --------------------------------------------------------------------------------

    def observe(self, measured: Measurement) -> News:
        """A speed as measured, at the size that the job had."""
        if measured.beside is not None and measured.steps_per_s == 0.0:
            measured = measured._replace(steps_per_s=STARVED * self._alone(measured))
        if not 0.0 < measured.steps_per_s < math.inf:
            return News.NONE
        beside = "" if measured.beside is None else profile_of(measured.beside).key
        place = Place(measured.workers, measured.servers, measured.spread, measured.accelerator, beside)
        own = self._own.setdefault(measured.spec.id, {}).setdefault(place, _Own(measured.generation))
        own.follow(measured)
        if own.long_enough and abs(own.figure.mean - own.told_others) >= MOVED:
            own.told_others = own.told = own.figure.mean
            self.knowledge.add(self._observation(measured.spec, place, own))
            return News.OF_JOBS_ALIKE
        if abs(own.figure.mean - own.told) >= MOVED_OWN:
            own.told = own.figure.mean
            return News.OF_THE_JOB
        return News.NONE

    def _alone(self, measured: Measurement) -> float:
        """The speed that it would have on its devices without others."""
        table = self.belief(measured.spec, [measured.accelerator], [measured.workers])
        return table.speed(0, measured.workers, measured.servers, measured.spread)

    def has_measured(self, spec: JobSpec) -> bool:
        return bool(self._own_of(spec))

    def _own_of(self, spec: JobSpec) -> dict[Place, _Own]:
        """What the job itself measured; after a restart of the service, what is left of it."""
        if spec.id not in self._own:
            for (place, run), seen in self.knowledge.profiles.get(profile_of(spec).key, {}).items():
                job_id, _, generation = run.rpartition(".")
                if job_id == spec.id:
                    own = self._own.setdefault(spec.id, {})[place] = _Own(int(generation))
                    own.resume(seen)
        return self._own.get(spec.id, {})

    def ended(self, spec: JobSpec, work_done: float, finished: bool, run_s: float = 0.0, accelerator: str = "") -> None:
        """A job is over: what it showed serves the next of its kind. `accelerator`: where it ran (empty: not known)."""
        self._tell(spec, self.profiles, self.knowledge)
        self._own.pop(spec.id, None)
        if finished and work_done > 0:
            self.profiles.add_work(spec, work_done)
        if finished and run_s > 0 and accelerator:
            self.profiles.add_seconds(spec, run_s, accelerator)

    def so_far(self, running: Iterable[JobSpec]) -> tuple[JobProfiles, Knowledge]:
        """What is known as if those that run had ended: what they measure serves those that wait."""
        profiles = JobProfiles.from_json(self.profiles.to_json())
        knowledge = Knowledge.from_json(self.knowledge.to_json())
        for spec in running:
            self._tell(spec, profiles, knowledge)
        return profiles, knowledge

    def _tell(self, spec: JobSpec, profiles: JobProfiles, knowledge: Knowledge) -> None:
        own = self._own_of(spec)
        for place, shown in own.items():
            knowledge.add(self._observation(spec, place, shown))
        for name in sorted({place.type for place in own if not place.partner}):
            usual = float(self._usual(spec, [name])[0][0])
            speed = self.belief(spec, [name], [spec.workers_ref]).speed(0, spec.workers_ref, spec.servers_ref)
            profiles.add_ratio(spec, speed, usual)

    def _observation(self, spec: JobSpec, place: Place, own: _Own) -> Observation:
        sigma = MEASURED_SIGMA if own.long_enough else SHORT_SIGMA
        run = f"{spec.id}.{own.generation}"
        return Observation(profile_of(spec), place, own.figure.mean, sigma**2, own.seconds, run)

    # -- what is asked -------------------------------------------------------------------------------

    def profile(self, spec: JobSpec, types: Sequence[str]) -> tuple[Floats, Floats]:
        found = self.speeds(spec, types)
        return found.here, found.spread

    def sigma(self, spec: JobSpec) -> float:
        """Relative spread of the speed it gives for this job, where it measured last or would run best."""
        own = self._own_of(spec)
        return self.speeds(spec, [next(reversed(own)).type] if own else ()).sigma

    def speeds(self, spec: JobSpec, types: Sequence[str], node_workers: Sequence[int] | None = None) -> Speeds:
        """What is believed of a job's speed at its reference size, and by what. `node_workers`: how many of its workers
        fit on a node of each type (None: all of them)."""
        own, seen = self._own_of(spec), self.knowledge.profiles.get(profile_of(spec).key, {})
        ratio = self._ratio(spec)
        known, jobs, text = self._says(spec) or ratio.jobs > 0, ratio.jobs, ratio.text
        if own:
            known, jobs, text = True, 0, ""
        elif seen:
            known, jobs, text = True, len({run for _, run in seen}), LIKE_IT
        names = list(types) or sorted(self._said(spec))[:1] or [""]
        table = self.belief(spec, names, node_workers or [spec.workers_ref] * len(names))
        size, kinds = (spec.workers_ref, spec.servers_ref), range(len(types))
        can = self._usual(spec, types)[0] > 0 if types else np.zeros(0)
        here = np.array([table.speed(kind, *size) for kind in kinds]) * can
        spread = np.array([table.speed(kind, *size, spread=True) for kind in kinds]) * can
        best = int(np.argmax(here)) if len(here) else 0
        sigma = table.log_speed(best, *size)[1]
        if seen and not own:
            sigma = math.hypot(sigma, _spread_of_jobs(seen))
        return Speeds(here, spread, sigma, known, jobs, text)

    def expected_work(self, spec: JobSpec, types: Sequence[str], speeds: Speeds | None = None) -> ExpectedWork | None:
        """Of a job that does not say how many steps it has; None: nothing tells."""
        speeds = speeds or self.speeds(spec, types)
        steps = self.profiles.steps_of(spec)
        if speeds.known and steps is not None:
            return ExpectedWork(steps.median, steps.sigma, basis=basis_of(steps))
        seconds = self.profiles.seconds_of(spec, types)
        if seconds is None:
            return None
        fastest = max(float(speeds.here.max(initial=0.0)), 1e-9)
        return ExpectedWork(seconds.median * fastest, seconds.sigma, timed=True, basis=basis_of(seconds))

    def table(self, spec: JobSpec, cluster: Cluster) -> SpeedTable:
        """The job's belief on the nodes of a cluster."""
        return self.belief(spec, cluster.types, workers_per_node(spec, cluster))

    def group(self, spec: JobSpec) -> str:
        """Jobs with the same answer learn from each other."""
        profile = profile_of(spec)
        return profile.model or profile.key

    def belief(self, spec: JobSpec, types: Sequence[str], node_workers: Sequence[int]) -> SpeedTable:
        own = self._own_of(spec)
        profile = profile_of(spec)
        sizes = (spec.workers_min, spec.workers_max, spec.workers_ref, spec.servers_max, spec.servers_ref)
        key = (profile, sizes, tuple(types), tuple(node_workers), spec.scaling, tuple(sorted(self._said(spec).items())))
        known = self._tables.get(key)
        if not own and known is not None and known[0] == self.knowledge.changes:
            return known[1]
        table = self._make(spec, profile, types, node_workers, own)
        if not own:
            if len(self._tables) > KEPT_TABLES:
                self._tables.clear()
            self._tables[key] = self.knowledge.changes, table
        return table

    def pair_kept(self, spec_a: JobSpec, spec_b: JobSpec, types: Sequence[str], probability: float = 0.5) -> Floats:
        """See `Snapshot.pair_speeds`: of pairs that are worth a try or have proved themselves."""
        return self._shared.pair_kept(spec_a, spec_b, types, probability)

    @property
    def pairs_version(self) -> int:
        """Grows when other pairs than before may be offered."""
        return self._shared.version

    def pair_belief(self, spec_a: JobSpec, spec_b: JobSpec, gpu_type: str) -> PairBelief:
        return self._shared.belief(spec_a, spec_b, gpu_type)

    # -- how it is done ------------------------------------------------------------------------------

    def _make(
        self, spec: JobSpec, profile: Profile, types: Sequence[str], node_workers: Sequence[int], own: dict[Place, _Own]
    ) -> SpeedTable:
        alone = {place: shown for place, shown in own.items() if not place.partner}
        seen = self.knowledge.about(profile)
        measured = bool(alone) or any(one.profile.key == profile.key for one in seen)
        if not profile.model:  # then nothing else is alike but what it says of its own curve
            profile = profile._replace(model=profile.key)
            seen = [replace(one, profile=profile) for one in seen]
        seen += self._declared_curve(spec, profile, types, node_workers)
        if not measured:
            seen.append(self._level(spec, profile, types, node_workers))
        workers = _sizes(max(spec.workers_min, 1), max(spec.workers_max, spec.workers_ref) + 1, node_workers)
        servers = _sizes(spec.servers_min, max(spec.servers_max, spec.servers_ref), [spec.servers_ref])
        places = [
            Place(w, p, across, name) for across in (False, True) for name in types for w in workers for p in servers
        ]
        model = SpeedModel(self._population_of(spec, types, seen), seen)
        shown = [Observation(profile, place, one.figure.mean, one.variance) for place, one in alone.items()]
        estimate = model.estimate(profile, places, shown)
        shape = (2, len(types), len(workers), len(servers))
        mean, sigma = estimate.mean.reshape(shape), estimate.sigma.reshape(shape)
        known = measured or self._says(spec) or self._ratio(spec).jobs > 0
        crossed = any(one.place.across and one.profile.key == profile.key for one in (*seen, *shown))
        sizes = tuple(workers), tuple(servers), tuple(node_workers)
        table = SpeedTable(*sizes, mean, sigma, LINEAR, known, profile.key, crossed)
        return replace(table, scaling=_scaling(table, int(np.argmax(mean[0, :, 0, 0]))))

    def _population_of(self, spec: JobSpec, types: Sequence[str], seen: Sequence[Observation]) -> Population:
        names = sorted({*types, *(one.place.type for one in seen)})
        speeds = np.array(type_speeds(names))
        said = self._said(spec)
        if usable := {name: speed for name, speed in said.items() if speed > 0}:
            best = max(sorted(usable), key=lambda name: usable[name])
            scale = usable[best] / speeds[names.index(best)] if best in names else 1.0
            speeds = np.array([usable.get(name, speed * scale) for name, speed in zip(names, speeds, strict=True)])
        return self._population.with_types(names, (speeds / speeds.max()).tolist())

    def _declared_curve(
        self, spec: JobSpec, profile: Profile, types: Sequence[str], node_workers: Sequence[int]
    ) -> list[Observation]:
        """A declared curve counts as another profile's that is much like this one: of its shape, not of its level."""
        other = profile._replace(key=f"{profile.key} (declared)")
        kind, most = (types[0], node_workers[0]) if types else ("", 1)
        speeds: dict[Place, float] = {}
        if self._declared and spec.scaling != LINEAR:
            curve = spec.scaling
            workers = [w for w, _ in curve.points] or doubling(max(spec.workers_min, 1), spec.workers_max)
            servers = [0] if curve.points else doubling(spec.servers_min, spec.servers_max)
            sizes = [(w, p) for w in workers for p in servers if w > 0]
            speeds = {Place(w, p, w > most, kind): float(curve.speed(w, p)) for w, p in sizes}
        if self._declared and spec.steps_per_s_spread and not speeds:
            here, spread = self._usual(spec, types)
            size = spec.workers_ref, spec.servers_ref
            speeds = {
                Place(*size, across, name): float(table[k])
                for across, table in ((False, here), (True, spread))
                for k, name in enumerate(types)
            }
        return [
            Observation(other, place, math.log(speed), CURVE_SIGMA**2) for place, speed in speeds.items() if speed > 0
        ]

    def _level(self, spec: JobSpec, profile: Profile, types: Sequence[str], node_workers: Sequence[int]) -> Observation:
        """How fast it is by what it says and by how far others were off, where nothing was measured."""
        usual, ratio = self._usual(spec, types)[0] if types else np.ones(1), self._ratio(spec)
        best = int(np.argmax(usual))
        kind, most = (types[best], node_workers[best]) if types else ("", spec.workers_ref)
        place = Place(spec.workers_ref, spec.servers_ref, spec.workers_ref > most, kind)
        variance = ratio.variance
        if self._declared and spec.scaling.points and not spec.steps_per_s:
            speed = float(spec.scaling.speed(spec.workers_ref))
        elif self._said(spec) or ratio.jobs:
            speed = max(float(usual[best]), 1e-12) * ratio.median
        elif spec.work_total and not self._declared:  # steps mean nothing yet, but jobs take about so long
            speed, variance = spec.work_total / UNKNOWN_SECONDS.median, UNKNOWN_SECONDS.variance
        else:
            speed = 1.0
        return Observation(profile, place, math.log(speed), variance)

    def _ratio(self, spec: JobSpec) -> Expectation:
        """Of measured over declared speeds; where nothing is declared, over the type's."""
        said = bool(self._said(spec))
        levels = ratio_levels(spec, said)
        start = Expectation(0.0, DECLARED_SIGMA**2) if said else first_of(self.profiles.ratios, levels)
        return expect(self.profiles.ratios, levels, start or Expectation(0.0, UNKNOWN_SIGMA**2))

    def _says(self, spec: JobSpec) -> bool:
        """Whether the job says how fast it is."""
        return self._declared and bool(spec.steps_per_s or spec.scaling.points)

    def _said(self, spec: JobSpec) -> dict[str, float]:
        return dict(spec.steps_per_s) if self._declared else {}

    def _usual(self, spec: JobSpec, types: Sequence[str]) -> tuple[Floats, Floats]:
        """As declared; else how fast types are, where the job can run."""
        if self._said(spec):
            return self.prior.profile(spec, types)
        can = [not spec.steps_per_s or spec.steps_per_s.get(name, 0.0) > 0 for name in types]
        speeds = np.array(type_speeds(types)) * can
        return speeds, speeds


KEPT_TABLES = 2_000


class _Own:
    """What an attempt measured at one place."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.figure = LogFigure()
        self.seconds = self.steps = 0.0
        self.told = self.told_others = math.inf
        """The logarithm that the job, and jobs alike, were last told."""

    def resume(self, seen: Observation) -> None:
        self.figure.mean, self.figure.count, self.seconds = seen.log_speed, 1.0, seen.seconds
        self.steps, self.told = seen.seconds * math.exp(seen.log_speed), seen.log_speed
        self.told_others = seen.log_speed

    def follow(self, measured: Measurement) -> None:
        if measured.generation != self.generation:
            self.__init__(measured.generation)
        figure, value = self.figure, math.log(measured.steps_per_s)
        if figure.count:
            figure.variance = 0.5 * figure.variance + 0.5 * (value - figure.mean) ** 2
            value = figure.mean + FOLLOW * (value - figure.mean)
        figure.mean, figure.count = value, figure.count + 1
        self.seconds = max(self.seconds, measured.seconds)
        self.steps = self.seconds * measured.steps_per_s

    @property
    def variance(self) -> float:
        return MEASURED_SIGMA**2 + self.figure.variance / max(self.figure.count, 1.0)

    @property
    def long_enough(self) -> bool:
        return self.seconds >= MEASURED_ANYHOW_S or (self.seconds >= MEASURED_S and self.steps >= MEASURED_STEPS)


def _sizes(least: int, most: int, also: Sequence[int]) -> list[int]:
    """Small ones, powers of two, and where nodes end."""
    nodes = {size for end in also for size in (end, end + 1) if least <= size <= most}
    return sorted({*doubling(least, most), *range(least, min(EVERY_SIZE_UP_TO, most) + 1), *nodes})


def _scaling(table: SpeedTable, kind: int) -> Scaling:
    """The mean curve for policies that read curves: points; with servers the formula nearest to the mean."""
    speeds = [(w, p, table.speed(kind, w, p)) for w in table.workers for p in table.servers]
    if table.servers[-1] == 0:
        return Scaling(points=tuple((w, speed) for w, _, speed in speeds))
    return fit_speed([point for point in speeds if point[1] > 0 or table.servers[0] == 0]).scaling

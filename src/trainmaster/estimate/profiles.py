"""What jobs alike have shown: speeds, amounts of work, run times, and what starting and resizing costs here.

`JobProfiles` is plain data that a store keeps; `LearningEstimator` is what a live engine asks: it begins with
what the job declares (or, where it declares nothing, with how fast types are relative to each other), believes what the
job itself measures, and otherwise what jobs of its kind measured. It follows a speed that changes: a report weighs more
than all before it. Which jobs are alike is in `likeness`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from trainmaster.core.arrays import Floats
from trainmaster.estimate.accelerators import type_speeds
from trainmaster.estimate.likeness import (
    LIKE_IT,
    OF_ITS_USER,
    SAME_SCRIPT,
    Expectation,
    Level,
    LogFigure,
    expect,
    levels_of,
    name_stem,
    of_its_code,
    owner_of,
    script_of,
    size_of,
)
from trainmaster.model.expected_work import ExpectedWork
from trainmaster.model.job import JobSpec

DECLARED_SIGMA = 0.4
"""Relative spread of a speed that is only declared: users guess."""
ALIKE_SIGMA = 0.25
"""Presumed spread among jobs of a kind."""
UNKNOWN_SIGMA = 0.6
"""And of one of which nothing was said."""
MEASURED_SIGMA = 0.04
FOLLOW = 0.7
"""Weight of the newest report: after three, at most 0.3^3 = 2.7 % of an old speed is left."""
TYPE_SIGMA = 0.3
"""How far ratios of types by the catalogue are off."""
KEPT_KINDS = 1_000
"""Kinds of jobs of which figures are kept, in each table; those not seen for longest go first."""
UNKNOWN_SECONDS = Expectation(math.log(3600.0), 1.5**2)
"""Run time of a job of which nothing is known: an hour, more or less."""
JOBS_OF_USER_MIN = 5
"""So many run times of other commands tell something about the next."""


def kind_of(spec: JobSpec) -> str:
    """Jobs with the same answer are taken to be as fast as each other: same model and batch; else the same name apart
    from trailing numbers; else the same command apart from numbers."""
    if spec.model:
        return f"model:{spec.model}:{spec.batch_size or ''}:{size_of(spec)}"
    if name_stem(spec):
        return f"name:{name_stem(spec)}:{size_of(spec)}"
    return next((level.key for level in levels_of(spec) if level.key.startswith("arguments:")), "")


def _ratio_levels(spec: JobSpec) -> tuple[Level, ...]:
    """Of measured over declared speeds; where nothing is declared, of speeds relative to the type's, which differ less
    among jobs of a script than run times do."""
    owner, script = owner_of(spec), script_of(spec)
    if not spec.steps_per_s:
        return tuple(level._replace(amount=1.0, spread=level.spread / 2) for level in of_its_code(levels_of(spec)))
    levels = [Level(f"declared:user:{owner}", 0.6, OF_ITS_USER)]
    if script:
        levels.append(Level(f"declared:script:{owner}:{script}", 0.5, SAME_SCRIPT))
    if spec.model:
        levels.append(Level(f"declared:model:{spec.model}", 0.3, LIKE_IT))
    return tuple(levels)


def _first(book: Mapping[str, LogFigure], levels: Sequence[Level]) -> Expectation | None:
    """Where nothing is known but what jobs alike did: around the most general of them."""
    return next((Expectation(book[level.key].mean, 1.5**2) for level in levels if level.key in book), None)


def _add(book: dict[str, LogFigure], key: str, value: float) -> None:
    figure = book.pop(key, None) or LogFigure()
    figure.add(value)
    book[key] = figure
    while len(book) > KEPT_KINDS:
        del book[next(iter(book))]


@dataclass
class JobProfiles:
    """`speeds[kind][type]`; by level of likeness: `ratios` of measured speeds, `work` in steps and `seconds` of run
    time as on a V100; `costs[what]`; what: launch, restart, resize, stop, exit (from the last step until the end is
    known), in seconds."""

    speeds: dict[str, dict[str, LogFigure]] = field(default_factory=dict)
    work: dict[str, LogFigure] = field(default_factory=dict)
    costs: dict[str, LogFigure] = field(default_factory=dict)
    ratios: dict[str, LogFigure] = field(default_factory=dict)
    seconds: dict[str, LogFigure] = field(default_factory=dict)

    def add_speed(self, spec: JobSpec, label: str, steps_per_s: float, usual: float) -> None:
        """`usual`: as declared there; else how fast the type is."""
        kind = kind_of(spec)
        if kind:
            by_label = self.speeds.pop(kind, {})
            by_label.setdefault(label, LogFigure()).add(steps_per_s)
            self.speeds[kind] = by_label
            while len(self.speeds) > KEPT_KINDS:
                del self.speeds[next(iter(self.speeds))]
        if usual > 0:
            for level in _ratio_levels(spec):
                _add(self.ratios, level.key, steps_per_s / usual)

    def add_work(self, spec: JobSpec, work: float) -> None:
        for level in of_its_code(levels_of(spec)):
            _add(self.work, level.key, work / level.amount)

    def add_seconds(self, spec: JobSpec, seconds: float, accelerator: str) -> None:
        """A job that finished has run for so long on this type."""
        for level in levels_of(spec):
            _add(self.seconds, level.key, seconds * type_speeds([accelerator])[0] / level.amount)

    def add_cost(self, what: str, seconds: float) -> None:
        self.costs.setdefault(what, LogFigure()).add(max(seconds, 1e-3))

    def cost_ms(self, what: str) -> int:
        figure = self.costs.get(what)
        return 0 if figure is None else round(figure.median * 1000)

    def steps_of(self, spec: JobSpec) -> Expectation | None:
        """Of the amount of work of jobs of the same code, in steps; None: none has ended that said its steps."""
        levels = of_its_code(levels_of(spec))
        return expect(self.work, levels, start) if (start := _first(self.work, levels)) else None

    def seconds_of(self, spec: JobSpec, types: Sequence[str]) -> Expectation | None:
        """Of the run time on the fastest type, by the jobs that are most like it; None: nothing can be said."""
        speeds = type_speeds(types)
        doubt = TYPE_SIGMA if min(speeds) < max(speeds) else 0.0
        levels = [level._replace(spread=math.hypot(level.spread, doubt)) for level in levels_of(spec)]
        found = expect(self.seconds, levels, UNKNOWN_SECONDS)
        least = {LIKE_IT: 1, SAME_SCRIPT: 1, OF_ITS_USER: JOBS_OF_USER_MIN}.get(found.text, math.inf)
        return None if found.jobs < least else found._replace(mean=found.mean - math.log(max(speeds)))

    def to_json(self) -> dict[str, Any]:
        def rows(book: Mapping[str, LogFigure]) -> dict[str, list[float]]:
            return {key: [figure.count, figure.mean, figure.variance] for key, figure in book.items()}

        return {
            "speeds": {kind: rows(by_label) for kind, by_label in self.speeds.items()},
            **{name: rows(getattr(self, name)) for name in ("work", "costs", "ratios", "seconds")},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JobProfiles:
        def figures(rows: Mapping[str, Sequence[float]]) -> dict[str, LogFigure]:
            return {key: LogFigure(*row) for key, row in rows.items()}

        return cls(
            {kind: figures(by_label) for kind, by_label in data.get("speeds", {}).items()},
            **{name: figures(data.get(name, {})) for name in ("work", "costs", "ratios", "seconds")},
        )


class Speeds(NamedTuple):
    """Steps per second by type on one node and on several; `sigma`: relative spread; `jobs`, which are `text`,
    say so (0: it is declared, or measured by the job itself); `known`: they are more than a guess."""

    here: Floats
    spread: Floats
    sigma: float
    known: bool
    jobs: int = 0
    text: str = ""


def basis_of(found: Speeds | Expectation) -> str:
    """The jobs that say so, in words."""
    return f"{found.jobs} {'job' if found.jobs == 1 else 'jobs'} {found.text}" if found.jobs else ""


class Prior(Protocol):
    def profile(self, spec: JobSpec, types: Sequence[str]) -> tuple[Floats, Floats]: ...


class LearningEstimator:
    """See the module's text. Also answers how sure it is (`sigma`)."""

    def __init__(self, prior: Prior, profiles: JobProfiles | None = None) -> None:
        self.prior = prior
        self.profiles = profiles or JobProfiles()
        self._own: dict[str, dict[str, LogFigure]] = {}
        pair_speeds = getattr(prior, "pair_speeds", None)
        if pair_speeds is not None:
            self.pair_speeds = pair_speeds

    def observe(self, job_id: str, accelerator: str, steps_per_s: float, spread: bool = False) -> None:
        """A measured speed, restated at the job's reference size."""
        if not 0.0 < steps_per_s < math.inf:
            return
        figure = self._own.setdefault(job_id, {}).setdefault(_label(accelerator, spread), LogFigure())
        value = math.log(steps_per_s)
        if figure.count:
            figure.variance = 0.5 * figure.variance + 0.5 * (value - figure.mean) ** 2
            value = figure.mean + FOLLOW * (value - figure.mean)
        figure.mean, figure.count = value, figure.count + 1

    def has_measured(self, job_id: str) -> bool:
        return job_id in self._own

    def ended(self, spec: JobSpec, work_done: float, finished: bool, run_s: float = 0.0, accelerator: str = "") -> None:
        """A job is over: what it showed serves the next of its kind. `accelerator`: where it ran (empty: not known)."""
        for label, figure in sorted(self._own.pop(spec.id, {}).items()):
            self._add_speed(self.profiles, spec, label, figure)
        if finished and work_done > 0:
            self.profiles.add_work(spec, work_done)
        if finished and run_s > 0 and accelerator:
            self.profiles.add_seconds(spec, run_s, accelerator)

    def so_far(self, running: Sequence[JobSpec]) -> JobProfiles:
        """The profiles as if those that run had ended: what they measure serves those that wait."""
        copy = JobProfiles.from_json(self.profiles.to_json())
        for spec in running:
            for label, figure in sorted(self._own.get(spec.id, {}).items()):
                self._add_speed(copy, spec, label, figure)
        return copy

    def _add_speed(self, profiles: JobProfiles, spec: JobSpec, label: str, figure: LogFigure) -> None:
        accelerator = label.removesuffix(_SPREAD)
        usual = self._usual(spec, [accelerator])[label != accelerator]
        profiles.add_speed(spec, label, figure.median, float(usual[0]))

    def _usual(self, spec: JobSpec, types: Sequence[str]) -> tuple[Floats, Floats]:
        """As declared; else how fast types are."""
        if spec.steps_per_s:
            return self.prior.profile(spec, types)
        speeds = np.array(type_speeds(types))
        return speeds, speeds

    def profile(self, spec: JobSpec, types: Sequence[str]) -> tuple[Floats, Floats]:
        found = self.speeds(spec, types)
        return found.here, found.spread

    def knows_speed(self, spec: JobSpec) -> bool:
        return self.speeds(spec, ()).known

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

    def sigma(self, spec: JobSpec) -> float:
        """Relative spread of the speed it gives for this job."""
        return self.speeds(spec, ()).sigma

    def speeds(self, spec: JobSpec, types: Sequence[str]) -> Speeds:
        """What is believed of a job's speed, and by what."""
        here, spread = self._usual(spec, types)
        declared = bool(spec.steps_per_s)
        levels = _ratio_levels(spec)
        start = Expectation(0.0, DECLARED_SIGMA**2) if declared else _first(self.profiles.ratios, levels)
        ratio = expect(self.profiles.ratios, levels, start or Expectation(0.0, UNKNOWN_SIGMA**2))
        if ratio.jobs:
            here, spread = here * ratio.median, spread * ratio.median
        elif not declared and len(types):
            here, spread = here / here.max(), spread / here.max()  # one step a second on the fastest
        sigma = ratio.sigma
        known, jobs, text = declared or ratio.jobs > 0, ratio.jobs, ratio.text
        own, alike = self._own.get(spec.id, {}), self.profiles.speeds.get(kind_of(spec), {})
        if alike:
            sigma = max(figure.sigma(ALIKE_SIGMA) for figure in alike.values())
            if any(_label(name, False) not in alike for name in types):
                sigma = math.hypot(sigma, TYPE_SIGMA)
            known, jobs, text = True, round(max(figure.count for figure in alike.values())), LIKE_IT
        if own:
            last = max(own.values(), key=lambda figure: figure.count)
            sigma = math.hypot(MEASURED_SIGMA, math.sqrt(last.variance / max(last.count, 1.0)))
            known, jobs, text = True, 0, ""
        if own or alike:
            here, spread = (
                self._blend(table, types, own, alike, is_spread) for table, is_spread in ((here, False), (spread, True))
            )
        return Speeds(here, spread, sigma, known, jobs, text)

    @staticmethod
    def _blend(
        declared: Floats,
        types: Sequence[str],
        own: Mapping[str, LogFigure],
        alike: Mapping[str, LogFigure],
        spread: bool,
    ) -> Floats:
        """Measured where measured; elsewhere the declared figure times what measuring showed on the others."""
        result = np.array(declared, float)
        for figures in (alike, own):  # the job itself has the last word
            known = {k: figures[_label(t, spread)].median for k, t in enumerate(types) if _label(t, spread) in figures}
            usable = {k: value for k, value in known.items() if declared[k] > 0}
            if not usable:
                other = {
                    k: figures[_label(t, not spread)].median
                    for k, t in enumerate(types)
                    if _label(t, not spread) in figures
                }
                usable = {k: value for k, value in other.items() if declared[k] > 0}
                known = {}
            if not usable:
                continue
            factor = math.exp(float(np.mean([math.log(value / declared[k]) for k, value in usable.items()])))
            result = np.array(declared, float) * factor
            for k, value in known.items():
                if declared[k] > 0:
                    result[k] = value
        return result


_SPREAD = "/spread"


def _label(accelerator: str, spread: bool) -> str:
    return f"{accelerator}{_SPREAD}" if spread else accelerator

"""What jobs alike have shown beside their speeds: amounts of work, run times, how far declared speeds are off, and what
starting and resizing costs here. Plain data that a store keeps; which jobs are alike is in `likeness`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
    of_its_code,
    owner_of,
    script_of,
)
from trainmaster.model.job import JobSpec

TYPE_SIGMA = 0.3
"""How far ratios of types by the catalogue are off."""
KEPT_KINDS = 1_000
"""Kinds of jobs of which figures are kept, in each table; those not seen for longest go first."""
UNKNOWN_SECONDS = Expectation(math.log(3600.0), 1.5**2)
"""Run time of a job of which nothing is known: an hour, more or less."""
JOBS_OF_USER_MIN = 5
"""So many run times of other commands tell something about the next."""


def ratio_levels(spec: JobSpec, declared: bool) -> tuple[Level, ...]:
    """Of measured over declared speeds; where nothing is, of speeds relative to the type's, which differ less
    among jobs of a script than run times do."""
    owner, script = owner_of(spec), script_of(spec)
    if not declared:
        return tuple(level._replace(amount=1.0, spread=level.spread / 2) for level in of_its_code(levels_of(spec)))
    levels = [Level(f"declared:user:{owner}", 0.6, OF_ITS_USER)]
    if script:
        levels.append(Level(f"declared:script:{owner}:{script}", 0.5, SAME_SCRIPT))
    if spec.model:
        levels.append(Level(f"declared:model:{spec.model}", 0.3, LIKE_IT))
    return tuple(levels)


def first_of(book: Mapping[str, LogFigure], levels: Sequence[Level]) -> Expectation | None:
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
    """By level of likeness: `ratios` of measured speeds, `work` in steps and `seconds` of run
    time as on a V100; `costs[what]`; what: launch, restart, resize, stop, exit (from the last step until the end is
    known), in seconds."""

    work: dict[str, LogFigure] = field(default_factory=dict)
    costs: dict[str, LogFigure] = field(default_factory=dict)
    ratios: dict[str, LogFigure] = field(default_factory=dict)
    seconds: dict[str, LogFigure] = field(default_factory=dict)

    def add_ratio(self, spec: JobSpec, steps_per_s: float, usual: float) -> None:
        """`usual`: as declared there; else how fast the type is."""
        if usual > 0:
            for level in ratio_levels(spec, bool(spec.steps_per_s)):
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
        return expect(self.work, levels, start) if (start := first_of(self.work, levels)) else None

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

        return {name: rows(getattr(self, name)) for name in ("work", "costs", "ratios", "seconds")}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JobProfiles:
        def figures(rows: Mapping[str, Sequence[float]]) -> dict[str, LogFigure]:
            return {key: LogFigure(*row) for key, row in rows.items()}

        return cls(**{name: figures(data.get(name, {})) for name in ("work", "costs", "ratios", "seconds")})

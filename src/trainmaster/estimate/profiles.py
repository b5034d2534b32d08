"""What jobs alike have shown: speeds, amounts of work, and what starting and resizing costs here.

`JobProfiles` is plain data that a store keeps; `LearningEstimator` is what a live engine asks: it begins with
what the job declares, believes what the job itself measures, and otherwise what jobs of its kind measured. It
follows a speed that changes: a report weighs more than all before it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Protocol

import numpy as np

from trainmaster.core.arrays import Floats
from trainmaster.model.job import JobSpec

DECLARED_SIGMA = 0.25
"""Relative spread of a speed that is only declared."""
UNKNOWN_SIGMA = 0.6
"""And of one of which nothing was said."""
MEASURED_SIGMA = 0.04
FOLLOW = 0.7
"""Weight of the newest report: after three, at most 0.3^3 = 2.7 % of an old speed is left."""
MEMORY = 30
"""Jobs alike whose figures count; older ones fade."""


def kind_of(spec: JobSpec) -> str:
    """Jobs with the same answer are taken to be alike: same model and batch; else the same name apart from
    trailing numbers; else the same script."""
    size = f"{spec.worker.gpu_milli}x{spec.workers_ref}+{spec.servers_ref}"
    if spec.model:
        return f"model:{spec.model}:{spec.batch_size or ''}:{size}"
    stem = re.sub(r"[-_.]?\d+$", "", spec.name)
    if stem:
        return f"name:{stem}:{size}"
    command = [str(word) for word in spec.payload.get("command", ())]
    script = next((word for word in command[1:] if word.endswith((".py", ".sh"))), command[0] if command else "")
    return f"script:{PurePath(script).name}:{size}" if script else ""


@dataclass
class LogFigure:
    """Mean and spread of the logarithm of a positive figure, over the last `MEMORY` or so."""

    count: float = 0.0
    mean: float = 0.0
    variance: float = 0.0

    def add(self, value: float) -> None:
        if not 0.0 < value < math.inf:
            return
        self.count = min(self.count + 1.0, MEMORY)
        step = math.log(value) - self.mean
        self.mean += step / self.count
        self.variance += (step * step * (1.0 - 1.0 / self.count) - self.variance) / self.count

    @property
    def median(self) -> float:
        return math.exp(self.mean)

    def sigma(self, before: float) -> float:
        """Spread to expect of the next one, `before` standing in while there are few."""
        return math.sqrt((2.0 * before**2 + self.count * self.variance) / (2.0 + self.count))


@dataclass
class JobProfiles:
    """`speeds[kind][type]`, `work[kind]`, `costs[what]`; what: launch, restart, resize, stop, exit (from the last
    step until the end is known), in seconds."""

    speeds: dict[str, dict[str, LogFigure]] = field(default_factory=dict)
    work: dict[str, LogFigure] = field(default_factory=dict)
    costs: dict[str, LogFigure] = field(default_factory=dict)

    def add_speed(self, spec: JobSpec, label: str, steps_per_s: float) -> None:
        kind = kind_of(spec)
        if kind:
            self.speeds.setdefault(kind, {}).setdefault(label, LogFigure()).add(steps_per_s)

    def add_work(self, spec: JobSpec, work: float) -> None:
        kind = kind_of(spec)
        if kind:
            self.work.setdefault(kind, LogFigure()).add(work)

    def add_cost(self, what: str, seconds: float) -> None:
        self.costs.setdefault(what, LogFigure()).add(max(seconds, 1e-3))

    def cost_ms(self, what: str) -> int:
        figure = self.costs.get(what)
        return 0 if figure is None else round(figure.median * 1000)

    def work_of(self, spec: JobSpec) -> tuple[float, float] | None:
        """(median, sigma of the logarithm) of the amount of work of jobs alike; None: none has ended yet."""
        figure = self.work.get(kind_of(spec))
        return None if figure is None else (figure.median, figure.sigma(0.5))

    def to_json(self) -> dict[str, Any]:
        def row(figure: LogFigure) -> list[float]:
            return [figure.count, figure.mean, figure.variance]

        return {
            "speeds": {k: {t: row(f) for t, f in sorted(by.items())} for k, by in sorted(self.speeds.items())},
            "work": {k: row(f) for k, f in sorted(self.work.items())},
            "costs": {k: row(f) for k, f in sorted(self.costs.items())},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JobProfiles:
        return cls(
            {k: {t: LogFigure(*row) for t, row in by.items()} for k, by in data.get("speeds", {}).items()},
            {k: LogFigure(*row) for k, row in data.get("work", {}).items()},
            {k: LogFigure(*row) for k, row in data.get("costs", {}).items()},
        )


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

    def ended(self, spec: JobSpec, work_done: float, finished: bool) -> None:
        """A job is over: what it showed serves the next of its kind."""
        for label, figure in sorted(self._own.pop(spec.id, {}).items()):
            self.profiles.add_speed(spec, label, figure.median)
        if finished and work_done > 0:
            self.profiles.add_work(spec, work_done)

    def profile(self, spec: JobSpec, types: Sequence[str]) -> tuple[Floats, Floats]:
        here, spread = self.prior.profile(spec, types)
        own = self._own.get(spec.id, {})
        alike = self.profiles.speeds.get(kind_of(spec), {})
        if not own and not alike:
            return here, spread
        believed = [
            self._blend(table, types, own, alike, is_spread) for table, is_spread in ((here, False), (spread, True))
        ]
        return believed[0], believed[1]

    def sigma(self, spec: JobSpec) -> float:
        """Relative spread of the speed it gives for this job."""
        own = self._own.get(spec.id)
        if own:
            last = max(own.values(), key=lambda figure: figure.count)
            return math.hypot(MEASURED_SIGMA, math.sqrt(last.variance / max(last.count, 1.0)))
        alike = self.profiles.speeds.get(kind_of(spec))
        before = DECLARED_SIGMA if spec.steps_per_s or spec.model else UNKNOWN_SIGMA
        if alike:
            return max(figure.sigma(before) for figure in alike.values())
        return before

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


def _label(accelerator: str, spread: bool) -> str:
    return f"{accelerator}/spread" if spread else accelerator

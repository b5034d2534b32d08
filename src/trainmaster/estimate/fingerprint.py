"""Throughput estimator: profile a few cells of a new job, complete its row from reference jobs, correct
it online.

A new job is run for a moment on some types, alone and beside some reference jobs. Low-rank completion
against the reference jobs of a catalogue fills in the rest of its row (Gavel, OSDI'20, section 6, takes
the nearest reference job's row instead; `rule="nearest"` does that, for comparison). What the job reports
while it runs enters as further cells, averaged exponentially, each with its uncertainty: so a measured
type is soon exact, and the other types of the same job improve with it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from trainmaster.core.arrays import Bools, Floats
from trainmaster.estimate.catalogue import ThroughputCatalogue, with_batch_size
from trainmaster.estimate.matrix_completion import CompletionOptions, LowRankModel, complete
from trainmaster.estimate.references import Column, Hide, ReferenceMatrix, measured, reference_matrix
from trainmaster.model.errors import InputError
from trainmaster.model.job import JobId, JobSpec
from trainmaster.model.scaling import Measurement, News

Rule = Literal["completed", "nearest"]

DEFAULT_PROFILED_FRACTION = 0.2
ALONE_WEIGHT = 3.0
"""A speed alone counts as much as this many cells beside a companion: there are few of the former."""
FITS_FROM = 0.5
"""A completed cell `fits` from here up says that two jobs fit in memory together."""
SURELY_FITS_FROM = 0.9
"""The same for two jobs that were not tried together: one that is wrongly believed to fit starves both."""
PAIR_SD = 0.25
"""Standard deviation of the logarithm of a completed fraction that a job keeps beside another (pairs are offered at
one such step below what is expected: a policy picks those that look best, which are those most overrated)."""
SMOOTHING = 0.3
"""Least weight of the newest measurement in the moving average (the first ones are averaged evenly)."""
MEASURED_SD = 0.05
"""Standard deviation of the logarithm of one measured speed."""
UNKNOWN_SD = 0.5
"""The same, of a speed of which only the type's average over reference jobs is known."""


@dataclass(frozen=True)
class Estimate:
    """One job's completed row, in the units of its columns; `log_sd` is the standard deviation of each cell."""

    columns: tuple[Column, ...]
    values: Floats
    profiled: Bools
    log_sd: Floats


@dataclass
class _Average:
    """Exponential moving average of log speeds, with the variance of that average."""

    mean: float
    variance: float
    count: int = 1

    def add(self, value: float) -> None:
        self.count += 1
        alpha = max(1.0 / self.count, SMOOTHING)
        self.variance = (1.0 - alpha) ** 2 * self.variance + alpha**2 * MEASURED_SD**2
        self.mean += alpha * (value - self.mean)


@dataclass
class _Known:
    """What was profiled and observed of one job."""

    spec: JobSpec
    gpus: int
    row: Floats
    profiled: Bools
    speeds: dict[Column, _Average]


class ReferenceModels:
    """Completion fitted to the reference jobs, once for each gang size and hidden model; estimators can share it."""

    def __init__(
        self,
        catalogue: ThroughputCatalogue,
        hide: Hide = "model",
        options: CompletionOptions | None = None,
        seed: int = 0,
    ) -> None:
        self.catalogue = catalogue
        self.hide: Hide = hide
        self.options = options or CompletionOptions()
        self.seed = seed
        self._matrices: dict[int, ReferenceMatrix] = {}
        self._fitted: dict[tuple[int, str], tuple[ReferenceMatrix, LowRankModel | None]] = {}

    def of(self, name: str, gpus: int) -> tuple[ReferenceMatrix, LowRankModel | None]:
        """References for a job of this model; no model of the columns where fewer than two rows are left."""
        if gpus not in self._matrices:
            self._matrices[gpus] = reference_matrix(self.catalogue, gpus)
        found = self._fitted.get((gpus, name))
        if found is None:
            reference = self._matrices[gpus].without(name, self.hide)
            model = None
            if len(reference.models) > 1:
                weight = np.where(reference.lift > 0, ALONE_WEIGHT, 1.0)
                model, _ = complete(
                    reference.values, reference.observed, reference.lift, weight, self.options, self.seed
                )
            found = self._fitted[gpus, name] = (reference, model)
        return found


class MatrixEstimator:
    """`profile` for the engine, `pair_kept` for space sharing, `observe` for what jobs report.

    A job's true speeds are consulted only in the cells that are profiled. `hide` removes the job's own model (or all
    batch sizes of it) from the reference jobs, so that nothing is known of it but its fingerprint; with `nothing`, a
    model of the catalogue finds itself among the references.
    """

    def __init__(
        self, catalogue: ThroughputCatalogue, profiled_fraction: float = DEFAULT_PROFILED_FRACTION, seed: int = 0, *,
        rule: Rule = "completed", hide: Hide = "model", references: ReferenceModels | None = None,
    ) -> None:  # fmt: skip
        if not 0.0 <= profiled_fraction <= 1.0:
            raise InputError(
                f"profiled fraction {profiled_fraction}", "a number from 0 to 1", column="profiled_fraction"
            )
        self.catalogue = catalogue
        self.profiled_fraction = profiled_fraction
        self.seed = seed
        self.rule: Rule = rule
        self.references = references or ReferenceModels(catalogue, hide)
        self._jobs: dict[JobId, _Known] = {}
        self._estimates: dict[JobId, Estimate] = {}

    # -- what the engine asks ------------------------------------------------------------------------

    def profile(self, spec: JobSpec, types: Sequence[str]) -> tuple[Floats, Floats]:
        """Steps per second by type, on one node and spread; 0 where the job says it cannot run.

        A type outside the catalogue keeps the speed that the job declares.
        """
        estimate = self.estimate(spec)
        at = {column: k for k, column in enumerate(estimate.columns)}
        here, spread = np.zeros(len(types)), np.zeros(len(types))
        for k, name in enumerate(types):
            declared = spec.steps_per_s.get(name, 0.0) if spec.steps_per_s else 1.0
            alone, apart = at.get(Column("alone", name.lower())), at.get(Column("spread", name.lower()))
            if declared <= 0.0 or alone is None:
                here[k] = declared
                spread[k] = spec.steps_per_s_spread.get(name, declared)
                continue
            here[k] = math.exp(estimate.values[alone])
            spread[k] = here[k] if apart is None else math.exp(estimate.values[apart])
        return here, spread

    def pair_kept(self, spec_a: JobSpec, spec_b: JobSpec, types: Sequence[str], _probability: float = 0.5) -> Floats:
        """(types, 2): estimated parts of their speeds that both keep on the same devices; 0, 0 if they do not fit.

        Each row knows what it keeps beside the reference most like the other, and what that one keeps; the two views
        are averaged.
        """
        out = np.zeros((len(types), 2))
        if _gpus(spec_a) != _gpus(spec_b):
            return out
        for k, name in enumerate(types):
            a_of_a, b_of_a, fits_a, tried_a = self._kept(spec_a, spec_b, name)
            b_of_b, a_of_b, fits_b, tried_b = self._kept(spec_b, spec_a, name)
            tried = tried_a or tried_b
            # False where either is NaN: nothing is known of pairs.
            if fits_a + fits_b >= 2.0 * (FITS_FROM if tried else SURELY_FITS_FROM):
                caution = 0.0 if tried else PAIR_SD
                out[k, 0] = min(1.0, math.exp((a_of_a + a_of_b) / 2.0 - caution))
                out[k, 1] = min(1.0, math.exp((b_of_a + b_of_b) / 2.0 - caution))
        return out

    def observe(self, measured: Measurement) -> News:
        """A measured speed of a job that was profiled, at its reference size; anything else is ignored."""
        spec, steps_per_s = measured.spec, measured.steps_per_s
        known, job_id = self._jobs.get(spec.id), spec.id
        other_size = (measured.workers, measured.servers) != (spec.workers_ref, spec.servers_ref)
        if known is None or not 0.0 < steps_per_s < math.inf or other_size or measured.beside is not None:
            return News.NONE
        column = Column("spread" if measured.spread and known.gpus > 1 else "alone", measured.accelerator.lower())
        average = known.speeds.get(column)
        if average is None:
            known.speeds[column] = _Average(math.log(steps_per_s), MEASURED_SD**2)
        else:
            average.add(math.log(steps_per_s))
        self._estimates.pop(job_id, None)
        return News.OF_THE_JOB

    def forget(self, job_id: JobId) -> None:
        """The job is over."""
        self._jobs.pop(job_id, None)
        self._estimates.pop(job_id, None)

    # -- how it is done ------------------------------------------------------------------------------

    def estimate(self, spec: JobSpec) -> Estimate:
        """The job's whole row, with what was measured of it so far."""
        found = self._estimates.get(spec.id)
        if found is not None:
            return found
        reference, model = self.references.of(_name(spec), _gpus(spec))
        known = self._jobs.get(spec.id)
        if known is None:
            known = self._jobs[spec.id] = self._fingerprint(spec, reference)
        found = self._estimates[spec.id] = self._complete(known, reference, model)
        return found

    def nearest_reference(self, spec: JobSpec) -> str | None:
        """The reference job whose row is closest to the fingerprint."""
        reference, model = self.references.of(_name(spec), _gpus(spec))
        if model is None:
            return None
        row = self.estimate(spec)
        return reference.models[_closest(reference, row.values, model)]

    def _fingerprint(self, spec: JobSpec, reference: ReferenceMatrix) -> _Known:
        """Run the job for a moment: on some types alone (at least one), and there beside some companions."""
        rng = np.random.Generator(np.random.PCG64([self.seed, _digest(spec.id)]))
        gpus, name = _gpus(spec), _name(spec)
        row = np.full(len(reference.columns), np.nan)
        runnable = [
            c.accelerator for c in reference.columns if c.kind == "alone" and _true_speed(spec, c.accelerator) > 0
        ]
        order = [runnable[k] for k in rng.permutation(len(runnable)).tolist()]
        types = set(order[: max(1, round(self.profiled_fraction * len(order)))])
        companions = sorted({c.companion for c in reference.columns if c.companion})
        cells = [(kind, companion) for kind in sorted(types) for companion in companions]
        shuffled = [cells[k] for k in rng.permutation(len(cells)).tolist()]
        pairs = set(shuffled[: round(self.profiled_fraction * len(cells))])
        for k, column in enumerate(reference.columns):
            if column.kind == "alone" and column.accelerator in types:
                row[k] = math.log(_true_speed(spec, column.accelerator))
            elif column.kind == "spread" and self.profiled_fraction >= 1.0 and column.accelerator in types:
                speed = spec.steps_per_s_spread.get(column.accelerator, 0.0)
                row[k] = math.log(speed) if speed > 0 else math.nan
            elif (column.accelerator, column.companion) in pairs:
                row[k] = measured(self.catalogue, name, gpus, column)
        return _Known(spec, gpus, row, ~np.isnan(row), {})

    def _complete(self, known: _Known, reference: ReferenceMatrix, model: LowRankModel | None) -> Estimate:
        row, seen = known.row.copy(), known.profiled.copy()
        sd = np.where(seen, 0.0, UNKNOWN_SD)
        for column, average in sorted(known.speeds.items(), key=lambda item: (item[0].kind, item[0].accelerator)):
            k = reference.index(column)
            if k is not None:
                row[k], seen[k], sd[k] = average.mean, True, math.sqrt(average.variance)
        if model is None:
            speeds = row[seen & (reference.lift > 0)]
            fallback = float(speeds.mean()) if len(speeds) else 0.0
            return Estimate(reference.columns, np.where(seen, row, fallback), seen, sd)
        filled = model.fold_in(np.where(seen, row, 0.0), seen)
        if self.rule == "nearest":
            filled = _copied(reference, filled, model)
            offset = np.where(seen & (reference.lift > 0), row - filled, np.nan)
            filled = filled + reference.lift * (float(np.nanmean(offset)) if not np.isnan(offset).all() else 0.0)
        sd = np.where(seen, sd, np.maximum(2.0 * model.residual_sd, MEASURED_SD))
        return Estimate(reference.columns, np.where(seen, row, filled), seen, sd)

    def _kept(self, spec: JobSpec, other: JobSpec, accelerator: str) -> tuple[float, float, float, bool]:
        """Log fractions of their speeds that the job and the other keep, and whether they fit, by the job's row; and
        whether this was tried, not completed."""
        estimate = self.estimate(spec)
        reference, _ = self.references.of(_name(spec), _gpus(spec))
        companion = _name(other)
        if companion not in reference.models:
            companion = self.nearest_reference(other) or ""
        kind = accelerator.lower()
        at = [reference.index(Column(what, kind, companion)) for what in ("own", "other", "fits")]
        own, others, fits = (math.nan if k is None else float(estimate.values[k]) for k in at)
        tried = companion == _name(other) and at[0] is not None and bool(estimate.profiled[at[0]])
        return own, others, fits, tried


def _closest(reference: ReferenceMatrix, row: Floats, model: LowRankModel) -> int:
    """Reference with the smallest weighted distance, the scale of speeds taken off."""
    lifted = reference.lift > 0
    weight = np.where(reference.observed, model.weight[None, :], 0.0)
    gap = np.where(reference.observed, reference.values - row[None, :], 0.0)
    count = np.maximum((reference.observed & lifted).sum(axis=1), 1)
    gap = gap - np.outer(np.where(lifted, gap, 0.0).sum(axis=1) / count, reference.lift)
    distance = (weight * np.where(reference.observed, gap, 0.0) ** 2).sum(axis=1) / np.maximum(
        weight.sum(axis=1), 1e-12
    )
    return int(np.argmin(distance))


def _copied(reference: ReferenceMatrix, row: Floats, model: LowRankModel) -> Floats:
    k = _closest(reference, row, model)
    return np.where(reference.observed[k], reference.values[k], row)


def _name(spec: JobSpec) -> str:
    return with_batch_size(spec.model, spec.batch_size)


def _gpus(spec: JobSpec) -> int:
    return max(1, round(spec.gpus))


def _true_speed(spec: JobSpec, accelerator: str) -> float:
    """What a profiling run on this type measures."""
    if not spec.steps_per_s:
        return 1.0
    return next((speed for name, speed in spec.steps_per_s.items() if name.lower() == accelerator), 0.0)


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")

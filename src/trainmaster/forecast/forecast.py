"""When each job will start and finish: many futures of one situation, summed up as bands.

Remaining times are positive and skewed, so a band is a quantile of a log-normal fitted to the futures: steadier
than the extremes of a dozen samples.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, median

import numpy as np

from trainmaster.engine.ports import Estimator
from trainmaster.forecast.rollout import Future, Opening
from trainmaster.forecast.situation import Situation
from trainmaster.model import event as ev
from trainmaster.model.job import Phase
from trainmaster.model.policy import Policy
from trainmaster.model.units import MS_PER_S

SEEDS_MIN, SEEDS_MAX = 5, 25
JOBS_ROLLED = 4_000
"""Jobs times futures that one forecast may cost."""
LONG_QUEUE, HORIZON = 800, 400
"""With more jobs than that, so many decisions of each future are rolled; what lies beyond them is estimated by how fast
the queue moves."""
LEAST_SPREAD = 0.02
"""Relative spread below which no forecast pretends to be: the backend has jitter of its own."""
LEAST_SPREAD_S = 1.0
_DEVIATIONS = tuple(NormalDist().inv_cdf(probability) for probability in (0.05, 0.5, 0.9, 0.95))
"""Of the fields of a band, in their order."""


@dataclass(frozen=True, slots=True)
class Band:
    """Seconds from now. The central 90 % are between `p05_s` and `p95_s`."""

    p05_s: float
    p50_s: float
    p90_s: float
    p95_s: float

    def widened(self, factor: float) -> Band:
        """The same middle; the rest so many times as far from it, in the logarithm."""
        middle = self.p50_s
        if factor == 1.0 or middle <= 0.0:
            return self
        return Band(
            *(middle * (max(at_s, 1e-3) / middle) ** factor for at_s in (self.p05_s, middle, self.p90_s, self.p95_s))
        )

    def contains(self, seconds: float) -> bool:
        return self.p05_s <= seconds <= self.p95_s


@dataclass(frozen=True, slots=True)
class Outlook:
    """`start` is None for what has started; both are None for what no future sees the end of. `ends_as` is how
    most futures end it; `known` is False when the amount of work or the speed is a guess without any history;
    `basis`: the jobs that it rests on, in words, where it is not the job's own word."""

    start: Band | None
    finish: Band | None
    ends_as: str
    known: bool
    basis: str = ""
    limit: str = ""
    """Where most futures stop it, as its user gave it: `--time 60 s`."""


def note(outlook: Outlook) -> str:
    """What a predicted finish rests on, or why there is none, for people."""
    if not outlook.known:
        stops = f"; stopped at the latest by {outlook.limit}" if outlook.limit else ""
        return f"unknown until it reports, or a job like it has finished{stops}"
    if outlook.limit:
        return f"stopped at its limit {outlook.limit}"
    return f"by {outlook.basis}" if outlook.basis else ""


def widened(outlook: Outlook, factor: float) -> Outlook:
    """Both bands wider: see `AccuracyBook.widening`."""
    start, finish = outlook.start, outlook.finish
    return replace(
        outlook,
        start=None if start is None else start.widened(factor),
        finish=None if finish is None else finish.widened(factor),
    )


def futures_of(situation: Situation) -> int:
    """How many futures are affordable."""
    return max(SEEDS_MIN, min(SEEDS_MAX, JOBS_ROLLED // max(len(situation.stored_state.jobs), 1)))


def forecast(
    situation: Situation,
    seeds: int | None = None,
    events: tuple[ev.Event, ...] = (),
    policy: Policy | None = None,
    estimator: Estimator | None = None,
) -> dict[str, Outlook]:
    """An outlook for every active job, and for those that `events` submit."""
    count = futures_of(situation) if seeds is None else seeds
    horizon = HORIZON if len(situation.stored_state.jobs) > LONG_QUEUE else None
    opening = Opening(situation, events, policy, estimator)
    return outlooks(situation, [opening.roll(seed, horizon) for seed in range(count)])


def outlooks(situation: Situation, futures: Sequence[Future]) -> dict[str, Outlook]:
    beyond = {job_id for future in futures for job_id in future.expected}
    ids = sorted({*situation.stored_state.jobs, *beyond, *(end.spec.id for future in futures for end in future.ended)})
    starts: dict[str, list[float]] = {job_id: [] for job_id in ids}
    finishes: dict[str, list[float]] = {job_id: [] for job_id in ids}
    phases: dict[str, list[Phase]] = {job_id: [] for job_id in ids}
    declared: dict[str, bool] = {}
    halted = Counter((job_id, limit) for future in futures for job_id, limit in future.halted.items())
    stopped_at = {job_id: limit for (job_id, limit), count in halted.items() if 2 * count > len(futures)}
    for future in futures:
        for job_id, at_ms in future.started_ms.items():
            starts[job_id].append((at_ms - future.now_ms) / MS_PER_S)
        for end in future.ended:
            phases[end.spec.id].append(end.phase)
            declared[end.spec.id] = end.spec.work_total is not None
            if end.phase == Phase.FINISHED or end.spec.id in future.halted:
                finishes[end.spec.id].append((end.ended_ms - future.now_ms) / MS_PER_S)
        for job_id, (start_ms, end_ms, known) in future.expected.items():
            phases[job_id].append(Phase.FINISHED)
            declared[job_id] = known
            finishes[job_id].append((end_ms - future.now_ms) / MS_PER_S)
            if start_ms is not None and job_id not in future.started_ms:
                starts[job_id].append((start_ms - future.now_ms) / MS_PER_S)
    result = {}
    for job_id in ids:
        has_started = (
            job_id in situation.stored_state.jobs and situation.stored_state.jobs[job_id]["ints"]["first_start_ms"] >= 0
        )
        ends, belief = phases[job_id], situation.belief(job_id)
        common = max(sorted(set(ends)), key=ends.count) if ends else None
        enough = 2 * len(finishes[job_id]) > len(futures)
        result[job_id] = Outlook(
            start=None if has_started or 2 * len(starts[job_id]) <= len(futures) else band(starts[job_id]),
            finish=band(finishes[job_id]) if enough else None,
            ends_as="" if common is None else common.name.lower(),
            known=belief.known and (declared.get(job_id, False) or belief.work is not None),
            basis=belief.basis,
            limit=stopped_at.get(job_id, ""),
        )
    return result


def band(samples_s: Sequence[float]) -> Band:
    """Quantiles of the log-normal through the samples' logarithms. Plain Python: a handful of samples for each of many
    jobs, for which arrays are slow."""
    values = [max(value, 0.0) for value in samples_s]
    middle = median(values)
    floor_s = max(LEAST_SPREAD * middle, LEAST_SPREAD_S) / 1.645
    if middle <= 0.0:
        high = float(np.quantile(values, 0.95))
        return Band(0.0, 0.0, max(high, floor_s * 1.28), max(high, floor_s * 1.645))
    logs = [math.log(max(value, 1e-3 * middle)) for value in values]
    mean = math.fsum(logs) / len(logs)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in logs) / (len(logs) - 1)) if len(logs) > 1 else 0.0
    sigma = math.hypot(spread, floor_s / (middle + floor_s))
    return Band(*(middle * math.exp(deviations * sigma) for deviations in _DEVIATIONS))

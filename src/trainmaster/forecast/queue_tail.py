"""What lies beyond the part of a future that is rolled: a long queue is not simulated to its end.

Jobs that run at the horizon end as they would if nothing more were started. Jobs that still wait follow by priority
and arrival, as fast as the cluster works off GPU time at the horizon: the k-th starts when what is before it in
the queue has been given its GPU time. Policies that sort the queue have taken what they prefer before the horizon.
"""

from __future__ import annotations

import math
from collections.abc import Set
from typing import NamedTuple

import numpy as np

from trainmaster.core.arrays import Floats
from trainmaster.engine import queries
from trainmaster.engine.engine import Engine
from trainmaster.forecast.situation import UNKNOWN_WORK, Situation
from trainmaster.model import event as ev
from trainmaster.model.job import JobId
from trainmaster.model.units import MS_PER_S, NEVER_MS
from trainmaster.sim.drive import Drive

STREAM = 1
"""Tells the draws beyond the horizon from those of each job before it."""


class Span(NamedTuple):
    """When a job starts (None: it runs already) and ends; `declared`: it has said how much work it has."""

    start_ms: int | None
    end_ms: int
    declared: bool


def expected(situation: Situation, drive: Drive, about: Set[JobId], seed: int) -> dict[str, Span]:
    """Start and end of every job of `about` that can be expected to end."""
    spans = _waiting(situation, drive.engine, seed, drive.backend.now_ms)
    spans.update(_running(drive))
    return {job_id: span for job_id, span in spans.items() if job_id in about}


def _running(drive: Drive) -> dict[str, Span]:
    """Let the world go on without the engine until everything has ended that runs."""
    backend, reports = drive.backend, drive.backend.core.reports
    declared = {spec.id: spec.work_total is not None for spec in drive.jobs}
    spans: dict[str, Span] = {}
    begun_ms: dict[str, int] = {}
    left = set(backend.running)
    while left and backend.next_ms < NEVER_MS // 4:
        backend.core.advance_rows(backend.next_ms)
        arrived = [drive.report(k) for k in range(reports.n)]
        reports.clear()
        for event in arrived:
            if isinstance(event, ev.Started):
                begun_ms[event.job_id] = backend.now_ms
            elif isinstance(event, ev.Exited | ev.Stopped | ev.JobHalted):
                if event.job_id not in left:
                    continue
                left.discard(event.job_id)
                if isinstance(event, ev.JobHalted) or (isinstance(event, ev.Exited) and event.code == 0):
                    spans[event.job_id] = Span(begun_ms.get(event.job_id), backend.now_ms, declared[event.job_id])
    return spans


def _waiting(situation: Situation, engine: Engine, seed: int, horizon_ms: int) -> dict[str, Span]:
    jobs = queries.waiting_jobs(engine)
    if not jobs.ids:
        return {}
    speeds = _newer_speeds(situation, jobs.ids, jobs.speeds)
    work = _work(situation, jobs.ids, jobs.work_total, _or_one(speeds.max(axis=1)), seed)
    limit_s = [getattr(queries.spec_of(engine, job_id), "time_s", None) or math.inf for job_id in jobs.ids]
    left_s = np.maximum(work - jobs.work_done, 0.0) / _mean_speed(situation, speeds)
    left_ms = np.minimum(left_s, limit_s) * MS_PER_S
    n_gpus = sum(node.gpus for node in situation.cluster.nodes)
    capacity_milli = queries.held_gpu_milli(engine) or max(n_gpus * 1000, 1)
    given = left_ms * jobs.demand_milli
    start_ms = horizon_ms + (np.cumsum(given) - given) / capacity_milli
    end_ms = start_ms + situation.costs.launch_ms + left_ms
    declared = ~np.isnan(jobs.work_total)
    return {
        job_id: Span(round(start), round(end), known)
        for job_id, start, end, known in zip(
            jobs.ids, start_ms.tolist(), end_ms.tolist(), declared.tolist(), strict=True
        )
    }


def _newer_speeds(situation: Situation, ids: list[JobId], speeds: Floats) -> Floats:
    """With what has been learned since the engine asked."""
    found = speeds.copy()
    for row, job_id in enumerate(ids):
        newer = situation.belief(job_id).speeds
        if newer is not None:
            found[row] = np.where(speeds[row] > 0, newer[: speeds.shape[1]], 0.0)
    return found


def _mean_speed(situation: Situation, speeds: Floats) -> Floats:
    """On the types that each job accepts, by how many GPUs there are of them."""
    types = situation.cluster.types
    n_gpus = np.zeros(len(types))
    for node in situation.cluster.nodes:
        n_gpus[types.index(node.accelerator)] += node.gpus
    accepted = (speeds > 0) * n_gpus
    return _or_one((speeds * accepted).sum(axis=1) / np.maximum(accepted.sum(axis=1), 1e-9))


def _or_one(speeds: Floats) -> Floats:
    """Nothing is known of a job that is as fast as nothing."""
    return np.where(speeds > 0, speeds, 1.0)


def _work(situation: Situation, ids: list[JobId], total: Floats, speed: Floats, seed: int) -> Floats:
    """The amount of each in this future; the speed's own spread is drawn into it."""
    rng = np.random.Generator(np.random.PCG64([seed, STREAM]))
    luck = rng.normal(size=(2, len(ids))) if seed else np.zeros((2, len(ids)))
    beliefs = [situation.belief(job_id) for job_id in ids]
    guessed = [
        (UNKNOWN_WORK[0] * fastest, UNKNOWN_WORK[1]) if belief.work is None else belief.work
        for belief, fastest in zip(beliefs, speed.tolist(), strict=True)
    ]
    middle = np.log([max(median, 1e-9) for median, _ in guessed])
    wide = np.array([spread for _, spread in guessed])
    drawn = np.where(np.isnan(total), np.exp(middle + wide * luck[0]), total)
    return drawn * np.exp(-luck[1] * np.array([belief.sigma for belief in beliefs]))

"""Predicted finish of the jobs of a snapshot: exact figures, and the band's coverage in noisy worlds."""

from __future__ import annotations

import numpy as np
import pytest

from trainmaster.engine.engine import Engine, Settings
from trainmaster.estimate.completion import DECLARED_SIGMA, MEASURED_SIGMA
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.estimate.finish import predict_all, predict_finish
from trainmaster.model import event as ev
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.job import JobId, JobSpec
from trainmaster.model.scaling import LINEAR
from trainmaster.policies.registry import create

STEPS = 1000.0


def started(specs: list[JobSpec], gpus: int) -> Engine:
    engine = Engine(parse_cluster(f"gpu={gpus}"), create("fifo:backfill=true"), DeclaredSpeeds(), Settings())
    commands = engine.step(0, *[ev.JobSubmitted(spec) for spec in specs])
    engine.step(0, *[ev.Started(c.job_id, c.generation, 0.0, 0) for c in commands])  # type: ignore[attr-defined]
    return engine


def test_running_waiting_and_unknown() -> None:
    specs = [
        JobSpec(JobId("runs"), workers_min=2, workers_max=2, workers_ref=1, work_total=STEPS, scaling=LINEAR),
        JobSpec(JobId("waits"), work_total=STEPS, steps_per_s={"gpu": 2.0}),
        JobSpec(JobId("open"), work_total=None),
    ]
    view = started(specs, 2).snapshot()
    runs, waits = predict_finish(view, 0), predict_finish(view, 1, starts_in_ms=60_000)
    assert runs is not None
    assert runs.p50_ms == pytest.approx(500_000, abs=2)
    assert runs.p10_ms < runs.p50_ms < runs.p90_ms
    assert waits is not None
    assert waits.p50_ms == pytest.approx(560_000, abs=2)
    assert predict_finish(view, 2) is None
    assert sorted(predict_all(view)) == ["runs", "waits"]


def test_the_band_covers_what_it_says() -> None:
    """True speeds deviate as declared speeds are assumed to; measured ones as measurements are."""
    rng = np.random.Generator(np.random.PCG64(3))
    n = 400
    engine = started([JobSpec(JobId(f"j{i:03d}"), work_total=STEPS) for i in range(n)], n)
    truth = np.exp(rng.normal(0.0, DECLARED_SIGMA, n))
    finish_ms = STEPS * 1000.0 / truth
    before = predict_all(engine.snapshot())
    inside = [before[f"j{i:03d}"].p10_ms <= finish_ms[i] <= before[f"j{i:03d}"].p90_ms for i in range(n)]
    assert 0.74 <= np.mean(inside) <= 0.86
    assert 0.84 <= np.mean([finish_ms[i] <= before[f"j{i:03d}"].p90_ms for i in range(n)]) <= 0.95
    # After 100 s each says how fast it was, with the error of a measurement.
    measured = truth * np.exp(rng.normal(0.0, MEASURED_SIGMA, n))
    generations = engine.columns.ints["generation"]
    reports = [
        ev.Progressed(JobId(f"j{i:03d}"), int(generations[engine.columns.job_index_of[JobId(f"j{i:03d}")]]),
                      float(truth[i] * 100.0), 100_000, float(measured[i]))
        for i in range(n)
    ]  # fmt: skip
    engine.step(100_000, *reports)
    after = predict_all(engine.snapshot())
    inside = [after[f"j{i:03d}"].p10_ms <= finish_ms[i] <= after[f"j{i:03d}"].p90_ms for i in range(n)]
    assert 0.72 <= np.mean(inside) <= 0.9
    width = [(e.p90_ms - e.p10_ms) / e.p50_ms for e in (before["j000"], after["j000"])]
    assert width[1] < width[0] / 2

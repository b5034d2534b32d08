"""What jobs measure reaches the columns that policies read, at the size at which it was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainmaster.engine.engine import Engine, Settings
from trainmaster.engine.fork import fork
from trainmaster.engine.persistence import restore, stored_state_of
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.estimate.speeds.knowledge import Knowledge
from trainmaster.estimate.speeds.learned import LearningEstimator
from trainmaster.estimate.speeds.observations import Place
from trainmaster.model import event as ev
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.command import Launch
from trainmaster.model.job import JobId, JobSpec
from trainmaster.policies.registry import create
from trainmaster.testing.builders import a_view

CLUSTER = parse_cluster("v100=8x4")
GANG = JobSpec(JobId("job-1"), model="resnet", batch_size=32, workers_min=2, workers_max=2, workers_ref=2)
ELASTIC = replace(GANG, id=JobId("job-2"), workers_min=1, workers_max=8, workers_ref=8, work_total=1e6)


def an_engine(*specs: JobSpec, known: Knowledge | None = None) -> Engine:
    estimator = LearningEstimator(DeclaredSpeeds(), knowledge=known)
    engine = Engine(CLUSTER, create("fifo"), estimator, Settings())
    for command in engine.step(0, *(ev.JobSubmitted(spec) for spec in specs)):
        if isinstance(command, Launch):
            engine.step(1_000, ev.Started(command.job_id, 1, 0.0, 1_000))
    return engine


def known_of(engine: Engine) -> Knowledge:
    estimator = engine.estimator
    assert isinstance(estimator, LearningEstimator)
    return estimator.knowledge


def is_known(engine: Engine, row: int) -> bool:
    belief = engine.snapshot().jobs.belief(row)
    return belief is not None and belief.known


def report(engine: Engine, rate: float, at_ms: int, job: str = "job-1") -> None:
    engine.step(at_ms, ev.Progressed(JobId(job), 1, rate * at_ms / 1000, at_ms, rate))


def test_a_measurement_is_kept_at_the_size_that_the_job_had_and_serves_jobs_alike() -> None:
    engine = an_engine(GANG, ELASTIC)
    view = engine.snapshot()
    assert not is_known(engine, 1)
    version = view.jobs.belief_version[1]
    report(engine, 20.0, 31_000)
    (seen,) = known_of(engine)
    assert seen.place == Place(2, 0, False, "v100") and seen.seconds == 30.0
    jobs = engine.snapshot().jobs
    assert is_known(engine, 1)
    assert jobs.belief_version[1] != version and version != 0
    assert jobs.speed_at(1, 0, 2) == pytest.approx(20.0, rel=1e-3)
    assert jobs.rate_at(1, 0, 2) == jobs.speed_at(1, 0, 2)
    assert 10.0 <= jobs.speed_at(1, 0, 1) < 20.0 < jobs.speed_at(1, 0, 4) < 40.0
    assert jobs.throughput[1, 0] == pytest.approx(jobs.speed_at(1, 0, 8))
    scaling = jobs.scaling(1)
    for workers in (1, 2, 4, 8):
        relative = float(scaling.speed(workers) / scaling.speed(8))
        assert jobs.throughput[1, 0] * relative == pytest.approx(jobs.speed_at(1, 0, workers))


def test_levels_and_percentiles() -> None:
    engine = an_engine(GANG, ELASTIC)
    report(engine, 20.0, 31_000)
    jobs = engine.snapshot().jobs
    assert jobs.speed_at(1, 0, 4, spread=True) < jobs.speed_at(1, 0, 4)
    assert jobs.speed_at(1, 0, 8) == jobs.speed_at(1, 0, 8, spread=True), "no node has eight"
    cautious = [jobs.speed_at(1, 0, workers, probability=0.9) / jobs.speed_at(1, 0, workers) for workers in (2, 8)]
    assert cautious[1] < cautious[0] < 1.0, "what was measured is surer than what lies across nodes"


def test_a_short_measurement_is_the_jobs_own_and_does_not_serve_others() -> None:
    engine = an_engine(GANG, ELASTIC)
    report(engine, 20.0, 4_000)
    assert not list(known_of(engine))
    assert engine.snapshot().jobs.throughput[0, 0] == pytest.approx(20.0, rel=1e-3)
    assert not is_known(engine, 1)


def test_a_restored_engine_and_a_fork_believe_the_same() -> None:
    engine = an_engine(GANG, ELASTIC)
    report(engine, 20.0, 31_000)
    known = Knowledge.from_json(known_of(engine).to_json())
    estimator = LearningEstimator(DeclaredSpeeds(), knowledge=known)
    again = restore(stored_state_of(engine), CLUSTER, engine.policy, estimator, engine.settings)
    for other in (again, fork(engine, 2)):
        for row in (0, 1):
            mine, theirs = engine.snapshot().jobs, other.snapshot().jobs
            assert theirs.speed_at(row, 0, 4) == pytest.approx(mine.speed_at(row, 0, 4), rel=1e-3)


def test_without_learning_speeds_are_exact_at_every_percentile() -> None:
    jobs = a_view([replace(ELASTIC, steps_per_s={"v100": 8.0})], "v100=8x4").jobs
    assert jobs.belief(0) is None and jobs.belief_version[0] == 0
    assert jobs.speed_at(0, 0, 4, probability=0.9) == jobs.rate_at(0, 0, 4) == 4.0

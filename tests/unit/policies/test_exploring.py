"""A try of a size across nodes: made once where it can pay, at its true cost, and not where it cannot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainmaster.engine.engine import Settings
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.estimate.speeds.learned import LearningEstimator
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.job import JobId, JobSpec
from trainmaster.model.scaling import Scaling
from trainmaster.policies.registry import create
from trainmaster.sim.run import RunResult, simulate
from trainmaster.sim.truth import TruthOptions

GOOD = Scaling(points=((1, 1.0), (2, 1.95), (4, 3.8), (8, 7.0)))
BAD = Scaling(points=((1, 1.0), (2, 1.95), (4, 3.8), (8, 2.0)))
TRUTH = TruthOptions(restart_cost_ms=30_000, resize_cost_ms=30_000, report_ms=30_000, report_period_ms=30_000)


def job(name: str, curve: Scaling, hours: float = 2.0, **more: object) -> JobSpec:
    """`hours`: on four workers."""
    work = 3600.0 * hours * float(curve.speed(4)) * 10.0
    spec = JobSpec(JobId(name), model="m", workers_max=8, scaling=curve, steps_per_s={"gpu": 10.0}, work_total=work)
    return replace(spec, **more)


def run(specs: list[JobSpec], policy: str = "optimus", cluster: str = "gpu=16x4") -> tuple[RunResult, list[int]]:
    """The result, and the sizes at which a speed across nodes was measured."""
    estimator = LearningEstimator(DeclaredSpeeds(), declared=False)
    result = simulate(specs, parse_cluster(cluster), create(policy), Settings(), TRUTH, estimator)
    return result, sorted(one.place.workers for one in estimator.knowledge if one.place.across)


def test_a_job_that_scales_across_nodes_is_found_out_and_keeps_the_size() -> None:
    result, across = run([job("a", GOOD)])
    assert 8 in across
    without, none = run([job("a", GOOD)], "optimus:explore=false")
    assert none == []
    assert result.end_ms < 0.65 * without.end_ms


def test_a_try_that_does_not_pay_costs_two_resizes_and_little_time() -> None:
    result, across = run([job("a", BAD)])
    without, _ = run([job("a", BAD)], "optimus:explore=false")
    assert across == [8]
    lost_s = (result.end_ms - without.end_ms) / 1000
    assert 2 * 30 <= lost_s < 200, "a real cost, and one try alone"


def test_the_next_job_of_the_profile_tries_nothing() -> None:
    specs = [job("a", BAD), job("b", BAD, submit_ms=10_000_000)]
    result, _ = run(specs)
    b = next(end for end in result.ended if end.spec.id == "b")
    alone, _ = run([job("b", BAD)], "optimus:explore=false")
    assert b.ended_ms - 10_000_000 < alone.end_ms + 1_000, "it knows the whole curve, and resizes no more than without"


@pytest.mark.parametrize(
    ("specs", "cluster"),
    [
        ([job("short", GOOD, hours=0.1)], "gpu=16x4"),
        ([job("a", GOOD)], "gpu=4x4"),
        ([job("a", GOOD, workers_max=4)], "gpu=16x4"),
        ([job("a", GOOD), job("rigid", GOOD, workers_min=4, workers_max=4, workers_ref=4, model="r")], "gpu=8x4"),
    ],
    ids=["little work left", "no node is idle", "it may not grow so far", "less than enough is idle"],
)
def test_no_try_where_it_cannot_pay(specs: list[JobSpec], cluster: str) -> None:
    assert run(specs, cluster=cluster)[1] == []


def test_declared_speeds_leave_nothing_to_try() -> None:
    plain = simulate([job("a", BAD)], parse_cluster("gpu=16x4"), create("optimus"), Settings(), TRUTH)
    without = simulate([job("a", BAD)], parse_cluster("gpu=16x4"), create("optimus:explore=false"), Settings(), TRUTH)
    assert plain.end_ms == without.end_ms

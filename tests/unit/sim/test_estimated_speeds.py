"""A simulation whose policy sees estimates: the truth still decides, and what jobs measure reaches the
policy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from trainmaster.engine.engine import Settings
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.estimate.speeds.learned import LearningEstimator
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.errors import InputError
from trainmaster.model.job import JobId, JobSpec
from trainmaster.model.scaling import Measurement, News, Scaling
from trainmaster.policies.registry import create
from trainmaster.sim.experiment import Experiment, prepare
from trainmaster.sim.run import simulate
from trainmaster.sim.truth import TruthOptions

CLUSTER = parse_cluster("fast=1,slow=1")


@dataclass
class Wrong:
    """Believes that every job is as fast on either type, until it hears otherwise."""

    believed: dict[tuple[str, str], float] = field(default_factory=dict)
    heard: list[tuple[str, str, float, bool]] = field(default_factory=list)

    def profile(self, spec: JobSpec, types: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        speeds = np.array([self.believed.get((spec.id, kind), 2.0) for kind in types])
        return speeds, speeds

    def observe(self, measured: Measurement) -> News:
        self.heard.append((measured.spec.id, measured.accelerator, measured.steps_per_s, measured.spread))
        self.believed[measured.spec.id, measured.accelerator] = measured.steps_per_s
        return News.OF_THE_JOB


def jobs() -> list[JobSpec]:
    return [JobSpec(id=JobId(f"j{k}"), work_total=40_000.0, steps_per_s={"fast": 10.0, "slow": 1.0}) for k in range(3)]


def test_what_jobs_measure_reaches_the_estimator() -> None:
    estimator = Wrong()
    settings = Settings(round_ms=360_000)
    simulate(jobs(), CLUSTER, create("gavel-max-min"), settings, TruthOptions(report_ms=60_000), estimator)
    assert {(kind, speed) for _, kind, speed, _ in estimator.heard} == {("fast", 10.0), ("slow", 1.0)}
    assert not any(spread for *_, spread in estimator.heard)


def test_nobody_reports_unless_asked() -> None:
    estimator = Wrong()
    simulate(jobs(), CLUSTER, create("gavel-max-min"), Settings(round_ms=360_000), None, estimator)
    assert estimator.heard == []


def test_wrong_beliefs_cost_time_and_the_truth_decides() -> None:
    spec = [JobSpec(id=JobId("j"), work_total=1000.0, steps_per_s={"fast": 10.0, "slow": 1.0})]

    class Reversed(Wrong):
        def profile(self, spec: JobSpec, types: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
            speeds = np.array([1.0 if kind == "fast" else 10.0 for kind in types])
            return speeds, speeds

    right = simulate(spec, CLUSTER, create("gavel-max-min"), Settings(round_ms=360_000))
    wrong = simulate(spec, CLUSTER, create("gavel-max-min"), Settings(round_ms=360_000), None, Reversed())
    assert right.ended[0].ended_ms == pytest.approx(100_000, abs=2)
    assert wrong.ended[0].ended_ms >= 900_000


@pytest.mark.parametrize("estimates", ["guess", "fingerprint:2", "fingerprint:x", "fingerprint:nan", "oracle:1", ""])
def test_unknown_estimates_are_refused(estimates: str, tmp_path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("job_id,submit_s,gpus,duration_s\na,0,1,10\n")
    with pytest.raises(InputError, match="estimates"):
        prepare(Experiment(str(trace), "fifo", "v100=1", throughputs="builtin", estimates=estimates))


def test_fingerprints_need_references(tmp_path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("job_id,submit_s,gpus,duration_s\na,0,1,10\n")
    with pytest.raises(InputError, match="reference jobs"):
        prepare(Experiment(str(trace), "fifo", "v100=1", estimates="fingerprint"))


def test_learned_speeds_come_from_what_jobs_measure_and_not_from_what_they_say() -> None:
    curve = Scaling(points=((1, 1.0), (2, 1.9), (4, 3.4), (8, 2.0)))

    def job(k: int, workers_max: int) -> JobSpec:
        return JobSpec(
            JobId(f"j{k}"), k * 4_000_000, model="m", workers_max=workers_max, workers_ref=workers_max,
            scaling=curve, steps_per_s={"gpu": float(curve.speed(workers_max)) * 50}, work_total=100_000.0,
        )  # fmt: skip

    estimator = LearningEstimator(DeclaredSpeeds(), declared=False)
    specs = [job(0, 1), job(1, 4), job(2, 8)]
    before = estimator.table(specs[1], parse_cluster("gpu=16x4"))
    assert not before.known
    truth = TruthOptions(report_ms=60_000, report_period_ms=60_000)
    simulate(specs, parse_cluster("gpu=16x4"), create("optimus"), Settings(), truth, estimator)
    seen = {one.place[:3]: math.exp(one.log_speed) for one in estimator.knowledge}
    assert seen[1, 0, False] == pytest.approx(50.0) and (4, 0, False) in seen
    assert seen[4, 0, False] == pytest.approx(170.0), "at the size that it had"
    assert all(workers <= 4 for workers, _, _ in seen) or seen[8, 0, True] == pytest.approx(100.0)

"""Shares follow speeds that are measured while the jobs stay the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from trainmaster.model.cluster import parse_cluster
from trainmaster.model.job import JobId, JobSpec
from trainmaster.model.scaling import Measurement, News
from trainmaster.policies.gavel.policy import RoundPolicy
from trainmaster.policies.gavel.problem import AllocationProblem, AllocationResult
from trainmaster.policies.registry import create
from trainmaster.sim.run import simulate
from trainmaster.sim.truth import TruthOptions

TRUE = {"v100": 4.0, "k80": 1.0}


class Learning:
    """Believes that all types are alike until a job has measured one."""

    def __init__(self) -> None:
        self.measured: dict[tuple[str, str], float] = {}

    def profile(self, spec: JobSpec, types: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        speeds = np.array([self.measured.get((spec.id, kind), 1.0) for kind in types])
        return speeds, speeds

    def observe(self, measurement: Measurement) -> News:
        self.measured[measurement.spec.id, measurement.accelerator] = measurement.steps_per_s
        return News.OF_THE_JOB


@pytest.mark.parametrize(
    ("mechanism", "report_ms", "more_than_once"),
    [("backfill", 60_000, True), ("backfill", 0, False), ("original", 60_000, False)],
)
def test_shares_are_computed_anew_when_speeds_are_measured(
    mechanism: str, report_ms: int, more_than_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[int] = []
    plain = RoundPolicy.allocation

    def counted(policy: RoundPolicy, problem: AllocationProblem) -> AllocationResult:
        computed.append(problem.job_count)
        return plain(policy, problem)

    monkeypatch.setattr(RoundPolicy, "allocation", counted)
    jobs = [JobSpec(JobId(f"j{k}"), 0, work_total=40_000.0, steps_per_s=TRUE) for k in range(4)]
    policy = create(f"gavel-max-min:mechanism={mechanism}")
    truth = TruthOptions(report_ms=report_ms)
    simulate(jobs, parse_cluster("v100=1x1,k80=1x1"), policy, truth=truth, estimator=Learning())
    with_all = computed.count(4)
    assert (with_all > 1) == more_than_once

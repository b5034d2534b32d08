"""A gang larger than any node of a type is valued there at its spread speed."""

from __future__ import annotations

import pytest

from trainmaster.engine.engine import Settings
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.job import JobId, JobSpec
from trainmaster.model.placement import Strategy
from trainmaster.policies.registry import create
from trainmaster.sim.run import simulate


def gang() -> JobSpec:
    """On one node `fast` is better; spread, `slow` on one node is better."""
    return JobSpec(
        id=JobId("gang"), workers_min=4, workers_max=4, workers_ref=4, work_total=1000.0,
        steps_per_s={"fast": 10.0, "slow": 5.0}, steps_per_s_spread={"fast": 1.0, "slow": 1.0},
    )  # fmt: skip


@pytest.mark.parametrize(("nodes", "expected_s"), [("fast=4x4,slow=4x4", 100), ("fast=4x2,slow=4x4", 200)])
def test_allocation_counts_with_the_speed_it_will_get(nodes: str, expected_s: float) -> None:
    settings = Settings(round_ms=360_000, placement=Strategy.PACK)
    result = simulate([gang()], parse_cluster(nodes), create("gavel-max-min"), settings)
    assert result.ended[0].ended_ms / 1000 == pytest.approx(expected_s, abs=0.01)

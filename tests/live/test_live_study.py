"""The live study in small: elastic PyTorch jobs that a policy grows and shrinks, a node that fails, and their twin."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.live_study.__main__ import FAILS, NODES, POLICIES
from support.live_study.live import finished, miscounted, run
from support.live_study.twin import compared, measured_speeds, twin_of
from support.live_study.workload import SAMPLES, draw
from trainmaster.estimate.prices import PRICE_PER_GPU_HOUR
from trainmaster.model.cluster import parse_cluster


@pytest.mark.slow
def test_real_elastic_jobs_fare_as_simulated(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    policy, round_s = POLICIES["deadline"]
    jobs = draw(5, seed=2, minutes=0.15, seconds_alone=(8.0, 16.0))
    assert {job.way for job in jobs} == {"parallel", "server"} and {job.elastic for job in jobs} == {True, False}
    found = run(tmp_path, jobs, NODES, policy, round_s, (*FAILS[:2], 15.0), patience_s=240.0)
    assert miscounted(tmp_path, finished(jobs, found)) == [], "each sample once an epoch, each gradient once"
    cluster = parse_cluster(NODES, PRICE_PER_GPU_HOUR)
    twin = twin_of(jobs, found, policy, cluster, round_s, measured_speeds(jobs, [found]))
    agreement = compared(found, twin, [])
    assert agreement.otherwise == ()
    assert agreement.resizes > 0, "the policy changed sizes"
    assert 0.5 < agreement.ratio < 2.0, f"{agreement}: make live-study is the measurement; here other tests run beside"


def test_a_sample_that_is_used_twice_is_seen(tmp_path: Path) -> None:
    jobs = draw(1, seed=1, minutes=0.1)
    counts = np.full(SAMPLES, 5.0)
    np.savez(tmp_path / f"{jobs[0].name}.npz", counts=counts, expected=5.0)
    assert miscounted(tmp_path, jobs) == []
    counts[7] += 1.0
    np.savez(tmp_path / f"{jobs[0].name}.npz", counts=counts, expected=5.0)
    assert len(miscounted(tmp_path, jobs)) == 1

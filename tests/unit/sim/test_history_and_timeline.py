"""Who held which device, and means over time: against the run's own accounts."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from trainmaster.sim.experiment import Experiment, prepare, run
from trainmaster.sim.timeline import binned


@pytest.mark.parametrize("policy", ["fifo", "srtf", "las:quantum_s=600"])
def test_holdings_never_overlap_and_add_up_to_the_service(policy: str) -> None:
    wanted = Experiment("demo", policy, "v100=16x4,k80=16x4", throughputs="builtin", restart_cost_s=30.0)
    outcome = run(prepare(wanted), record_timeline=True, record_history=True)
    assert outcome.result.history is not None
    held = outcome.result.history.table(outcome.result.end_ms)
    lanes = held.explode("devices").sort("node", "devices", "start_s")
    same = (lanes["node"] == lanes["node"].shift()) & (lanes["devices"] == lanes["devices"].shift())
    overlap = same & (lanes["start_s"] < lanes["end_s"].shift())
    assert not overlap.fill_null(False).any()
    by_job = held.group_by("job_id").agg(
        ((pl.col("end_s") - pl.col("start_s")) * pl.col("devices").list.len()).sum().alias("held")
    )
    both = outcome.jobs.join(by_job, on="job_id")
    assert both.height == outcome.jobs.height
    assert np.allclose(both["held"], both["service_gpu_s"], rtol=1e-9, atol=0.01)
    table = binned(outcome.result.timeline, 0.0, 500.0)
    total = float(table["gpus_in_use"].sum()) * 500.0
    assert total == pytest.approx(float(by_job["held"].sum()), rel=1e-9)


def test_nothing_is_recorded_unless_asked_for() -> None:
    outcome = run(prepare(Experiment("demo", "fifo", "gpu=32")))
    assert outcome.result.history is None
    assert outcome.result.timeline == []


def test_intervals_are_time_weighted_means() -> None:
    table = binned([(0, 4.0, 1, 2), (1000, 8.0, 2, 0), (3000, 0.0, 0, 0)], 0.0, 2.0)
    assert table["time_s"].to_list() == [0.0, 2.0]
    assert table["gpus_in_use"].to_list() == [6.0, 4.0]
    assert table["waiting"].to_list() == [1.0, 0.0]

"""Mean completion times on a real trace, against the figures of two independent simulators."""

from collections.abc import Callable
from pathlib import Path

import pytest

from trainmaster.sim.experiment import Experiment, prepare, run


@pytest.mark.parametrize(("policy", "mean_s", "within"), [("fifo", 67_745, 0.01), ("srtf", 21_237, 0.02)])
def test_philly_mix(policy: str, mean_s: float, within: float, shared_data: Callable[[str], Path]) -> None:
    trace = shared_data("traces/philly-mix-1k.csv")
    figures = run(prepare(Experiment(str(trace), policy, "gpu=64x8", placement="count"))).summary
    assert figures["jobs_finished"] == 1000
    assert figures["average_jct_s"] == pytest.approx(mean_s, rel=within)

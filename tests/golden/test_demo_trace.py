"""The bundled trace on a small cluster of two types: cases that need no data from elsewhere.

Figures were made by this project; what they pin is that nothing changes unnoticed.
"""

import pytest

from trainmaster.sim.experiment import Experiment, prepare, run

CLUSTER = "v100=8x4,k80=8x4"
REVIEWED = {
    "fifo": (200, 0, 0, 124423.548385),
    "fifo:backfill=true": (200, 0, 0, 39488.4545),
    "srtf": (200, 0, 207, 19778.39575),
    "las": (200, 0, 1791, 22307.57838),
    "gavel-max-min": (200, 0, 1701, 19965.05565),
    "gandiva": (200, 0, 2504, 23141.18221),
    "deadline": (199, 1, 77, 29041.191934673),
    "optimus": (200, 0, 0, 26803.45334),
}
"""Policy: jobs finished and rejected, preemptions, mean completion time in seconds."""


@pytest.mark.parametrize("policy", sorted(REVIEWED))
def test_the_bundled_trace(policy: str) -> None:
    round_s = 360 if policy.startswith("ga") else None
    figures = run(prepare(Experiment("demo", policy, CLUSTER, round_s=round_s, throughputs="builtin"))).summary
    finished, rejected, preemptions, mean_s = REVIEWED[policy]
    assert (figures["jobs_finished"], figures["jobs_rejected"], figures["preemptions"]) == (
        finished,
        rejected,
        preemptions,
    )
    assert figures["average_jct_s"] == pytest.approx(mean_s, rel=1e-9)

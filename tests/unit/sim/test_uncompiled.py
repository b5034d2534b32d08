"""The sources of the core, run as they are, give the bytes that their compiled form gives."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from trainmaster.core.build_form import runs_uncompiled

WORLDS = """
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.policies.registry import create
from trainmaster.sim.run import simulate
from trainmaster.sim.truth import TruthOptions
from trainmaster.model.cluster import parse_cluster
from trainmaster.testing.builders import a_job

COSTS = TruthOptions(restart_cost_ms=2000, resize_cost_ms=500, launch_ms=1500, stop_ms=700, exit_ms=300,
    spread_penalty=0.2, interference=0.3, noise=0.1, node_variation=0.1, sensitivity_variation=0.1,
    checkpoint_period_ms=10_000, node_mtbf_ms=200_000, node_repair_ms=30_000, report_ms=5_000, report_period_ms=9_000,
    loss_period_ms=8_000, loss_noise=0.1)
rigid = [a_job(f"r{k}", gpus=1 + k % 3, seconds=20.0 + 13 * k, submit_s=3.0 * k) for k in range(12)]
elastic = [a_job(f"e{k}", elastic=(1, 3), seconds=40.0 + 7 * k, submit_s=5.0 * k) for k in range(8)]
for policy, jobs in (("srtf", rigid), ("fifo", rigid), ("optimus", elastic)):
    for truth in (TruthOptions(), COSTS):
        done = simulate(jobs, parse_cluster("a=4x2,b=3x1"), create(policy), truth=truth,
                        estimator=DeclaredSpeeds(truth.spread_penalty))
        print(policy, done.events, done.decisions, done.end_ms, repr(float(done.lost_gpu_s)))
        for end in done.ended:
            print(end.spec.id, end.phase, end.ended_ms, end.preemptions, repr(float(end.run_s)), repr(float(end.cost)))
"""


def _run(pure: str) -> str:
    environment = {**os.environ, "TRAINMASTER_PURE": pure}
    done = subprocess.run([sys.executable, "-c", WORLDS], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.skipif(runs_uncompiled(), reason="nothing is compiled here")
def test_small_worlds_are_the_same_uncompiled() -> None:
    compiled, uncompiled = _run("0"), _run("1")
    assert compiled.count("\n") > 60
    assert compiled == uncompiled

"""The same jobs under several policies on real kubelets: order of events and completion times are as simulated."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.as_simulated import compare
from support.kubernetes.bench import training_job
from support.kubernetes.cluster import KubeCluster, own_cluster
from support.kubernetes.world import ENDED, World, world
from trainmaster.backends.kubernetes.api import paths
from trainmaster.engine.records import Settings
from trainmaster.forecast.situation import Costs

pytestmark = [pytest.mark.slow, pytest.mark.long]
V100, K80 = "Tesla-V100-SXM2-16GB", "Tesla-K80"
SPEEDS = {V100: 10.0, K80: 5.0}
ROUND_S = 10.0
JOBS = ((400, 1), (520, 1), (240, 2), (300, 1), (540, 1))
"""Steps and workers: half a minute to a minute of work, of which the two seconds until a kubelet has taken down a pod
are a small part. No two have about as much left when one of them arrives: who goes first must not hang on a start that
took a second longer."""
APART_S = 6.0
"""Jobs are submitted so far apart that the one before has begun: while it starts it is not preempted, so who arrives
just before or after that fares otherwise. (Creation is stamped to the second.)"""
UTILITY = {"kind": "sigmoid", "theta1": 50.0, "theta2": 0.01, "theta3": 600.0}
CASES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "fifo": ((), {}),
    "srtf": ((), {}),
    "gavel-max-min": (("--round", f"{ROUND_S:g}"), {}),
    "oasis": ((), {"utility": UTILITY}),
    "deadline": ((), {"deadlineSeconds": 600}),
    "dl2": (("--round", f"{ROUND_S:g}"), {}),
    "das": ((), {}),
}
"""Options of the service, and what the jobs say beyond their size."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[KubeCluster]:
    with own_cluster(2, "--gpus", "2", "--gpu-types", f"{V100},{K80}") as (made, _):
        yield made


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="tm-policies-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def _submit(made: World, name: str, steps: int, workers: int, **spec: Any) -> None:
    command = ["python3", "-m", "trainmaster.runtime.emulated", "--steps", str(steps), "--save-every", "10"]
    more = {"work": {"steps": steps}, "stepsPerSecond": SPEEDS, "preemptible": True, **spec}
    body = training_job(name, command, (workers, workers), **more)
    pod = body["spec"]["template"]["spec"]
    pod["volumes"].append({"name": "records", "hostPath": {"path": str(made.records)}})
    container = pod["containers"][0]
    container["volumeMounts"].append({"name": "records", "mountPath": "/records"})
    container["env"].append({"name": "TRAINMASTER_CHECKPOINT_DIR", "value": f"/records/{name}"})
    made.ask("create", paths.training_jobs("default"), body)
    made.names.append(name)


@pytest.mark.parametrize("policy", CASES)
def test_jobs_fare_as_simulated(cluster: KubeCluster, folder: Path, policy: str) -> None:
    options, more = CASES[policy]
    with world(cluster, folder, n_replicas=1, policy=policy, lease_s=30.0, options=options) as made:
        home = folder / "replica-0"
        made.until("a leader", lambda: "leader ready" in (home / "log").read_text(), 300)
        for k, (steps, workers) in enumerate(JOBS):
            _submit(made, f"{policy}-{k}", steps, workers, **more)
            time.sleep(APART_S)
        made.until(
            "the end of all jobs",
            lambda: all(made.statuses()[name].get("state") in ENDED for name in made.names),
            400,
            every_s=1.0,
        )
        by_name, costs = made.ended()
        ended = {str(by_name[name].spec.id): by_name[name] for name in made.names}
        settings = Settings(round_ms=round(ROUND_S * 1000) if options else None)
        cluster_now = made.nodes()
        found = compare(policy, ended, cluster_now, settings, costs)
        start_up_alone = compare(policy, ended, cluster_now, settings, Costs(costs.launch_ms, costs.restart_ms))
        made.delete_jobs()
    print(
        f"{policy}: mean JCT {found.real_jct_s:.1f} s; simulated with start-up {start_up_alone.simulated_jct_s:.1f} s "
        f"({100 * start_up_alone.ratio - 100:+.1f} %), and with ends {found.simulated_jct_s:.1f} s "
        f"({100 * found.ratio - 100:+.1f} %); {costs}",
        *found.story,
        sep="\n  ",
    )
    assert not found.phases, "the same jobs are admitted"
    assert not found.out_of_order
    assert found.ratio == pytest.approx(1.0, rel=0.1), found

"""One run of the study on real nodes of a Kubernetes cluster; one of them loses its power on the way."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from support import ROOT
from support.kubernetes.cluster import KubeCluster
from support.kubernetes.world import ENDED, IMAGE, World, world
from support.live_study.live import LOOK_S, LiveRun, Sample, read_notes
from support.live_study.workload import PROGRAM, StudyJob, command_of, deadline_s_of, utility_of
from trainmaster.backends.kubernetes.api import paths
from trainmaster.model.cluster import Cluster

PATIENCE_S = 900.0
DOWN_S = 20.0
"""How long the node is without power."""


def run_on_kubernetes(
    cluster: KubeCluster, folder: Path, jobs: Sequence[StudyJob], policy: str, round_s: float | None,
    slowdowns: dict[str, float], fails: tuple[str, float] | None,
) -> tuple[LiveRun, Cluster]:  # fmt: skip
    """`slowdowns`: by GPU type of the nodes; `fails`: (node, seconds after the first submission)."""
    options = () if round_s is None else ("--round", f"{round_s:g}")
    with world(cluster, folder, n_replicas=1, policy=policy, lease_s=10.0, options=options) as made:
        nodes = made.nodes()
        found = LiveRun(policy.partition(":")[0], time.time(), {})
        start_s = time.monotonic()
        coming, down_s = list(jobs), None
        while True:
            at_s = time.monotonic() - start_s
            while coming and coming[0].arrives_s <= at_s:
                _submit(made, coming.pop(0), slowdowns, found.policy)
            if fails is not None and at_s >= fails[1] and found.outage is None:
                cluster.order("stop", fails[0])
                found.outage, down_s = (_index(nodes, fails[0]), at_s), at_s
            if fails is not None and down_s is not None and at_s >= down_s + DOWN_S:
                cluster.order("start", fails[0])
                down_s = None
            statuses = made.statuses()
            for name, status in statuses.items():
                if sample := _sample(name, status, at_s):
                    found.samples.append(sample)
            if not coming and all(status.get("state") in ENDED for status in statuses.values()):
                break
            if at_s > PATIENCE_S:
                raise RuntimeError(f"not over after {PATIENCE_S:g} s: {made.story()}")
            time.sleep(LOOK_S)
        ended, found.costs = made.ended()
        found.ended = {job.name: ended[job.name] for job in jobs}
        found.ids = {name: str(end.spec.id) for name, end in found.ended.items()}
        found.notes = read_notes(made.records, jobs)
        made.delete_jobs()
    return found, nodes


def _submit(made: World, job: StudyJob, slowdowns: dict[str, float], policy: str) -> None:
    program = f"/source/{PROGRAM.relative_to(ROOT)}"
    folders = {"records": str(made.records), "site": str(Path(np.__file__).parents[1]), "source": str(ROOT)}
    container = {
        "name": "trainer", "image": IMAGE, "imagePullPolicy": "IfNotPresent",
        "command": ["python3", *command_of(job, slowdowns, "/records", program)],
        "env": [
            {"name": "PYTHONPATH", "value": "/site:/source/src"},
            {"name": "OMP_NUM_THREADS", "value": "1"},
            {"name": "TRAINMASTER_CHECKPOINT_DIR", "value": f"/records/saved-{job.name}"},
        ],
        "volumeMounts": [{"name": each, "mountPath": f"/{each}"} for each in folders],
    }  # fmt: skip
    volumes = [{"name": each, "hostPath": {"path": path}} for each, path in folders.items()]
    most = job.workers[1]
    spec: dict[str, Any] = {
        "workers": {"min": job.workers[0], "max": most},
        "model": job.model,
        "maxAttempts": 6,
        "preemptible": True,
        "work": {"steps": job.steps},
        "stepsPerSecond": {name: job.steps_per_s(most, slow) for name, slow in slowdowns.items()},
        "template": {"spec": {"containers": [container], "volumes": volumes, "terminationGracePeriodSeconds": 5}},
    }
    if job.way == "server":
        spec["servers"] = {"min": 1, "max": 2}
    if policy == "deadline":
        spec |= {"deadlineSeconds": round(30 + deadline_s_of(job)), "deadlineKind": "soft"}
    if policy == "oasis":
        spec["utility"] = utility_of(job)
    body = {
        "apiVersion": paths.API_VERSION, "kind": "TrainingJob", "metadata": {"name": job.name}, "spec": spec,
    }  # fmt: skip
    made.ask("create", paths.training_jobs("default"), body)
    made.names.append(job.name)


def _sample(name: str, status: dict[str, Any], at_s: float) -> Sample | None:
    held = status.get("allocation") or {}
    if status.get("state") != "running" or not held.get("places"):
        return None
    gpu_type = held["places"][0].get("type", "") if isinstance(held["places"][0], dict) else ""
    return Sample(at_s, name, gpu_type, held["workers"], held["servers"])


def _index(nodes: Cluster, name: str) -> int:
    return next(k for k, node in enumerate(nodes.nodes) if node.id == name)

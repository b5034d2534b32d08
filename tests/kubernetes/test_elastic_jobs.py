"""TrainingJobs on real kubelets whose size is edited while they train, through the whole service."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.kubernetes.cluster import own_cluster
from support.kubernetes.world import World, world
from trainmaster.backends.kubernetes.api import paths

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def made() -> Iterator[World]:
    with (
        own_cluster(3) as (cluster, folder),
        world(cluster, folder, n_replicas=1, policy="drf", lease_s=30.0) as made,
    ):
        yield made


def _submit(made: World, name: str, program: str, workers: tuple[int, int], servers: tuple[int, int] | None) -> None:
    """One GPU per worker, and one worker per node at most: gangs of two or more span nodes."""
    folders = {"records": str(made.records), "site": str(Path(np.__file__).parents[1]), "source": str(ROOT)}
    container = {
        "name": "trainer",
        "image": "registry.local/python:3.11",
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", f"exec python3 /source/examples/{program} >> /records/{name}.out 2>&1"],
        "env": [
            {"name": "PYTHONPATH", "value": "/site:/source/src"},
            {"name": "PYTHONUNBUFFERED", "value": "1"},
            {"name": "TRAINMASTER_CHECKPOINT_DIR", "value": f"/records/saved-{name}"},
        ],
        "volumeMounts": [{"name": each, "mountPath": f"/{each}"} for each in folders],
    }
    template = {
        "spec": {
            "containers": [container],
            "volumes": [{"name": each, "hostPath": {"path": path}} for each, path in folders.items()],
        }
    }
    spec: dict[str, Any] = {
        "workers": {"min": workers[0], "max": workers[1]},
        "gpusPerWorker": 3,
        "maxAttempts": 3,
        "template": template,
    }
    if servers is not None:
        spec["servers"] = {"min": servers[0], "max": servers[1]}
    body = {"apiVersion": "trainmaster.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name}, "spec": spec}
    made.ask("create", paths.training_jobs("default"), body)


def _resize(made: World, name: str, most: int) -> None:
    """The policy gives an elastic job what is free, up to `most`."""
    spec = {"workers": {"min": 1, "max": most}}
    made.ask("patch", paths.training_jobs("default", name), {"spec": spec})


def _report(made: World, name: str, pattern: str) -> list[tuple[float, int, float]]:
    """(count of work, workers, loss) of each line that the trainers printed."""
    path = made.records / f"{name}.out"
    text = path.read_text() if path.exists() else ""
    return [(float(m[1]), int(m[2]), float(m[3])) for m in re.finditer(pattern, text)]


def _nodes(made: World, name: str) -> set[str]:
    return {pod["spec"]["nodeName"] for pod in made.pods(name) if pod["status"].get("phase") == "Running"}


def _trains_with(made: World, name: str, pattern: str, workers: int) -> None:
    begun = len(_report(made, name, pattern))

    def seen() -> bool:
        return sum(row[1] == workers for row in _report(made, name, pattern)[begun:]) >= 2

    made.until(f"{name} with {workers} workers ({_tail(made, name)})", seen, 180)


def _tail(made: World, name: str) -> str:
    path = made.records / f"{name}.out"
    return path.read_text()[-1500:] if path.exists() else "no output"


def _falls(losses: list[float]) -> bool:
    part = max(1, len(losses) // 4)
    return float(np.mean(losses[-part:])) < 0.8 * float(np.mean(losses[:part]))


def test_a_pytorch_job_is_resized_in_place_while_it_trains(made: World) -> None:
    pytest.importorskip("torch")
    pattern = r"step (\d+), (\d+) workers: loss ([\d.]+)"
    _submit(made, "torch", "image_classifier.py --epochs 1000", (1, 1), None)
    _trains_with(made, "torch", pattern, 1)
    _resize(made, "torch", 2)
    _trains_with(made, "torch", pattern, 2)
    assert len(_nodes(made, "torch")) == 2, "gloo between nodes"
    _resize(made, "torch", 1)
    _trains_with(made, "torch", pattern, 1)
    rows = _report(made, "torch", pattern)
    steps = [row[0] for row in rows]
    assert steps == sorted(steps), "steps were lost: it was restarted, not resized"
    assert _falls([row[2] for row in rows])
    status = made.statuses()["torch"]
    assert status["state"] == "running" and status["generation"] == 1
    made.ask("delete", paths.training_jobs("default", "torch"))
    made.until("no pod left over", lambda: not made.pods("torch"), 90)


def test_a_parameter_server_job_is_resized_in_place(made: World) -> None:
    pattern = r"(\d+) gradients, (\d+) workers: mean squared error ([\d.]+)"
    _submit(made, "ps", "matrix_factorisation_ps.py --steps 10000000", (1, 1), (1, 1))
    _trains_with(made, "ps", pattern, 1)
    _resize(made, "ps", 2)
    _trains_with(made, "ps", pattern, 2)
    _resize(made, "ps", 1)
    time.sleep(1.0)
    _trains_with(made, "ps", pattern, 1)
    assert _falls([row[2] for row in _report(made, "ps", pattern)])
    assert made.statuses()["ps"]["generation"] == 1
    made.ask("delete", paths.training_jobs("default", "ps"))
    made.until("no pod left over", lambda: not made.pods("ps"), 90)

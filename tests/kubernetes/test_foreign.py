"""Pods of other controllers: gangs start whole, wait with a reason on the object that the user created, and end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.kubernetes.cluster import KubeCluster

SOURCE = str(Path(__file__).resolve().parents[2] / "src")
pytestmark = pytest.mark.slow


def until(truth: Callable[[], Any], patience_s: float = 90.0) -> Any:
    deadline_s = time.monotonic() + patience_s
    while True:
        found = truth()
        if found:
            return found
        assert time.monotonic() < deadline_s, "it did not come about"
        time.sleep(0.3)


def batch_job(name: str, size: int, gpus: int, run: str = "600s", **meta: Any) -> dict[str, Any]:
    container = {"name": "m", "image": "registry.local/pause:1", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    pod = {
        "schedulerName": "trainmaster", "restartPolicy": "Never", "containers": [container],
        "tolerations": [{"operator": "Exists"}],
    }  # fmt: skip
    template = {"metadata": {"annotations": {"trainmaster.dev/fake-run": run}}, "spec": pod}
    spec = {"parallelism": size, "completions": size, "template": template, "backoffLimit": 0}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default", **meta},
        "spec": spec,
    }


def pods(cluster: KubeCluster, name: str) -> list[dict[str, Any]]:
    return cluster.get("pods", "-n", "default", "-l", f"job-name={name}")["items"]


def bound(cluster: KubeCluster, name: str) -> int:
    return sum(1 for pod in pods(cluster, name) if pod["spec"].get("nodeName"))


def scheduled_messages(cluster: KubeCluster, name: str) -> set[str]:
    return {
        condition["message"]
        for pod in pods(cluster, name)
        for condition in pod["status"].get("conditions") or ()
        if condition["type"] == "PodScheduled" and condition["status"] == "False"
    }


def events_of(cluster: KubeCluster, kind: str, name: str) -> list[dict[str, Any]]:
    chosen = f"involvedObject.kind={kind},involvedObject.name={name}"
    found = cluster.get("events", "-n", "default", "--field-selector", chosen)["items"]
    return [event for event in found if event["source"].get("component") == "trainmaster"]


def test_a_job_of_parallelism_four_is_a_gang_of_four(fake_cluster: KubeCluster, service: Path) -> None:
    fake_cluster.apply(batch_job("holder", 2, 8))
    until(lambda: bound(fake_cluster, "holder") == 2)
    fake_cluster.apply(batch_job("gang", 4, 4))
    messages = until(lambda: len(pods(fake_cluster, "gang")) == 4 and scheduled_messages(fake_cluster, "gang"))
    until(lambda: len([1 for pod in pods(fake_cluster, "gang") if pod["status"].get("conditions")]) == 4)
    assert bound(fake_cluster, "gang") == 0, "two of them would fit, but a gang starts whole"
    assert len(scheduled_messages(fake_cluster, "gang")) == 1 and "needs 16 GPUs" in next(iter(messages))
    told = until(lambda: events_of(fake_cluster, "Job", "gang"))
    assert [event["reason"] for event in told] == ["Waiting"] and "needs 16 GPUs" in told[0]["message"]
    fake_cluster.kubectl("delete", "job", "holder", "-n", "default")
    until(lambda: bound(fake_cluster, "gang") == 4)
    fake_cluster.kubectl("delete", "job", "gang", "-n", "default")


def test_a_gang_by_label_waits_for_all_its_pods(fake_cluster: KubeCluster, service: Path) -> None:
    def bare(name: str) -> dict[str, Any]:
        spec = batch_job("x", 1, 1)["spec"]["template"]["spec"]
        meta = {
            "name": name, "namespace": "default", "labels": {"trainmaster.dev/gang": "pair"},
            "annotations": {"trainmaster.dev/gang-size": "2", "trainmaster.dev/fake-run": "600s"},
        }  # fmt: skip
        return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}

    def placed() -> list[Any]:
        found = fake_cluster.get("pods", "-n", "default", "-l", "trainmaster.dev/gang=pair")["items"]
        return [pod for pod in found if pod["spec"].get("nodeName")]

    fake_cluster.apply(bare("one"))
    until(lambda: events_of(fake_cluster, "Pod", "one"))
    assert "1 of 2 pods" in events_of(fake_cluster, "Pod", "one")[0]["message"]
    assert not placed()
    fake_cluster.apply(bare("two"))
    until(lambda: len(placed()) == 2)
    fake_cluster.kubectl("delete", "pod", "one", "two", "-n", "default", "--grace-period=0", "--force")


def test_a_gang_that_never_fits_says_so(fake_cluster: KubeCluster, service: Path) -> None:
    fake_cluster.apply(batch_job("vast", 2, 64))
    told = until(lambda: events_of(fake_cluster, "Job", "vast"))
    assert "nvidia.com/gpu 64 wanted, 8 there" in told[0]["message"]
    fake_cluster.kubectl("delete", "job", "vast", "-n", "default")


def test_a_gang_that_ends_is_a_finished_job_and_its_room_is_free(fake_cluster: KubeCluster, service: Path) -> None:
    fake_cluster.apply(batch_job("short", 3, 8, run="2s"))
    until(lambda: fake_cluster.get("job", "short", "-n", "default")["status"].get("succeeded") == 3)

    def queue() -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "trainmaster", "queue", "--all", "--home", str(service), "-o", "json"],
            capture_output=True, text=True, env={**os.environ, "PYTHONPATH": SOURCE}, timeout=60,
        )  # fmt: skip
        return {job["name"]: job["state"] for job in json.loads(done.stdout)["jobs"]}

    until(lambda: queue().get("short") == "finished")
    fake_cluster.kubectl("delete", "job", "short", "-n", "default")

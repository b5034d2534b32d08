"""The TrainingJob resource in a real API server: defaults, columns, explanations, and everything that is refused."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest

from support.kubernetes.cluster import KubeCluster
from trainmaster.backends.kubernetes.resources.status import StatusUpdate, status_of
from trainmaster.backends.kubernetes.resources.training_job import spec_of_trainingjob

POD: dict[str, Any] = {"spec": {"containers": [{"name": "main", "image": "registry.local/python:3.11"}]}}


def job(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "trainmaster.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"template": deepcopy(POD), **spec},
    }


def refused(cluster: KubeCluster, thing: dict[str, Any]) -> str:
    done = cluster.apply(thing, check=False)
    assert done.returncode, f"accepted: {thing}"
    return done.stderr


def test_defaults_are_filled_in_and_read_back(fake_cluster: KubeCluster) -> None:
    fake_cluster.apply(job("plain"))
    found = fake_cluster.get("tj", "plain")
    assert found["spec"]["gpuResource"] == "nvidia.com/gpu"
    assert "workers" not in found["spec"], "a job with a deadline alone takes what it needs"
    spec = spec_of_trainingjob(found, 0)
    assert (spec.workers_min, spec.workers_max, spec.max_attempts, spec.entity) == (1, 1, 3, "default")
    assert not fake_cluster.kubectl("delete", "tjs", "plain").returncode


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"workers": {"min": 0}}, "spec.workers.min"),
        ({"workers": {"min": 3, "max": 2}}, "spec.workers.max"),
        ({"workers": {"min": "two"}}, "spec.workers.min"),
        ({"servers": {"min": 2, "max": 1}}, "spec.servers.max"),
        ({"gpusPerWorker": -1}, "spec.gpusPerWorker"),
        ({"gpusPerWorker": 0.5}, "spec.gpusPerWorker"),
        ({"gpuResource": "gpu"}, "spec.gpuResource"),
        ({"gpuTypes": ["a", "a"]}, "spec.gpuTypes"),
        ({"deadlineSeconds": 0}, "spec.deadlineSeconds"),
        ({"deadlineKind": "firm"}, "spec.deadlineKind"),
        ({"weight": 0}, "spec.weight"),
        ({"priority": 5000}, "spec.priority"),
        ({"work": {}}, "work"),
        ({"work": {"steps": 5, "epochs": 2}}, "work"),
        ({"entity": "a/b"}, "spec.entity"),
        ({"maxAttempts": 0}, "spec.maxAttempts"),
        ({"template": {"spec": {"containers": []}}}, "spec.template.spec.containers"),
        ({"template": {}}, "spec.template"),
        ({"template": None}, "template"),
        ({"utility": 5}, "spec.utility"),
        ({"stepsPerSecond": {"v100": -1}}, "spec.stepsPerSecond"),
        ({"suspend": "yes"}, "spec.suspend"),
    ],
)
def test_what_is_wrong_is_refused_with_its_field(fake_cluster: KubeCluster, spec: dict[str, Any], field: str) -> None:
    thing = job("wrong", **{key: value for key, value in spec.items() if value is not None})
    for key, value in spec.items():
        if value is None:
            del thing["spec"][key]
    assert field in refused(fake_cluster, thing)


@pytest.mark.parametrize("name", ["a" * 46, "with.dot", "1st", "Upper", "-x", "a_b", "x\n", "../etc", "$(id)"])
def test_hostile_names_are_refused(fake_cluster: KubeCluster, name: str) -> None:
    assert refused(fake_cluster, job(name))


def test_a_typing_error_is_refused_by_kubectl(fake_cluster: KubeCluster) -> None:
    assert "wrokers" in refused(fake_cluster, job("typo", wrokers={"min": 1}))


def test_what_may_change_and_what_may_not(fake_cluster: KubeCluster) -> None:
    thing = job("steady", workers={"min": 1, "max": 4}, deadlineSeconds=600)
    fake_cluster.apply(thing)
    for change in ({"workers": {"min": 2, "max": 3}}, {"deadlineSeconds": 900}, {"suspend": True}, {"weight": 3}):
        patch = json.dumps({"spec": change})
        assert not fake_cluster.kubectl("patch", "tj", "steady", "--type=merge", "-p", patch).returncode
    other = deepcopy(POD)
    other["spec"]["containers"][0]["env"] = [{"name": "A", "value": "b"}]
    for field, value in (("template", other), ("gpusPerWorker", 2), ("gpuTypes", ["x"]), ("entity", "other"),
                         ("servers", {"max": 1}), ("preemptible", False), ("maxAttempts", 9)):  # fmt: skip
        patch = json.dumps({"spec": {field: value}})
        done = fake_cluster.kubectl("patch", "tj", "steady", "--type=merge", "-p", patch, check=False)
        assert done.returncode and f"{field} cannot be changed after creation" in done.stderr, field
    fake_cluster.kubectl("delete", "tj", "steady")


def test_status_columns_and_the_end(fake_cluster: KubeCluster) -> None:
    fake_cluster.apply(job("shown", workers={"min": 1, "max": 4}))
    found = fake_cluster.get("tj", "shown")
    view: dict[str, Any] = {
        "id": "default.shown.x", "state": "running", "why": "", "reason": "", "eta_s": 3600.0, "attempts": 1,
        "allocation": [{"node": "n0", "accelerator": "V100", "workers": 2, "servers": 0, "devices": [0, 1]}],
        "progress": {"fraction": 0.25}, "started": 1_700_000_000.0, "ended": None,
        "request": {"workers": {"min": 1, "max": 4}}, "stalled_s": None, "output": "", "hint": "",
    }  # fmt: skip
    _write_status(fake_cluster, "shown", status_of(found, StatusUpdate(view, 1, 1_700_000_000.0)))
    table = fake_cluster.kubectl("get", "tj", "shown").stdout.splitlines()
    assert table[0].split() == ["NAME", "STATE", "WORKERS", "TYPE", "PROGRESS", "ETA", "REASON", "AGE"]
    assert table[1].split()[:7] == ["shown", "running", "2/1-4", "V100", "25%", "2023-11-14", "23:13"]
    waiting = fake_cluster.kubectl("wait", "tj/shown", "--for=condition=Running", "--timeout=5s")
    assert "condition met" in waiting.stdout
    over = {**view, "state": "failed", "reason": "failed after 3 attempts", "allocation": [], "ended": 1_700_000_100.0}
    _write_status(
        fake_cluster, "shown", status_of(fake_cluster.get("tj", "shown"), StatusUpdate(over, 1, 1_700_000_100.0))
    )
    patch = json.dumps({"spec": {"suspend": True}})
    done = fake_cluster.kubectl("patch", "tj", "shown", "--type=merge", "-p", patch, check=False)
    assert done.returncode and "the job is over" in done.stderr
    fake_cluster.kubectl("delete", "tj", "shown")


def _write_status(cluster: KubeCluster, name: str, status: dict[str, Any]) -> None:
    patch = json.dumps({"status": status})
    cluster.kubectl("patch", "tj", name, "--subresource=status", "--type=merge", "-p", patch)


def test_users_cannot_write_the_status_by_applying(fake_cluster: KubeCluster) -> None:
    thing = {**job("sly"), "status": {"state": "finished"}}
    fake_cluster.apply(thing)
    assert "status" not in fake_cluster.get("tj", "sly")
    fake_cluster.kubectl("delete", "tj", "sly")


def test_every_field_is_explained(fake_cluster: KubeCluster) -> None:
    text = fake_cluster.kubectl("explain", "tj.spec", "--recursive=false").stdout
    assert "<no description>" not in text
    for field in ("workers", "gpuTypes", "deadlineSeconds", "suspend", "template"):
        assert f"  {field}\t" in text
    assert "<no description>" not in fake_cluster.kubectl("explain", "tj.status").stdout

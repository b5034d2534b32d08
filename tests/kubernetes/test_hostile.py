"""TrainingJobs that are wrong in ways that no schema can say, or meant to do harm: rejected with the field's name."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.kubernetes.cluster import KubeCluster

pytestmark = pytest.mark.slow
TOLERATIONS = [{"operator": "Exists"}]


def job(name: str, container: dict[str, Any], pod: dict[str, Any], meta: dict[str, Any], **spec: Any) -> dict[str, Any]:
    first = {"name": "main", "image": "registry.local/pause:1", **container}
    template = {"metadata": meta, "spec": {"tolerations": TOLERATIONS, "containers": [first], **pod}}
    return {
        "apiVersion": "trainmaster.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name, "namespace": "default", "annotations": {"trainmaster.dev/launcher": "false"}},
        "spec": {"template": template, **spec},
    }


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TERM = [{"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}}]
SPREAD = [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]
UNCOUNTED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"affinity": {"podAffinity": {REQUIRED: TERM}}}, f"spec.template.spec.affinity.podAffinity.{REQUIRED}"),
    ({}, {"affinity": {"podAntiAffinity": {REQUIRED: TERM}}}, "spec.template.spec.affinity.podAntiAffinity"),
    ({}, {"topologySpreadConstraints": SPREAD}, "spec.template.spec.topologySpreadConstraints[0]"),
    (
        {},
        {"resourceClaims": [{"name": "g", "resourceClaimTemplateName": "t"}]},
        "spec.template.spec.resourceClaims",
    ),
    ({"resources": {"limits": {"rdma/hca": 1}}}, {}, "spec.template.spec.containers[0].resources.limits.rdma/hca"),
    (
        {"resources": {"requests": {"ephemeral-storage": "1Gi"}}},
        {},
        "spec.template.spec.containers[0].resources.requests.ephemeral-storage",
    ),
    (
        {"ports": [{"containerPort": 80, "hostPort": 80}]},
        {},
        "spec.template.spec.containers[0].ports[0].hostPort",
    ),
]
"""Required constraints that placement does not count."""

HOSTILE: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any], str]] = [
    ({"env": [{"name": "A=B", "value": "x"}]}, {}, {}, {}, "spec.template.spec.containers[0].env[0].name"),
    ({"env": [{"name": "TRAINMASTER_JOB", "value": "x"}]}, {}, {}, {}, "spec.template.spec.containers[0].env"),
    ({"image": ""}, {}, {}, {}, "spec.template.spec.containers[0].image"),
    ({"imagePullPolicy": "Perhaps"}, {}, {}, {}, "spec.template.spec.containers[0].imagePullPolicy"),
    (
        {"volumeMounts": [{"name": "no", "mountPath": "/x"}]},
        {},
        {},
        {},
        "spec.template.spec.containers[0].volumeMounts",
    ),
    ({"resources": {"requests": {"cpu": "-1"}}}, {}, {}, {}, "resources"),
    ({"comand": ["true"]}, {}, {}, {}, "spec.template.spec.containers[0].comand"),
    ({}, {"nodeName": "fake-00000"}, {}, {}, "spec.template.spec.nodeName"),
    ({}, {"schedulerName": "other"}, {}, {}, "spec.template.spec.schedulerName"),
    ({}, {"hostname": "$(reboot)"}, {}, {}, "spec.template.spec.hostname"),
    ({}, {}, {"labels": {"a b": "c"}}, {}, "spec.template.metadata.labels"),
    ({}, {}, {"labels": {"a": "x" * 64}}, {}, "spec.template.metadata.labels"),
    ({}, {}, {}, {"utility": {"kind": "moon"}}, "spec.utility"),
    *((container, pod, {}, {}, told) for container, pod, told in UNCOUNTED),
]


def test_each_ends_rejected_and_says_why(fake_cluster: KubeCluster, service: Path) -> None:
    names = [f"bad-{k}" for k in range(len(HOSTILE))]
    fake_cluster.apply(*(job(name, c, p, m, **s) for name, (c, p, m, s, _) in zip(names, HOSTILE, strict=True)))
    fine = job("good", {"env": [{"name": "A", "value": "$(id); \u202e\n"}]}, {}, {"labels": {"x": "y"}})
    fake_cluster.apply(fine)
    deadline_s = time.monotonic() + 120
    while True:
        found = {t["metadata"]["name"]: t.get("status") or {} for t in fake_cluster.get("tj", "-n", "default")["items"]}
        if all(found.get(name, {}).get("state") for name in [*names, "good"]) or time.monotonic() > deadline_s:
            break
        time.sleep(0.5)
    for name, (*_, told) in zip(names, HOSTILE, strict=True):
        assert found[name].get("state") == "rejected", (name, found[name])
        assert told in found[name]["message"], (told, found[name]["message"])
    assert found["good"]["state"] in ("pending", "running")
    assert not [
        p for p in fake_cluster.get("pods", "-n", "default")["items"] if p["metadata"]["name"].startswith("bad")
    ]
    fake_cluster.kubectl("delete", "tj", "--all", "-n", "default")


def _states(cluster: KubeCluster, namespace: str, names: list[str], wanted: Callable[[dict[str, Any]], bool]) -> Any:
    """The status of each, once all are as wanted."""
    deadline_s = time.monotonic() + 120
    while True:
        items = cluster.get("tj", "-n", namespace)["items"]
        found = {item["metadata"]["name"]: item.get("status") or {} for item in items}
        if all(wanted(found.get(name, {})) for name in names):
            return found
        assert time.monotonic() < deadline_s, found
        time.sleep(0.5)


NOWHERE: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "selects": ({"nodeSelector": {"no/such": "node"}}, {}, "nodeSelector wants no/such=node"),
    "large": ({}, {"gpusPerWorker": 64}, "nvidia.com/gpu 64 wanted, 8 there"),
    "vendor": ({}, {"gpuResource": "amd.com/gpu", "gpusPerWorker": 1}, "amd.com/gpu 1 wanted, 0 there"),
    "wide": ({}, {"gpusPerWorker": 8, "workers": {"min": 1000, "max": 1000}}, "1000 workers do not fit"),
}


def test_a_job_that_no_node_can_take_waits_alone_until_one_can(fake_cluster: KubeCluster, service: Path) -> None:
    """Under fifo, before everybody else in order of arrival."""
    meta = {"annotations": {"trainmaster.dev/fake-run": "600s"}}
    fake_cluster.kubectl("delete", "tj", "--all", "-n", "default")
    fake_cluster.apply(*(job(name, {}, pod, meta, **spec) for name, (pod, spec, _) in NOWHERE.items()))
    time.sleep(1.1)
    fake_cluster.apply(job("behind", {}, {}, meta))
    _states(fake_cluster, "default", ["behind"], lambda status: status.get("state") == "running")
    found = _states(fake_cluster, "default", [*NOWHERE], lambda status: status.get("reason") == "NoNode")
    for name, (_, _, told) in NOWHERE.items():
        assert found[name]["state"] == "pending" and told in found[name]["message"], found[name]
    fake_cluster.kubectl("label", "node", "fake-00000", "no/such=node")
    try:
        _states(fake_cluster, "default", ["selects"], lambda status: status.get("state") == "running")
    finally:
        fake_cluster.kubectl("label", "node", "fake-00000", "no/such-")
    fewer = {"spec": {"workers": {"min": 1, "max": 1000}}}
    fake_cluster.kubectl("patch", "tj", "wide", "-n", "default", "--type=merge", "-p", json.dumps(fewer))
    _states(fake_cluster, "default", ["wide"], lambda status: status.get("reason") != "NoNode")
    fake_cluster.kubectl("delete", "tj", "--all", "-n", "default")


def test_a_job_that_is_pinned_waits_alone(fake_cluster: KubeCluster, service: Path) -> None:
    """Under fifo: who waits for one node holds up nobody who wants another."""
    meta = {"annotations": {"trainmaster.dev/fake-run": "600s"}}

    def pinned(name: str, node: int) -> dict[str, Any]:
        where = {"nodeSelector": {"kubernetes.io/hostname": f"fake-{node:05}"}}
        return job(name, {}, where, meta, gpusPerWorker=8)

    fake_cluster.kubectl("delete", "tj", "--all", "-n", "default")
    for name, node in (("holds", 0), ("waits", 0), ("elsewhere", 1)):
        fake_cluster.apply(pinned(name, node))
        time.sleep(1.1)  # in this order
    _states(fake_cluster, "default", ["holds", "elsewhere"], lambda status: status.get("state") == "running")
    found = _states(fake_cluster, "default", ["waits"], lambda status: status.get("state") == "pending")
    assert "GPU" in found["waits"]["message"]
    fake_cluster.kubectl("delete", "tj", "--all", "-n", "default")


def test_what_a_limit_range_adds_is_asked_of_nodes(fake_cluster: KubeCluster, service: Path) -> None:
    fake_cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "limited"}})
    for name, default, state, told in (
        ("much", {"cpu": "1000"}, "pending", "cpu 1000 wanted"),
        ("disk", {"ephemeral-storage": "1Gi"}, "rejected", "ephemeral-storage"),
    ):
        limits = [{"type": "Container", "defaultRequest": default}]
        rule = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "limits", "namespace": "limited"}}
        fake_cluster.apply({**rule, "spec": {"limits": limits}})
        body = job(name, {"env": [{"name": "A", "value": name}]}, {}, {})
        body["metadata"]["namespace"] = "limited"
        fake_cluster.apply(body)
        found = _states(fake_cluster, "limited", [name], lambda status: bool(status.get("message")))
        assert (found[name]["state"], told in found[name]["message"]) == (state, True), found
    fake_cluster.kubectl("delete", "namespace", "limited", "--wait=false")

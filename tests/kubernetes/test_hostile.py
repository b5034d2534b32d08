"""TrainingJobs that are wrong in ways that no schema can say, or meant to do harm: rejected with the field's name."""

from __future__ import annotations

import time
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
    ({}, {"nodeSelector": {"no/such": "node"}}, {}, {}, "nodeSelector wants no/such=node"),
    ({}, {}, {}, {"utility": {"kind": "moon"}}, "spec.utility"),
    ({}, {}, {}, {"gpusPerWorker": 64}, "nvidia.com/gpu 64 wanted, 8 there"),
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

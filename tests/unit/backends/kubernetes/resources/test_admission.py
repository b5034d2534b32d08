"""New TrainingJobs that ask for what placement does not count are refused with the field's name."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from trainmaster.backends.kubernetes.resources.admission import MAX_DEPTH, check_admission, check_depth
from trainmaster.model.errors import InputError

TERM = [{"topologyKey": "kubernetes.io/hostname"}]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}


def job(pod: dict[str, Any] | None = None, container: dict[str, Any] | None = None) -> dict[str, Any]:
    first = {"name": "main", "image": "x", "command": ["train"], **(container or {})}
    spec = {"template": {"spec": {"containers": [first], **(pod or {})}}}
    return {"metadata": {"name": "a", "namespace": "b"}, "spec": spec}


def refused(thing: dict[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        check_admission(thing)
    return str(caught.value.column)


@pytest.mark.parametrize(
    ("pod", "field"),
    [
        ({"affinity": {"podAffinity": {REQUIRED: TERM}}}, f"affinity.podAffinity.{REQUIRED}"),
        ({"affinity": {"podAntiAffinity": {REQUIRED: TERM}}}, f"affinity.podAntiAffinity.{REQUIRED}"),
        ({"topologySpreadConstraints": [SPREAD]}, "topologySpreadConstraints[0]"),
        ({"resourceClaims": [{"name": "gpu"}]}, "resourceClaims"),
        ({"resources": {"requests": {"cpu": "1"}}}, "resources"),
        (
            {"initContainers": [{"name": "i", "resources": {"limits": {"rdma/hca": 1}}}]},
            "initContainers[0].resources.limits.rdma/hca",
        ),
    ],
)
def test_constraints_of_the_pod(pod: dict[str, Any], field: str) -> None:
    assert refused(job(pod)) == f"spec.template.spec.{field}"


@pytest.mark.parametrize(
    ("container", "field"),
    [
        ({"ports": [{"containerPort": 80}, {"containerPort": 81, "hostPort": 81}]}, "ports[1].hostPort"),
        ({"resources": {"limits": {"rdma/hca": 1}}}, "resources.limits.rdma/hca"),
        ({"resources": {"requests": {"ephemeral-storage": "1Gi"}}}, "resources.requests.ephemeral-storage"),
        ({"resources": {"requests": {"hugepages-2Mi": "4Mi"}}}, "resources.requests.hugepages-2Mi"),
        ({"resources": {"requests": {"amd.com/gpu": 1}}}, "resources.requests.amd.com/gpu"),
        ({"resources": {"claims": [{"name": "gpu"}]}}, "resources.claims"),
        ({"command": None}, "command"),
    ],
)
def test_constraints_of_a_container(container: dict[str, Any], field: str) -> None:
    assert refused(job(container=container)) == f"spec.template.spec.containers[0].{field}"


def test_servers_are_asked_too() -> None:
    thing = job()
    thing["spec"]["serverTemplate"] = {"spec": {"resourceClaims": [{"name": "x"}]}}
    assert refused(thing) == "spec.serverTemplate.spec.resourceClaims"


def test_preferences_and_what_is_counted_are_taken() -> None:
    affinity = {"podAntiAffinity": {PREFERRED: TERM}, "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": []}}}
    spread = [{**SPREAD, "whenUnsatisfiable": "ScheduleAnyway"}]
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"nvidia.com/gpu": 1}}
    ports = [{"containerPort": 80}]
    check_admission(
        job({"affinity": affinity, "topologySpreadConstraints": spread}, {"resources": resources, "ports": ports})
    )
    other = job(container={"resources": {"limits": {"amd.com/gpu": 1}}})
    other["spec"]["gpuResource"] = "amd.com/gpu"
    check_admission(other)


def test_ports_on_the_network_of_the_host_are_host_ports() -> None:
    thing = job({"hostNetwork": True}, {"ports": [{"containerPort": 80}]})
    assert refused(thing).endswith("ports[0].containerPort")


def test_without_a_launcher_the_image_may_have_the_command() -> None:
    thing = job(container={"command": None})
    thing["metadata"]["annotations"] = {"trainmaster.dev/launcher": "false"}
    check_admission(thing)


def test_depth_is_bounded_without_recursion() -> None:
    check_depth(job())
    for depth in (MAX_DEPTH, 260, 100_000):
        deep: dict[str, Any] = {}
        for _ in range(depth):
            deep = {"x": deep}
        thing = deepcopy(job())
        thing["spec"]["template"]["metadata"] = deep
        with pytest.raises(InputError, match="nested"):
            check_depth(thing)

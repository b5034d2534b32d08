"""Which nodes accept a pod, and what is said when none ever can."""

from typing import Any

import pytest

from trainmaster.backends.kubernetes.nodes.fit import KnownRoom
from trainmaster.backends.kubernetes.nodes.matching import why_not
from trainmaster.model.job import Demand, JobId, JobSpec


def node(name: str = "n0", gpus: int = 4, kind: str = "V100", **spec: Any) -> dict[str, Any]:
    labels = {"nvidia.com/gpu.product": kind, "zone": "a", "age": "5"}
    have = {"nvidia.com/gpu": str(gpus), "cpu": "8", "memory": "16Gi", "pods": "110"}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": {"allocatable": have}}


def affinity(*terms: Any) -> dict[str, Any]:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": required}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("pod", "accepted"),
    [
        ({}, True),
        ({"nodeSelector": {"zone": "a"}}, True),
        ({"nodeSelector": {"zone": "b"}}, False),
        (affinity(expression("zone", "In", "a", "b")), True),
        (affinity(expression("zone", "NotIn", "a")), False),
        (affinity(expression("nowhere", "NotIn", "a")), True),
        (affinity(expression("zone", "Exists")), True),
        (affinity(expression("zone", "DoesNotExist")), False),
        (affinity(expression("age", "Gt", "4")), True),
        (affinity(expression("age", "Lt", "4")), False),
        (affinity(expression("zone", "Gt", "4")), False),
        (affinity({}), False),
        (affinity(expression("zone", "In", "b"), expression("zone", "In", "a")), True),
        (affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n0"]}]}), True),
    ],
)
def test_selectors_and_affinity(pod: dict[str, Any], accepted: bool) -> None:
    assert (why_not(pod, node()) is None) == accepted


TAINT = {"key": "team", "value": "x", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("toleration", "accepted"),
    [
        (None, False),
        ({"key": "team", "operator": "Equal", "value": "x", "effect": "NoSchedule"}, True),
        ({"key": "team", "value": "y"}, False),
        ({"key": "team", "operator": "Exists"}, True),
        ({"key": "team", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"operator": "Exists"}, True),
        ({"value": "x"}, False),
    ],
)
def test_taints(toleration: Any, accepted: bool) -> None:
    pod = {"tolerations": [] if toleration is None else [toleration]}
    assert (why_not(pod, node(taints=[TAINT])) is None) == accepted
    assert why_not(pod, node(taints=[{**TAINT, "effect": "PreferNoSchedule"}])) is None


def test_a_cordon_passes_and_a_taint_stays() -> None:
    cordoned = node(unschedulable=True, taints=[{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}])
    assert why_not({}, cordoned) == "cordoned"
    assert why_not({}, cordoned, lasting=True) is None
    assert why_not({}, node(taints=[TAINT]), lasting=True) is not None


def job(workers: int = 1, gpus: int = 1, cpu_milli: int = 0, types: tuple[str, ...] = ()) -> JobSpec:
    demand = Demand(gpus * 1000, cpu_milli, 0)
    return JobSpec(JobId("a"), workers_min=workers, workers_max=workers, worker=demand, gpu_types=types)


def lacks(spec: JobSpec, nodes: list[Any], asked: dict[str, Any] | None = None) -> str:
    return KnownRoom(lambda: nodes, lambda _: asked or {}).lacks(spec)


def test_what_fits_lacks_nothing() -> None:
    assert lacks(job(workers=8), [node("n0"), node("n1")]) == ""
    assert lacks(job(workers=3, gpus=0, cpu_milli=8000), [node("n0"), node("n1", kind="K80"), node("n2")]) == ""


def test_a_cluster_without_nodes_has_no_room_yet() -> None:
    assert lacks(job(), []) == "the cluster has no nodes"


def test_other_nodes_are_looked_at_once_told() -> None:
    nodes = [node("n0")]
    room = KnownRoom(lambda: nodes, lambda _: {})
    assert room.lacks(job(gpus=8)) != ""
    nodes.append(node("big", gpus=8))
    room.forget()
    assert room.lacks(job(gpus=8)) == ""


def test_each_node_says_what_it_lacks() -> None:
    text = lacks(job(gpus=8, cpu_milli=9000), [node("n0"), node("n1"), node("big", gpus=8)])
    assert "n0, n1: nvidia.com/gpu 8 wanted, 4 there, cpu 9 wanted, 8 there" in text
    assert "big: cpu 9 wanted, 8 there" in text


def test_a_gang_stays_on_one_type() -> None:
    text = lacks(job(workers=5), [node("n0"), node("n1", kind="K80")])
    assert "4 on K80, 4 on V100" in text
    assert "spec.workers.min" in text


def test_types_selectors_and_taints_are_named() -> None:
    nodes = [node("n0"), node("n1", taints=[TAINT]), node("n2", kind="K80")]
    text = lacks(job(types=("H100",)), nodes)
    assert "type K80 is not among gpuTypes" in text and "taint team=x:NoSchedule" in text
    assert "nodeSelector wants disk=ssd" in lacks(job(), nodes, {"nodeSelector": {"disk": "ssd"}})


def test_the_field_that_all_nodes_refuse_is_named() -> None:
    nodes = [node("n0"), node("n1", kind="K80", gpus=2)]
    assert "(spec.gpuTypes)" in lacks(job(types=("v100",)), nodes)
    assert "(spec.gpusPerWorker)" in lacks(job(gpus=8), nodes)
    assert "(spec.template)" in lacks(job(gpus=8, cpu_milli=9000), nodes)
    assert "(spec.template)" in lacks(job(gpus=8), [node("n0"), node("n1", taints=[TAINT])])


def test_a_thousand_nodes_make_a_short_text() -> None:
    text = lacks(job(gpus=8), [node(f"n{k:04}") for k in range(1000)])
    assert "n0000, n0001, n0002 and 997 more" in text
    assert len(text) < 400

"""Which pods make a gang, and what job that is."""

from typing import Any

import pytest

from trainmaster.backends.kubernetes.gangs.foreign_gangs import (
    GangFacts,
    gang_key,
    gang_spec,
    labelled_size,
    size_of_object,
)
from trainmaster.model.errors import InputError


def pod(name: str = "p0", owner: tuple[str, str, str] | None = None, **more: Any) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "name": name, "namespace": "team", "uid": f"uid-{name}", "creationTimestamp": "2023-11-14T22:15:20Z",
        "labels": more.pop("labels", {}), "annotations": more.pop("annotations", {}),
    }  # fmt: skip
    if owner is not None:
        api, kind, called = owner
        meta["ownerReferences"] = [
            {"apiVersion": api, "kind": kind, "name": called, "uid": f"u-{called}", "controller": True}
        ]
    resources = {"limits": {"nvidia.com/gpu": "2"}, "requests": {"cpu": "1", "memory": "1Gi"}}
    spec = {"schedulerName": "trainmaster", "containers": [{"name": "m", "resources": resources}], **more}
    return {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}}


JOB = ("batch/v1", "Job", "train")


def test_pods_of_one_job_are_one_gang() -> None:
    assert gang_key(pod("a", JOB)) == gang_key(pod("b", JOB))
    assert gang_key(pod("a", JOB)).owned
    assert gang_key(pod("a", JOB)) != gang_key(pod("b", ("batch/v1", "Job", "other")))


def test_a_label_goes_before_the_owner_and_others_stand_alone() -> None:
    labels = {"trainmaster.dev/gang": "g"}
    assert gang_key(pod("a", JOB, labels=labels)) == gang_key(pod("b", labels=labels))
    set_of = ("apps/v1", "ReplicaSet", "web")
    assert gang_key(pod("a", set_of)) != gang_key(pod("b", set_of)), "pods of a Deployment do not wait for each other"
    assert gang_key(pod("a")) != gang_key(pod("b"))


def test_a_jobset_is_one_gang() -> None:
    labels = {"jobset.sigs.k8s.io/jobset-name": "js"}
    assert gang_key(pod("a", JOB, labels=labels)) == gang_key(pod("b", ("batch/v1", "Job", "o"), labels=labels))


@pytest.mark.parametrize(
    ("thing", "size"),
    [
        ({"kind": "Job", "spec": {"parallelism": 4}}, 4),
        ({"kind": "Job", "spec": {"parallelism": 4, "completions": 2}}, 2),
        ({"kind": "Job", "spec": {}}, 1),
        ({"kind": "Job", "spec": {"parallelism": 4, "completions": 6}, "status": {"succeeded": 3}}, 3),
        ({"kind": "Job", "spec": {"parallelism": 4, "completions": 4},
          "status": {"succeeded": 2, "uncountedTerminatedPods": {"succeeded": ["u"]}}}, 1),
        ({"kind": "JobSet", "spec": {"replicatedJobs": [
            {"replicas": 2, "template": {"spec": {"parallelism": 3}}}, {"template": {"spec": {}}}]}}, 7),
        ({"kind": "PyTorchJob", "spec": {"pytorchReplicaSpecs": {
            "Master": {"replicas": 1}, "Worker": {"replicas": 3}}}}, 4),
        ({"kind": "PyTorchJob", "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 3}}},
          "status": {"replicaStatuses": {"Worker": {"succeeded": 2, "failed": 1}}}}, 1),
    ],
)  # fmt: skip
def test_the_owner_says_how_large_it_is(thing: dict[str, Any], size: int) -> None:
    assert size_of_object(thing) == size


def test_the_size_in_a_label_must_be_one_number() -> None:
    def sized(*sizes: str) -> list[dict[str, Any]]:
        return [pod(f"p{k}", annotations={"trainmaster.dev/gang-size": size}) for k, size in enumerate(sizes)]

    assert labelled_size(sized("3", "3")) == 3
    for sizes in (("3", "4"), ("",), ("-1",), ("many",), ("0",), ("1000000",)):
        with pytest.raises(InputError, match="gang-size"):
            labelled_size(sized(*sizes))


def test_the_job_of_a_gang() -> None:
    small = pod("b", JOB)
    small["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1", "cpu": "3"}}
    spec = gang_spec(GangFacts(gang_key(small), 2, (pod("a", JOB), small)), 1_700_000_000_000)
    assert (spec.workers_min, spec.workers_max) == (2, 2)
    assert (spec.worker.gpu_milli, spec.worker.cpu_milli, spec.worker.mem_mib) == (2000, 3000, 1024)
    assert spec.entity == "team" and spec.submit_ms == 120_000
    assert not spec.preemptible and not spec.leased
    assert spec.id.startswith("team.train.")
    later = pod("c", JOB)
    later["metadata"]["creationTimestamp"] = "2023-11-14T23:00:00Z"
    assert gang_spec(GangFacts(gang_key(later), 1, (later,)), 0).id != spec.id, "a gang that begins anew is another job"


def test_types_and_preemption_are_read_from_the_pods() -> None:
    picky = pod(
        "a", nodeSelector={"nvidia.com/gpu.product": "V100"}, annotations={"trainmaster.dev/preemptible": "true"}
    )
    spec = gang_spec(GangFacts(gang_key(picky), 1, (picky,)), 0)
    assert spec.gpu_types == ("V100",) and spec.preemptible

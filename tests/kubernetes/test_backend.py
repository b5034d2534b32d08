"""The backend contract on a real API server: pods of fake nodes, created, bound, ended and found again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.kubernetes.bench import KubeBench
from support.kubernetes.cluster import KubeCluster
from trainmaster.backends.kubernetes.api import paths
from trainmaster.model import event as ev
from trainmaster.model.allocation import Allocation, Part
from trainmaster.model.command import Launch, Stop
from trainmaster.model.job import JobSpec
from trainmaster.testing.backend_contract import Kind, check_backend


@pytest.fixture(scope="module")
def bench(fake_cluster: KubeCluster) -> Iterator[KubeBench]:
    bench = KubeBench(fake_cluster.kubeconfig, launcher=False, wait_s=30.0)
    yield bench
    bench.close()


def test_contract(bench: KubeBench) -> None:
    assert len(check_backend(bench)) >= 10


def launched(bench: KubeBench, name: str, workers: int = 2, **change: object) -> JobSpec:
    spec = bench.job(name, Kind.ENDLESS, (workers, workers))
    assert spec is not None
    bench.quiet()
    allocation = Allocation(0, (Part(0, workers, 0, tuple(range(workers))),))
    bench.perform(Launch(spec.id, 1, 10_000, allocation, spec))
    return spec


def expect(bench: KubeBench, kind: type, spec: JobSpec) -> ev.Event:
    while True:
        event = bench.next_event()
        if isinstance(event, kind) and getattr(event, "job_id", None) == spec.id:
            return event


def pods_of(bench: KubeBench, spec: JobSpec) -> list[dict]:
    return [
        pod for pod in bench.watch.our_pods() if pod["metadata"]["annotations"]["trainmaster.dev/job-id"] == spec.id
    ]


def test_a_pod_deleted_by_hand_ends_the_gang_and_is_nobodys_fault(bench: KubeBench) -> None:
    spec = launched(bench, "by-hand")
    expect(bench, ev.Started, spec)
    victim = pods_of(bench, spec)[0]["metadata"]
    bench.thread.call(bench.client.delete(paths.pod(victim["namespace"], victim["name"])), 20)
    expect(bench, ev.Stopped, spec)
    assert bench.living(spec.id) == 0


def test_pods_carry_their_labels_and_their_owner(bench: KubeBench) -> None:
    spec = launched(bench, "labels")
    expect(bench, ev.Started, spec)
    pods = sorted(pods_of(bench, spec), key=lambda pod: pod["metadata"]["name"])
    labels = [pod["metadata"]["labels"] for pod in pods]
    assert [label["trainmaster.dev/rank"] for label in labels] == ["0", "1"]
    assert {label["trainmaster.dev/job"] for label in labels} == {spec.name}
    assert {label["trainmaster.dev/generation"] for label in labels} == {"1"}
    assert {pod["metadata"]["ownerReferences"][0]["kind"] for pod in pods} == {"TrainingJob"}
    assert {pod["spec"]["schedulerName"] for pod in pods} == {"trainmaster"}
    assert {pod["spec"]["nodeName"] for pod in pods} == {bench.cluster.nodes[0].id}
    bench.perform(Stop(spec.id, 1, 10_001, "checked"))
    expect(bench, ev.Stopped, spec)


def test_what_the_api_server_refuses_is_the_jobs_fault_and_says_why(bench: KubeBench) -> None:
    spec = bench.job("refused", Kind.ENDLESS, (2, 2))
    assert spec is not None
    job = bench.jobs[bench.namespace, spec.name]
    job["spec"]["template"]["spec"]["containers"][0]["volumeMounts"][0]["name"] = "no-such-volume"
    allocation = Allocation(0, (Part(0, 2, 0, (0, 1)),))
    bench.perform(Launch(spec.id, 1, 10_002, allocation, spec))
    failed = expect(bench, ev.StartFailed, spec)
    assert isinstance(failed, ev.StartFailed)
    assert failed.node is None
    assert "no-such-volume" in failed.why
    assert pods_of(bench, spec) == []


def test_room_taken_by_others_is_told_and_given_back(bench: KubeBench) -> None:
    node = bench.cluster.nodes[1].id
    bench.quiet()
    pod = {
        "metadata": {"name": "foreigner"},
        "spec": {
            "nodeName": node,
            "tolerations": [{"operator": "Exists"}],
            "containers": [
                {"name": "c", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "3", "cpu": "500m"}}}
            ],
        },
    }
    bench.thread.call(bench.client.create(paths.pods("default"), pod), 20)
    used = [event for event in bench.quiet() if isinstance(event, ev.NodeUsed)]
    assert used
    assert used[-1] == ev.NodeUsed(1, 3, 500, 0)
    bench.thread.call(bench.client.delete(paths.pod("default", "foreigner"), grace_s=0), 20)
    used = [event for event in bench.quiet() if isinstance(event, ev.NodeUsed)]
    assert used
    assert used[-1] == ev.NodeUsed(1, 0, 0, 0)


def test_a_cordon_closes_a_node_and_a_lost_node_is_told(bench: KubeBench) -> None:
    index, node = 2, bench.cluster.nodes[2]
    bench.quiet()
    path = paths.core("nodes", None, node.id)
    bench.thread.call(bench.client.patch(path, {"spec": {"unschedulable": True}}), 20)
    used = [event for event in bench.quiet() if isinstance(event, ev.NodeUsed)]
    assert used[-1].gpus == node.gpus
    bench.thread.call(bench.client.patch(path, {"spec": {"unschedulable": False}}), 20)
    used = [event for event in bench.quiet() if isinstance(event, ev.NodeUsed)]
    assert used[-1] == ev.NodeUsed(index, 0, 0, 0)


def test_a_pod_that_only_says_that_it_is_ours_changes_nothing(bench: KubeBench) -> None:
    spec = launched(bench, "spoofed", workers=1)
    expect(bench, ev.Started, spec)
    (real,) = pods_of(bench, spec)
    meta = real["metadata"]
    annotations = {**meta["annotations"], "trainmaster.dev/fake-run": "1s", "trainmaster.dev/fake-exit": "7"}
    impostors = (("other-space", {"ownerReferences": meta["ownerReferences"]}), (bench.namespace, {}))
    resources = {"limits": {"nvidia.com/gpu": "1"}}
    container = {"name": "trainer", "image": "registry.local/pause:1", "resources": resources}
    for name, more in impostors:
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        if name != bench.namespace:
            bench.thread.call(bench.client.create(paths.core("namespaces"), space), 20)
        body = {
            "metadata": {"name": "impostor", "labels": meta["labels"], "annotations": annotations, **more},
            "spec": {
                "containers": [container], "restartPolicy": "Never", "nodeName": real["spec"]["nodeName"],
                "tolerations": [{"operator": "Exists"}],
            },
        }  # fmt: skip
        bench.thread.call(bench.client.create(paths.pods(name), body), 20)
    events = bench.quiet()
    assert not [event for event in events if isinstance(event, ev.Exited | ev.Stopped | ev.StartFailed)]
    assert [event for event in events if isinstance(event, ev.NodeUsed) and event.gpus], "they take room like any other"
    bench.perform(Stop(spec.id, 1, 10_001, "over"))
    expect(bench, ev.Stopped, spec)

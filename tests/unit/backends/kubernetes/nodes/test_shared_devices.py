"""Nodes whose device plugin offers each GPU several times: real GPUs count; two jobs meet only where there is one."""

from typing import Any

import numpy as np
import pytest

from trainmaster.backends.kubernetes.nodes.cluster_model import devices_of, merged, read_node, unavailable
from trainmaster.backends.kubernetes.nodes.fit import lack, room_for
from trainmaster.model.cluster import cluster_of
from trainmaster.testing.builders import a_job, a_view

GPU = "nvidia.com/gpu"


def node(offered: int, **labels: object) -> dict[str, Any]:
    named = {f"{GPU}.{name}": str(value) for name, value in labels.items()}
    allocatable = {GPU: str(offered), "cpu": "32", "memory": "64Gi", "pods": "110"}
    ready = [{"type": "Ready", "status": "True"}]
    return {"metadata": {"name": "n1", "labels": named}, "status": {"allocatable": allocatable, "conditions": ready}}


@pytest.mark.parametrize(
    ("offered", "labels", "gpus", "jobs_per_device"),
    [
        (4, {}, 4, 1), (4, {"count": 4, "replicas": 1}, 4, 1),
        (4, {"count": 1, "replicas": 4}, 1, 4), (2, {"replicas": 2}, 1, 2),
        (3, {"count": 1}, 1, 3),  # more than there are: an older plugin does not say why
        (8, {"count": 4, "replicas": 2}, 4, 1),  # whose of the four a pod gets, nobody can tell
        (8, {"count": 3}, 8, 1), (7, {"replicas": 2}, 7, 1), (4, {"count": "x", "replicas": "-2"}, 4, 1),
    ],
)  # fmt: skip
def test_real_gpus_count(offered: int, labels: dict[str, object], gpus: int, jobs_per_device: int) -> None:
    found = read_node(node(offered, **labels)).node
    assert (found.gpus, found.jobs_per_device) == (gpus, jobs_per_device)
    assert devices_of({}, offered, GPU) == (offered, 1)


def test_labels_that_come_after_the_devices_withhold_what_was_listed_too_much() -> None:
    before, now = read_node(node(4)), read_node(node(4, count=1, replicas=4))
    listed = merged(before.node, now.node)
    assert (listed.gpus, listed.jobs_per_device) == (4, 4)
    assert unavailable(now, listed, (0, 0, 0))[0] == 3
    assert unavailable(now, listed, (1, 0, 0))[0] == 4, "a pod of others on the GPU leaves none that is known"


def test_a_gang_larger_than_the_real_gpus_never_fits() -> None:
    nodes = [node(4, count=1, replicas=4)]
    assert not lack(a_job("a", gpus=1), room_for(a_job("a", gpus=1), {}, nodes))
    assert lack(a_job("a", gpus=2), room_for(a_job("a", gpus=2), {}, nodes))


@pytest.mark.parametrize(("labels", "met"), [({"count": 1, "replicas": 4}, True), ({"count": 1}, False)])
def test_policies_pair_jobs_only_where_the_plugin_lets_two_in(labels: dict[str, object], met: bool) -> None:
    offered = 4 if met else 1
    cluster = cluster_of([read_node(node(offered, product="T4", **labels)).node])
    jobs = [a_job("a", speeds={"T4": 1.0}), a_job("b", speeds={"T4": 1.0})]
    view = a_view(jobs, cluster, pair_source=lambda *_: np.array([[0.9, 0.9]]))
    speeds = view.pair_speeds(0, 1)
    assert speeds is not None and (speeds > 0).all() == met
    draft = view.draft()
    assert draft.place(0)
    assert draft.place_beside(1, 0) == met

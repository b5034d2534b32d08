"""What the backend is told of nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from trainmaster.backends.kubernetes.api.reflector import ADDED, DELETED, MODIFIED
from trainmaster.backends.kubernetes.nodes import cluster_watch
from trainmaster.backends.kubernetes.nodes.cluster_watch import ClusterWatch
from trainmaster.model.cluster import Cluster


class Heard:
    """A listener that writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.renewing: frozenset[str] = frozenset()

    def heard_nodes(self) -> frozenset[str]:
        return self.renewing

    def nodes_unready(self, nodes: Iterable[str]) -> None:
        self.told.append(("unready", *nodes))

    def pod_changed(self, pod: dict[str, Any], gone: bool) -> None:
        self.told.append(("pod", pod["metadata"]["name"], gone))

    def node_lost(self, node: str, index: int) -> None:
        self.told.append(("lost", node))

    def node_ready(self, node: str, index: int) -> None:
        self.told.append(("ready", node))

    def node_used(self, index: int, amounts: tuple[int, int, int]) -> None:
        self.told.append(("used", index, amounts[0]))


def _node(ready: bool) -> dict[str, Any]:
    amounts = {"nvidia.com/gpu": "8", "cpu": "32", "memory": "64Gi", "pods": "110"}
    conditions = [{"type": "Ready", "status": "True" if ready else "Unknown"}]
    return {
        "metadata": {"name": "n0", "uid": "u", "labels": {"nvidia.com/gpu.product": "V"}},
        "spec": {},
        "status": {"allocatable": amounts, "capacity": amounts, "conditions": conditions},
    }


async def _watch() -> tuple[ClusterWatch, Heard]:
    watch, heard = ClusterWatch(None), Heard()  # type: ignore[arg-type]
    watch._node_changed(ADDED, _node(True), None)
    watch.list_nodes(Cluster(watch.present(), {}))
    watch.listener = heard
    watch.tell_all()
    await asyncio.sleep(2 * cluster_watch.FLUSH_S)
    assert heard.told == [("ready", "n0"), ("used", 0, 0)]
    heard.told.clear()
    return watch, heard


def test_a_silent_node_gets_nothing_new_until_it_was_lost_and_is_back() -> None:
    async def story() -> list[tuple[Any, ...]]:
        watch, heard = await _watch()
        watch.distrust("n0")
        assert heard.told == [("used", 0, 8)], "at once: the job is about to be started elsewhere"
        for ready in (False, True):
            watch._node_changed(MODIFIED, _node(ready), _node(not ready))
            await asyncio.sleep(2 * cluster_watch.FLUSH_S)
        return heard.told[1:]

    assert asyncio.run(story()) == [("lost", "n0"), ("ready", "n0"), ("used", 0, 0)]


def test_a_silent_node_is_trusted_again_when_its_kubelet_speaks() -> None:
    def pod(node: str, ran: bool) -> dict[str, Any]:
        statuses = [{"name": "main", "state": {"terminated" if ran else "running": {}}}]
        meta = {"name": "p", "namespace": "default", "uid": "u", "resourceVersion": "1"}
        spec = {"nodeName": node, "containers": [{"name": "main"}]}
        return {"metadata": meta, "spec": spec, "status": {"phase": "Running", "containerStatuses": statuses}}

    async def story(node: str, ran: bool) -> list[tuple[Any, ...]]:
        watch, heard = await _watch()
        watch.distrust("n0")
        watch._pod_changed(MODIFIED, pod(node, ran), pod(node, False))
        await asyncio.sleep(3 * cluster_watch.FLUSH_S)
        return heard.told[1:]

    assert asyncio.run(story("n0", True)) == [("used", 0, 0)]
    assert asyncio.run(story("n1", True)) == [], "another node's"
    assert asyncio.run(story("n0", False)) == [], "a deletion, for instance, is not the kubelet's word"


def test_a_node_that_the_cluster_never_calls_lost_is_trusted_again(monkeypatch: Any) -> None:
    monkeypatch.setattr(cluster_watch, "DISTRUST_S", 0.05)

    async def story() -> list[tuple[Any, ...]]:
        watch, heard = await _watch()
        watch.distrust("n0")
        await asyncio.sleep(0.05 + 3 * cluster_watch.FLUSH_S)
        return heard.told

    assert asyncio.run(story()) == [("used", 0, 8), ("used", 0, 0)]


def _become(watch: ClusterWatch, ready: bool) -> None:
    watch._node_changed(MODIFIED, _node(ready), _node(not ready))


def test_a_node_whose_kubelet_is_silent_is_there_while_its_trainers_are_heard(monkeypatch: Any) -> None:
    monkeypatch.setattr(cluster_watch, "HEARD_EVERY_S", 0.05)

    async def story() -> list[tuple[Any, ...]]:
        watch, heard = await _watch()
        heard.renewing = frozenset({"n0"})
        _become(watch, False)
        await asyncio.sleep(6 * cluster_watch.FLUSH_S)
        assert heard.told == [("unready", "n0"), ("used", 0, 8)], "it gets nothing new, and what runs there goes on"
        assert watch.ready_indices() == {0}
        heard.renewing = frozenset()
        await asyncio.sleep(6 * cluster_watch.FLUSH_S)
        assert heard.told[2:] == [("lost", "n0"), ("used", 0, 0)]
        heard.renewing = frozenset({"n0"})
        await asyncio.sleep(6 * cluster_watch.FLUSH_S)
        assert len(heard.told) == 4, "given up once: whoever speaks there is not renewed"
        _become(watch, True)
        await asyncio.sleep(2 * cluster_watch.FLUSH_S)
        return heard.told[4:]

    assert asyncio.run(story()) == [("ready", "n0")]


def test_a_kubelet_that_was_silent_for_a_while_changes_nothing() -> None:
    async def story() -> list[tuple[Any, ...]]:
        watch, heard = await _watch()
        heard.renewing = frozenset({"n0"})
        for ready in (False, True):
            _become(watch, ready)
            await asyncio.sleep(2 * cluster_watch.FLUSH_S)
        return heard.told

    assert asyncio.run(story()) == [("unready", "n0"), ("used", 0, 8), ("used", 0, 0)]


def test_a_new_leader_believes_trainers_before_the_cluster() -> None:
    async def story() -> list[tuple[Any, ...]]:
        watch, heard = await _watch()
        _become(watch, False)
        await asyncio.sleep(2 * cluster_watch.FLUSH_S)
        heard.told.clear()
        heard.renewing = frozenset({"n0"})
        watch.tell_all()
        await asyncio.sleep(2 * cluster_watch.FLUSH_S)
        return heard.told

    assert asyncio.run(story()) == [("unready", "n0"), ("ready", "n0"), ("used", 0, 8)]


def test_a_new_leader_is_told_of_nodes_of_which_nothing_is_withheld() -> None:
    """The engine that it takes over may have learned otherwise, and would withhold the node for good."""

    async def story() -> list[tuple[Any, ...]]:
        watch, heard = await _watch()
        watch.distrust("n0")
        watch.listener = None  # leadership was lost, and is won again later
        watch._trust("n0")
        await asyncio.sleep(2 * cluster_watch.FLUSH_S)
        watch.listener = heard
        watch.tell_all()
        await asyncio.sleep(2 * cluster_watch.FLUSH_S)
        return heard.told

    assert asyncio.run(story()) == [("used", 0, 8), ("ready", "n0"), ("used", 0, 0)]


def test_a_pod_that_was_ours_stays_ours_whatever_is_taken_off_it() -> None:
    """`kubectl delete --cascade=orphan` takes off the owner, anybody a label: the run waits for its end still."""

    def pod(version: str, **meta: Any) -> dict[str, Any]:
        owner = {"kind": "TrainingJob", "uid": "uid-j"}
        labels = {"trainmaster.dev/job": "j", "trainmaster.dev/generation": "1"}
        full = {
            "name": "p", "namespace": "a", "uid": "u", "resourceVersion": version, "ownerReferences": [owner],
            "labels": labels, "annotations": {"trainmaster.dev/job-id": "a.j.uidj"},
        }  # fmt: skip
        return {"metadata": {**full, **meta}, "spec": {"nodeName": "n0", "containers": [{"name": "m"}]}, "status": {}}

    async def story() -> list[tuple[Any, ...]]:
        watch, heard = await _watch()
        watch.pods._take(ADDED, pod("1"))
        watch.pods._take(MODIFIED, pod("2", ownerReferences=[]))
        watch.pods._take(MODIFIED, pod("3", labels={}))
        watch.pods._take(DELETED, pod("9", ownerReferences=[]))
        watch.pods._take(ADDED, pod("10", uid="other", ownerReferences=[]))
        return heard.told

    told = asyncio.run(story())
    assert told == [("pod", "p", False), ("pod", "p", False), ("pod", "p", False), ("pod", "p", True)]

"""Gangs of other controllers from their first pod to their last, under one leader and the next."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from trainmaster.backends.kubernetes.attempts.pod_writer import Refused
from trainmaster.backends.kubernetes.gangs import gang_scheduler
from trainmaster.backends.kubernetes.gangs.gang_scheduler import GangRuns
from trainmaster.model import event as ev
from trainmaster.model.allocation import Allocation, Part
from trainmaster.model.command import Launch, Stop
from trainmaster.model.job import JobSpec

Object = dict[str, Any]
SETTLE_S = 0.01


class Cluster:
    """A batch Job and its pods; binds and deletes by telling of it."""

    def __init__(self, parallelism: int, completions: int) -> None:
        self.job: Object = {"kind": "Job", "spec": {"parallelism": parallelism, "completions": completions}}
        self.pods: dict[str, Object] = {}
        self.deleted: list[str] = []
        self.refuses: set[str] = set()
        self.runs: GangRuns | None = None

    async def get(self, _path: str) -> Object:
        return self.job

    async def bind(self, _namespace: str, pods: list[tuple[str, str]]) -> None:
        bound = [name for name, _ in pods if name not in self.refuses]
        for name in bound:
            self.change(name, node=dict(pods)[name])
        if len(bound) < len(pods):
            refused = Refused("a webhook refuses")
            refused.done = [name if name in bound else None for name, _ in pods]
            raise refused

    async def delete(self, _namespace: str, pods: list[tuple[str, str]], _grace_s: int | None) -> None:
        for name, _ in pods:
            self.deleted.append(name)
            self.change(name, deletionTimestamp="now")

    def change(self, name: str, phase: str | None = None, node: str | None = None, **meta: str) -> None:
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": True}
        before = self.pods.get(name) or {
            "metadata": {
                "name": name, "namespace": "team", "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z",
                "ownerReferences": [owner],
            },
            "spec": {"schedulerName": "trainmaster", "containers": [{"name": "m"}]}, "status": {"phase": "Pending"},
        }  # fmt: skip
        self.pods[name] = {
            "metadata": {**before["metadata"], **meta},
            "spec": {**before["spec"], **({} if node is None else {"nodeName": node})},
            "status": {"phase": phase or before["status"]["phase"]},
        }
        if self.runs is not None:
            self.runs.pod_changed(self.pods[name], gone=False)

    def vanish(self, name: str) -> None:
        assert self.runs is not None
        self.runs.pod_changed(self.pods.pop(name), gone=True)


class Leader:
    def __init__(self, cluster: Cluster, active: list[JobSpec], expected: list[Launch]) -> None:
        self.told: list[ev.Event] = []
        self.runs = GangRuns(cluster, self.told.append, lambda: 0, 0, lambda index: f"n{index}")  # type: ignore[arg-type]
        self.runs._writer = cluster  # type: ignore[assignment]
        cluster.runs = self.runs
        self.runs.start(list(cluster.pods.values()), active, expected)

    async def hear(self) -> list[ev.Event]:
        """What it says of the next moments."""
        await asyncio.sleep(10 * SETTLE_S)
        told, self.told[:] = list(self.told), []
        return told

    async def submitted(self) -> JobSpec:
        (event,) = await self.hear()
        assert isinstance(event, ev.JobSubmitted)
        return event.spec


def launch(spec: JobSpec, generation: int = 1) -> Launch:
    parts = tuple(Part(k, 1, 0, ()) for k in range(spec.workers_min))
    return Launch(spec.id, generation, 10 * generation, Allocation(0, parts), spec)


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GangRuns._look, "__defaults__", (SETTLE_S,))
    for name in ("OVER_S", "UNTOLD_S"):
        monkeypatch.setattr(gang_scheduler, name, SETTLE_S)


def play(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


async def _launched(cluster: Cluster) -> tuple[Leader, JobSpec]:
    """Two pods are a gang that was launched; no event has come of it."""
    leader = Leader(cluster, [], [])
    for name in ("p0", "p1"):
        cluster.change(name)
    spec = await leader.submitted()
    leader.runs.take(launch(spec))
    assert await leader.hear() == []
    return leader, spec


async def _bound(cluster: Cluster) -> JobSpec:
    """Two pods have their nodes; nobody has said that they run."""
    leader, spec = await _launched(cluster)
    assert [pod["spec"]["nodeName"] for pod in cluster.pods.values()] == ["n0", "n1"]
    leader.runs.halt()
    return spec


def test_a_new_leader_goes_on_with_a_gang_that_is_starting() -> None:
    async def story() -> None:
        cluster = Cluster(2, 2)
        spec = await _bound(cluster)
        leader = Leader(cluster, [spec], [])
        leader.runs.take(launch(spec))  # it had no answer, so it is said again
        assert await leader.hear() == [], "its pods have their nodes: nothing failed"
        assert [entry.starting for entry in leader.runs.observed()] == [True]
        for name in cluster.pods:
            cluster.change(name, "Running")
        assert await leader.hear() == [ev.Started(spec.id, 1, 0.0, 0)]

    play(story())


def test_a_new_leader_ends_a_gang_that_is_being_stopped_before_it_says_so() -> None:
    async def story() -> None:
        cluster = Cluster(2, 2)
        spec = await _bound(cluster)
        for name in cluster.pods:
            cluster.change(name, "Running")
        leader = Leader(cluster, [spec], [])
        leader.runs.take(Stop(spec.id, 1, 20, "preempted"))
        assert await leader.hear() == []
        assert sorted(cluster.deleted) == ["p0", "p1"]
        assert [entry.generation for entry in leader.runs.observed()] == [1], "it is still there"
        cluster.change("p2")
        cluster.change("p3")
        for name in ("p0", "p1"):
            cluster.vanish(name)
        (event,) = await leader.hear()
        assert isinstance(event, ev.Stopped) and event.generation == 1

    play(story())


def test_an_order_to_stop_an_earlier_incarnation_does_not_stop_this_one() -> None:
    async def story() -> None:
        cluster = Cluster(2, 2)
        spec = await _bound(cluster)
        leader = Leader(cluster, [spec], [launch(spec, 2)])
        leader.runs.take(Stop(spec.id, 1, 30, "superseded"))
        assert await leader.hear() == [] and cluster.deleted == []

    play(story())


def test_pods_that_a_job_makes_again_do_not_wait_for_those_that_are_done() -> None:
    async def story() -> None:
        cluster = Cluster(2, 2)
        leader, spec = await _launched(cluster)
        cluster.change("p0", "Succeeded")
        cluster.change("p1", "Failed")
        assert [type(event) for event in await leader.hear()] == [ev.Started, ev.Exited]
        cluster.job["status"] = {"succeeded": 1}
        cluster.change("p2")  # its controller tries again after a pause
        again = await leader.submitted()
        assert again.workers_min == 1 and again.id != spec.id

    play(story())


def test_a_job_that_wants_fewer_pods_than_before_does_not_wait_for_the_others() -> None:
    async def story() -> None:
        cluster = Cluster(3, 3)
        leader = Leader(cluster, [], [])
        for name in ("p0", "p1"):
            cluster.change(name)
        assert await leader.hear() == []
        cluster.job["spec"]["parallelism"] = 2
        cluster.change("p1", note="a controller's sync")
        assert (await leader.submitted()).workers_min == 2

    play(story())


def test_a_gang_whose_failed_pod_was_made_good_has_finished() -> None:
    async def story() -> None:
        cluster = Cluster(2, 2)
        leader, _ = await _launched(cluster)
        for name in ("p0", "p1"):
            cluster.change(name, "Running")
        await leader.hear()
        cluster.change("p1", "Failed")
        cluster.change("p2")
        await leader.hear()
        assert cluster.pods["p2"]["spec"]["nodeName"] == "n1"
        cluster.change("p0", "Succeeded")
        cluster.change("p2", "Succeeded")
        (event,) = await leader.hear()
        assert isinstance(event, ev.Exited) and event.code == 0

    play(story())


def test_of_a_gang_that_is_refused_only_pods_that_have_a_node_are_deleted() -> None:
    async def story() -> None:
        cluster = Cluster(2, 2)
        leader = Leader(cluster, [], [])
        for name in ("p0", "p1"):
            cluster.change(name)
        spec = await leader.submitted()
        cluster.refuses = {"p1"}
        leader.runs.take(launch(spec))
        assert await leader.hear() == []
        assert cluster.deleted == ["p0"]
        cluster.vanish("p0")
        assert await leader.hear() == [ev.StartFailed(spec.id, 1, "a webhook refuses", 0)], "later, and not at once"
        cluster.change("p2")
        leader.runs.take(launch(spec, 2))
        cluster.refuses = {"p1", "p2"}
        assert await leader.hear() == [ev.StartFailed(spec.id, 2, "a webhook refuses", 0)]
        cluster.refuses = set()
        leader.runs.take(launch(spec, 3))
        assert await leader.hear() == []
        assert {name: pod["spec"]["nodeName"] for name, pod in cluster.pods.items()} == {"p1": "n0", "p2": "n1"}

    play(story())

"""Many gangs are started at once: a few pods at a time, each gang whole, and nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from trainmaster.backends.kubernetes.api.client import ApiError, Forbidden
from trainmaster.backends.kubernetes.attempts import pod_actions, pod_writer, registry
from trainmaster.backends.kubernetes.attempts.pod_actions import PODS_AT_A_TIME
from trainmaster.backends.kubernetes.attempts.pod_writer import PodWriter, Refused
from trainmaster.backends.kubernetes.backend import KubernetesBackend
from trainmaster.backends.kubernetes.launchers.hub import AgentHub
from trainmaster.backends.kubernetes.nodes.cluster_model import Usage
from trainmaster.backends.kubernetes.resources.training_job import spec_of_trainingjob
from trainmaster.backends.kubernetes.set_aside import SetAside
from trainmaster.model import event as ev
from trainmaster.model.allocation import Allocation, Part
from trainmaster.model.cluster import Cluster, Node
from trainmaster.model.command import Launch, Stop
from trainmaster.model.lease import LeaseRule

Object = dict[str, Any]


def training_job(name: str, size: int) -> Object:
    return {
        "metadata": {
            "name": name, "namespace": "a", "uid": f"uid-{name}", "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {"trainmaster.dev/launcher": "false"},
        },
        "spec": {
            "workers": {"min": size, "max": size}, "gpusPerWorker": 1,
            "template": {"spec": {"containers": [{"name": "main", "image": "i"}]}},
        },
    }  # fmt: skip


class Writer:
    """Makes and binds pods a turn of the loop later; notes how many were described and not bound yet."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.pods: list[Object] = []
        self.bound: list[str] = []
        self.most_open = 0

    async def ensure_namespace(self, _namespace: str) -> None: ...

    async def create(self, _namespace: str, bodies: Sequence[Object], _wanted: Any) -> list[Object]:
        self.made += [body["metadata"]["name"] for body in bodies]
        self.most_open = max(self.most_open, len(self.made) - len(self.bound))
        await asyncio.sleep(0)
        made = [{**body, "metadata": {**body["metadata"], "uid": body["metadata"]["name"]}} for body in bodies]
        self.pods += made
        return made

    async def bind(self, _namespace: str, pods: Sequence[tuple[str, str]]) -> None:
        assert {name for name, _ in pods} <= set(self.made)
        await asyncio.sleep(0)
        self.bound += [name for name, _ in pods]

    async def delete(self, *_: Any) -> None:
        await asyncio.sleep(0)


class Client:
    """An API server that keeps pods."""

    def __init__(self) -> None:
        self.pods: dict[str, Object] = {}
        self.deleted: list[str] = []

    async def create(self, path: str, data: Any, **_: Any) -> Object:
        if not path.endswith("/pods"):
            return data
        pod = orjson.loads(data)
        pod["metadata"]["uid"] = pod["metadata"]["name"]
        self.pods[pod["metadata"]["name"]] = pod
        await asyncio.sleep(0)
        return pod

    async def delete(self, path: str, **_: Any) -> None:
        self.deleted.append(path.rpartition("/")[2])


class Story:
    def __init__(self, sizes: Sequence[int], gpus: int = 10_000) -> None:
        self.jobs = {f"j{k:03}": training_job(f"j{k:03}", size) for k, size in enumerate(sizes)}
        self.told: list[ev.Event] = []
        self.writer = Writer()
        cluster = Cluster((Node("n0", "V", gpus),), {})
        watch = SimpleNamespace(
            faults=SetAside(),
            cluster=cluster, is_ready=lambda _: True, our_pods=list, tell_all=lambda: None, index_of=lambda _: 0,
            usage=Usage(),
        )  # fmt: skip
        self.backend = KubernetesBackend(
            None, watch, LeaseRule(), self.told.append, lambda: 0, secret=b"s",  # type: ignore[arg-type]
            hub=AgentHub(b"s", LeaseRule(), lambda: 0), job_of=lambda _, name: self.jobs.get(name),
        )  # fmt: skip
        self.backend._work.writer = self.writer  # type: ignore[assignment]
        self.backend.start()

    def launch(self, name: str, seq: int) -> Launch:
        spec = spec_of_trainingjob(self.jobs[name], 0)
        parts = (Part(0, spec.workers_min, 0, ()),)
        return Launch(spec.id, 1, seq, Allocation(0, parts), spec)

    async def until_idle(self) -> None:
        while self.backend._registry.tasks:
            await asyncio.sleep(0)


def test_gangs_are_described_a_few_at_a_time_and_bound_in_the_order_in_which_they_came() -> None:
    async def run() -> None:
        sizes = [1, 64, 2, 32, 8] * 20
        story = Story(sizes)
        for seq, name in enumerate(story.jobs, 1):
            story.backend.perform(story.launch(name, seq))
        await asyncio.sleep(0)
        await story.until_idle()
        assert len(story.writer.bound) == len(set(story.writer.made)) == sum(sizes)
        assert story.writer.most_open <= PODS_AT_A_TIME + 64
        first = list(dict.fromkeys(name.split("-")[0] for name in story.writer.bound))
        assert first[:5] == ["j000", "j001", "j002", "j003", "j004"]

    asyncio.run(run())


def test_a_launch_that_is_said_again_makes_nothing_twice_and_asks_nobody() -> None:
    async def run() -> None:
        story = Story([3])
        launch = story.launch("j000", 7)
        for _ in range(3):
            story.backend.perform(launch)
            await asyncio.sleep(0)
        await story.until_idle()
        assert len(story.writer.made) == 3
        story.jobs.clear()  # its object is gone: that it is cancelled is said by others
        story.backend.perform(launch)
        await asyncio.sleep(0)
        assert story.told == []
        next(iter(story.backend.runs.values())).attempt.assume_started()
        story.backend.perform(launch)
        await asyncio.sleep(0)
        assert [type(event) for event in story.told] == [ev.Started]

    asyncio.run(run())


def test_a_gang_that_is_stopped_before_its_turn_makes_no_pods() -> None:
    async def run() -> None:
        story = Story([PODS_AT_A_TIME, 5])
        first, second = story.launch("j000", 1), story.launch("j001", 2)
        story.backend.perform(first)
        story.backend.perform(second)
        story.backend.perform(Stop(second.job_id, 1, 3, "cancelled"))
        await asyncio.sleep(0)
        await story.until_idle()
        assert len(story.writer.bound) == PODS_AT_A_TIME
        assert not any(name.startswith("j001") for name in story.writer.made)
        assert [type(event) for event in story.told] == [ev.Stopped]

    asyncio.run(run())


@pytest.mark.parametrize("way", ["gone", "freed", "said to be over"])
def test_devices_that_containers_of_an_ended_attempt_hold_are_waited_for(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine cannot know of them, as when a node comes back on which a sidecar has outlived the lease."""
    monkeypatch.setattr(pod_actions, "ROOM_EVERY_S", 0.001)
    monkeypatch.setattr(registry, "RELEASE_S", 0.05)

    async def run() -> None:
        story = Story([2, 2, 2], gpus=4)
        observer, slow = story.backend._pod_observer, story.backend.slow_starts
        story.backend.perform(story.launch("j000", 1))
        await asyncio.sleep(0)
        await story.until_idle()
        left = [pod for pod in story.writer.pods if pod["metadata"]["name"].startswith("j000")]
        for name, seq in (("j001", 2), ("j002", 3)):  # there is room for one of them
            story.backend.perform(story.launch(name, seq))
        await asyncio.sleep(0.1)
        assert len(story.writer.bound) == 4, "the devices of two pods are not free"
        (why,) = slow.words.values()
        assert "n0" in why
        sandbox = {"type": "PodReadyToStartContainers", "status": "False" if way == "freed" else "True"}
        for pod in left:
            over = {"phase": "Failed", "conditions": [sandbox]}
            observer.pod_changed(pod if way == "gone" else {**pod, "status": over}, gone=way == "gone")
        await story.until_idle()
        assert len(story.writer.bound) == 6

    asyncio.run(asyncio.wait_for(run(), 30))


def test_pods_of_a_gang_that_a_quota_refuses_half_way_are_deleted() -> None:
    class Full(Client):
        async def create(self, path: str, data: Any, **_: Any) -> Object:
            if len(self.pods) == 2:
                raise Forbidden(403, "Forbidden", "exceeded quota: pods=2")
            return await super().create(path, data)

    async def run() -> None:
        story = Story([4])
        client = Full()
        story.backend._work.writer = PodWriter(client)  # type: ignore[arg-type]
        story.backend.perform(story.launch("j000", 1))
        await asyncio.sleep(0)
        await story.until_idle()
        assert len(client.deleted) == 2, "they would hold the quota"
        assert story.told == [], "not over before they are gone"
        for pod in client.pods.values():  # the watch is slower than the answers
            story.backend._pod_observer.pod_changed(pod, gone=False)
            story.backend._pod_observer.pod_changed(pod, gone=True)
        (event,) = story.told
        assert isinstance(event, ev.StartFailed) and event.node == 0 and "exceeded quota" in event.why

    asyncio.run(run())


def test_a_gang_whose_pods_nobody_can_make_can_be_stopped_and_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A webhook that is down answers for the server, with 500, and for ever."""
    monkeypatch.setattr(pod_writer, "AGAIN_S", 0.001)

    class Down(Client):
        async def create(self, path: str, data: Any, **_: Any) -> Object:
            raise ApiError(500, "InternalError", "failed calling webhook")

    async def run(stop: bool) -> list[ev.Event]:
        story = Story([1])
        story.backend._work.writer = PodWriter(Down())  # type: ignore[arg-type]
        launch = story.launch("j000", 1)
        story.backend.perform(launch)
        await asyncio.sleep(0.01)
        assert story.told == [] and story.backend.is_making_pods()
        if stop:
            story.backend.perform(Stop(launch.job_id, 1, 2, "cancelled"))
        await asyncio.wait_for(story.until_idle(), 2.0)
        assert not story.backend.is_making_pods()
        return story.told

    (event,) = asyncio.run(run(stop=True))
    assert isinstance(event, ev.Stopped)
    monkeypatch.setattr(pod_writer, "PATIENCE_S", 0.05)
    (event,) = asyncio.run(run(stop=False))
    assert isinstance(event, ev.StartFailed) and event.node == 0 and "webhook" in event.why


def test_a_pod_that_turns_up_after_it_was_given_up_is_deleted() -> None:
    async def run() -> None:
        story = Story([1])
        client = Client()
        writer = story.backend._work.writer = PodWriter(client)  # type: ignore[arg-type]
        launch = story.launch("j000", 1)

        async def lost(_path: str, body: Object, _wanted: Any) -> Object:
            await client.create("/pods", orjson.dumps(body))
            raise Refused("no answer", node="")

        writer._create = lost  # type: ignore[method-assign]
        story.backend.perform(launch)
        await asyncio.sleep(0)
        await story.until_idle()
        assert [type(event) for event in story.told] == [ev.StartFailed]
        (pod,) = client.pods.values()
        story.backend._pod_observer.pod_changed(pod, gone=False)
        await story.until_idle()
        assert client.deleted == [pod["metadata"]["name"]]

    asyncio.run(run())


def test_a_deletion_that_is_refused_is_asked_for_again_when_the_stop_is() -> None:
    class Guarded(Client):
        refuses = True

        async def delete(self, path: str, **_: Any) -> None:
            if self.refuses:
                raise Forbidden(403, "Forbidden", "denied by a webhook")
            await super().delete(path)

    async def run() -> None:
        story = Story([1])
        client = Guarded()
        story.backend._work.writer = PodWriter(client)  # type: ignore[arg-type]
        launch = story.launch("j000", 1)
        for _ in range(2):
            story.backend.perform(launch)
            await asyncio.sleep(0)
            await story.until_idle()
            story.backend.perform(Stop(launch.job_id, 1, 2, "cancelled"))
            await asyncio.sleep(0)
            await story.until_idle()
            client.refuses = False
        assert client.deleted == ["j000-uidj0-g1-w0"]

    asyncio.run(run())

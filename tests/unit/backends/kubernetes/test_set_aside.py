"""Faults that nobody foresaw, at every handler of the Kubernetes backend: the others are served, operators are told."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from trainmaster.backends.kubernetes.api.reflector import ADDED
from trainmaster.backends.kubernetes.attempts.driver import RunDriver
from trainmaster.backends.kubernetes.attempts.observations import RunKey, run_token
from trainmaster.backends.kubernetes.attempts.registry import AttemptRegistry, PodOptions
from trainmaster.backends.kubernetes.backend import KubernetesBackend
from trainmaster.backends.kubernetes.gangs import gang_scheduler
from trainmaster.backends.kubernetes.gangs.gang_scheduler import Gang, GangRuns
from trainmaster.backends.kubernetes.launchers import hub as hubs
from trainmaster.backends.kubernetes.launchers.hub import AgentHub
from trainmaster.backends.kubernetes.nodes import cluster_watch
from trainmaster.backends.kubernetes.nodes.cluster_watch import ClusterWatch
from trainmaster.backends.kubernetes.resources.template_check import TemplateCheck
from trainmaster.backends.kubernetes.set_aside import SetAside
from trainmaster.gang.protocol import Attach
from trainmaster.model.cluster import Cluster
from trainmaster.model.command import Stop
from trainmaster.model.job import JobId
from trainmaster.model.lease import LeaseRule
from trainmaster.service.kubernetes import gang_status_writer
from trainmaster.service.kubernetes.gang_status_writer import GangStatusWriter
from trainmaster.service.kubernetes.status_writer import StatusWriter


def play(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 20))


def told_to(faults: SetAside) -> list[str]:
    told: list[str] = []
    faults.told = lambda what, error: told.append(f"{what}: {type(error).__name__}")
    return told


def test_a_status_that_cannot_be_written_keeps_no_other_from_it() -> None:
    written: list[str] = []

    class Gateway:
        async def ask(self, request: Any) -> Any:
            return {name: SimpleNamespace(view={"eta_s": None}, name=name) for name in ("odd", "good")}

    class Client:
        async def create(self, *_: Any) -> None:
            raise KeyError("metadata")

    async def story() -> None:
        writer = StatusWriter(Client(), Gateway(), lambda _: None)  # type: ignore[arg-type]
        told = told_to(writer.faults)
        writer.also = lambda job_id, _: written.append(job_id) if job_id == "good" else 1 / 0  # type: ignore[func-returns-value]
        running = asyncio.ensure_future(writer.run())
        for _ in range(2):
            writer.look_at("good")
            await asyncio.sleep(1.0)
        about = {"namespace": "a", "name": "b", "uid": "u", "kind": "TrainingJob", "apiVersion": "v1"}
        writer._object_for = lambda _: {"metadata": about, "kind": "TrainingJob", "apiVersion": "v1"}
        writer._events = [("good", SimpleNamespace(reason="Waiting"))]  # type: ignore[list-item]
        writer._rouse()
        await asyncio.sleep(0.2)
        assert not running.done(), "it goes on"
        assert written == ["good", "good"]
        assert told[:2] == ["status of odd: ZeroDivisionError"] * 2 and "an Event of good" in told[2]
        running.cancel()

    play(story())


def test_what_a_gang_waits_for_cannot_be_told_and_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_status_writer, "LOOK_S", 0.01)

    async def story() -> None:
        keys = {name: SimpleNamespace(text=name) for name in ("odd", "good")}
        gangs = {name: Gang(key, fault="waits", since_s=0.0) for name, key in keys.items()}  # type: ignore[arg-type]
        writer = StatusWriter(None, None, lambda _: None)  # type: ignore[arg-type]
        told, seen = told_to(writer.faults), []
        gang_writer = GangStatusWriter(None, SimpleNamespace(gangs=gangs), writer)  # type: ignore[arg-type]
        gang_writer._soon = lambda gang, *_: seen.append(gang.key.text) if gang.key.text == "good" else 1 / 0  # type: ignore[assignment, func-returns-value]
        running = asyncio.ensure_future(gang_writer.run())
        await asyncio.sleep(0.2)
        assert not running.done() and len(seen) > 1
        assert set(told) == {"what gang odd waits for: ZeroDivisionError"}
        running.cancel()

    play(story())


def test_news_of_a_node_that_cannot_be_taken_hide_no_other() -> None:
    seen: list[str] = []

    class Listener:
        def heard_nodes(self) -> frozenset[str]:
            return frozenset()

        def node_ready(self, node: str, _: int) -> None:
            seen.append(node) if node != "n0" else 1 / 0

        def node_used(self, *_: Any) -> None: ...

    async def story() -> None:
        watch = ClusterWatch(None)  # type: ignore[arg-type]
        told = told_to(watch.faults)
        for name in ("n0", "n1"):
            status = {"allocatable": {"nvidia.com/gpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]}
            node = {"metadata": {"name": name, "uid": name, "labels": {}}, "spec": {}, "status": status}
            watch._node_changed(ADDED, node, None)
        watch.list_nodes(Cluster(watch.present(), {}))
        watch.listener = Listener()  # type: ignore[assignment]
        watch.tell_all()
        await asyncio.sleep(2 * cluster_watch.FLUSH_S)
        assert seen == ["n1"] and told == ["news of node n0: ZeroDivisionError"]

    play(story())


def registry() -> AttemptRegistry:
    watch = SimpleNamespace(faults=SetAside(), usage=SimpleNamespace(resources=()), tell_all=lambda: None)
    hub = AgentHub(b"s", LeaseRule(), lambda: 0)
    return AttemptRegistry(watch, LeaseRule(), hub, b"s", PodOptions(), lambda *_: None)  # type: ignore[arg-type]


def test_an_attempt_that_fails_stops_no_other_and_a_task_is_told_of() -> None:
    async def story() -> None:
        found, advanced = registry(), []
        told = told_to(found.faults)
        for name in ("odd", "good"):
            found.runs[RunKey(name, 1)] = SimpleNamespace(key=RunKey(name, 1))  # type: ignore[assignment]
        driver = RunDriver.__new__(RunDriver)
        driver._registry = found
        driver.advance = lambda run: advanced.append(run.key.job_id) if run.key.job_id == "good" else 1 / 0  # type: ignore[assignment, func-returns-value]
        driver.advance_all()
        assert advanced == ["good"] and told == ["attempt of odd: ZeroDivisionError"]

        async def work() -> None:
            raise RecursionError

        found.spawn(work())
        await asyncio.sleep(0.01)
        assert "RecursionError" in told[1] and not found.tasks

    play(story())


def test_a_command_that_fails_is_told_of() -> None:
    async def story() -> None:
        backend = KubernetesBackend.__new__(KubernetesBackend)
        backend._registry, backend.gangs = registry(), None
        told = told_to(backend._registry.faults)
        backend._commands = SimpleNamespace(take=lambda _: 1 / 0)  # type: ignore[assignment]
        backend._take(Stop(JobId("a"), 1, 1, "why"))
        assert told == ["Stop of a: ZeroDivisionError"]

    play(story())


def test_a_gang_of_others_that_fails_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_scheduler, "SETTLE_S", 0.0)

    async def story() -> None:
        runs = GangRuns(None, lambda _: None, lambda: 0, 0, str)  # type: ignore[arg-type]
        told = told_to(runs.faults)

        async def work() -> None:
            raise KeyError("spec")

        runs._spawn(work())
        await asyncio.sleep(0.01)
        assert len(told) == 1 and "KeyError" in told[0]

    play(story())


def test_a_launcher_whose_word_cannot_be_taken_harms_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attaching, speaking, leaving, and the end of a lease."""
    monkeypatch.setattr(hubs, "LOOK_EVERY_S", 0.02)
    now_ms = [0]

    class Listener:
        def __init__(self) -> None:
            self.seen: list[tuple[str, str]] = []

        def __getattr__(self, what: str) -> Any:
            def hear(key: RunKey, member: str, *_: Any) -> None:
                self.seen.append((what, member))
                if member == "worker-0":
                    raise ZeroDivisionError

            return hear

    class Line:
        owner: Any = None
        remote_host = "10.0.0.1"

        def send(self, *_: Any) -> None: ...

        def close(self) -> None: ...

    async def story() -> None:
        listener, faults, key = Listener(), SetAside(), RunKey("j", 1)
        told = told_to(faults)
        hub = AgentHub(b"s", LeaseRule(), lambda: now_ms[0], listener, faults=faults)  # type: ignore[arg-type]
        await hub.listen("127.0.0.1", 0)
        members = [f"worker-{k}" for k in range(2)]
        hub.open(SimpleNamespace(key=key, token=run_token(b"s", key)))  # type: ignore[arg-type]
        for member in members:
            hub.admit(key, member)
        lines = {member: Line() for member in members}
        for member, line in lines.items():
            attach = Attach(run_token(b"s", key), "j", 1, member, f"boot-{member}", "", False)
            hub.heard(line, attach)  # type: ignore[arg-type]
            hub.heard(line, hubs.Began(1))  # type: ignore[arg-type]
            hub.gone(line)  # type: ignore[arg-type]
        now_ms[0] = 10**9
        await asyncio.sleep(0.2)
        expected = [("attached", m) for m in members] + [("said", m) for m in members]
        expected += [(what, m) for what in ("detached", "lapsed") for m in members]
        assert sorted(listener.seen) == sorted(expected), listener.seen
        assert len(told) == 4 and all("worker-0 of j: ZeroDivisionError" in text for text in told)
        await hub.close()

    play(story())


def test_a_template_that_cannot_be_asked_about_is_refused() -> None:
    class Client:
        async def request(self, *_: Any, **__: Any) -> Any:
            return {"spec": {"containers": [{}]}}  # no name

    async def story() -> None:
        check = TemplateCheck(Client())  # type: ignore[arg-type]
        job = {"metadata": {"namespace": "a", "name": "b"}, "spec": {"template": {"spec": {}}}}
        assert not check.known(job)
        await asyncio.sleep(0.01)
        assert check.known(job) and "KeyError" in str(check.fault(job))

    play(story())

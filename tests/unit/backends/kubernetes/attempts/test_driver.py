"""What the backend makes of what launchers say, and of what they do not say any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from trainmaster.backends.kubernetes.attempts import slow_starts
from trainmaster.backends.kubernetes.attempts.pod_attempt import Member, Run
from trainmaster.backends.kubernetes.attempts.pod_writer import Refused as Refusal
from trainmaster.backends.kubernetes.attempts.reports import PATIENCE
from trainmaster.backends.kubernetes.backend import KubernetesBackend, PodOptions
from trainmaster.backends.kubernetes.launchers.hub import AgentHub
from trainmaster.backends.kubernetes.nodes.cluster_model import Usage
from trainmaster.backends.kubernetes.resources.training_job import spec_of_trainingjob
from trainmaster.backends.kubernetes.set_aside import SetAside
from trainmaster.gang.protocol import Attach, Began, Begin, Ended, Hello, Joined, Membership, Message, Peer, Refused
from trainmaster.model import event as ev
from trainmaster.model.allocation import Allocation, Part
from trainmaster.model.cluster import Cluster, Node
from trainmaster.model.command import Launch, Resize, Stop
from trainmaster.model.job import JobId
from trainmaster.model.lease import LeaseRule

Object = dict[str, Any]
JOB: Object = {
    "metadata": {"name": "j", "namespace": "a", "uid": "uid-j", "creationTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {
        "workers": {"min": 2, "max": 2}, "gpusPerWorker": 1,
        "template": {"spec": {"containers": [{"name": "main", "image": "i", "command": ["train"]}]}},
    },
}  # fmt: skip


class Writer:
    """Makes pods and binds them; notes what it deleted."""

    def __init__(self) -> None:
        self.made: list[Object] = []
        self.deleted: list[str] = []

    async def ensure_namespace(self, _namespace: str) -> None: ...

    async def create(self, _namespace: str, bodies: list[Object], _wanted: Any) -> list[Object]:
        made = [{**body, "metadata": {**body["metadata"], "uid": body["metadata"]["name"]}} for body in bodies]
        self.made += made
        return made

    async def bind(self, _namespace: str, pods: list[tuple[str, str]]) -> None:
        nodes = dict(pods)
        for pod in self.made:
            pod["spec"]["nodeName"] = nodes.get(pod["metadata"]["name"], pod["spec"].get("nodeName"))

    async def delete(self, _namespace: str, pods: list[tuple[str, str]], _grace_s: int | None) -> None:
        self.deleted += [name for name, _ in pods]


class Line:
    """A launcher's connection."""

    remote_host = "10.0.0.1"

    def __init__(self) -> None:
        self.owner: object | None = None
        self.heard: list[Message] = []

    def send(self, message: Message) -> None:
        self.heard.append(message)

    def close(self) -> None: ...


class Story:
    """A gang of two whose pods are bound to two nodes."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.told: list[ev.Event] = []
        self.unready: set[str] = set()
        self.writer = Writer()
        watch = SimpleNamespace(
            faults=SetAside(),
            cluster=Cluster((Node("n0", "V", 8), Node("n1", "V", 8)), {}), tell_all=lambda: None, our_pods=list,
            is_ready=lambda name: name not in self.unready, ready_indices=frozenset,
            index_of={"n0": 0, "n1": 1}.get, distrust=lambda _: None, usage=Usage(),
        )  # fmt: skip
        self.hub = AgentHub(b"s", LeaseRule(), lambda: self.now_ms, self)  # type: ignore[arg-type]
        self.backend = KubernetesBackend(
            None, watch, LeaseRule(), self.told.append, lambda: self.now_ms, secret=b"s", hub=self.hub,  # type: ignore[arg-type]
            job_of=lambda _, name: JOB if name == "j" else None,
        )  # fmt: skip
        self.backend._work.writer = self.writer  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend.launcher_words, name)  # what the hub tells

    async def begin(self) -> Run:
        self.backend.start()
        await self.launch()
        (run,) = self.backend.runs.values()
        return run

    async def launch(self) -> None:
        spec = spec_of_trainingjob(JOB, 0)
        parts = (Part(0, 1, 0, ()), Part(1, 1, 0, ()))
        self.backend.perform(Launch(spec.id, 1, 1, Allocation(0, parts), spec))
        await self.until_idle()

    async def until_idle(self) -> None:
        await asyncio.sleep(0)
        while self.backend._registry.tasks:
            await asyncio.sleep(0)

    def attach(self, run: Run, name: str, begun: bool = False) -> Line:
        line = Line()
        self.hub._attach(line, Attach(run.facts.token, run.key.job_id, 1, name, f"boot-{name}", "", begun))  # type: ignore[arg-type]
        return line

    def say(self, line: Line, message: Message) -> None:
        self.hub.heard(line, message)  # type: ignore[arg-type]

    def see(
        self,
        member: Member,
        *,
        gone: bool = False,
        running: bool = True,
        code: int | None = None,
        message: str = "",
        **meta: str,
    ) -> None:
        (pod,) = [pod for pod in self.writer.made if pod["metadata"]["name"] == member.pod_name]
        state: Object = {"running": {}} if running else {"waiting": {}}
        if code is not None:
            state = {"terminated": {"exitCode": code, "message": message}}
        phase = "Running" if code is None else "Failed" if code else "Succeeded"
        status = {"phase": phase, "containerStatuses": [{"name": "main", "state": state}]}
        self.backend._pod_observer.pod_changed({**pod, "metadata": {**pod["metadata"], **meta}, "status": status}, gone)

    def run_all(self, run: Run) -> list[Line]:
        """Launchers attach, and start the command when they are told to."""
        lines = []
        for member in [member for member in run.members.values() if member.alive]:
            self.see(member)
            lines.append(self.attach(run, member.name))
        for line in lines:
            assert isinstance(line.heard[-1], Begin)
            self.say(line, Began(1))
        return lines


def _told(work: Callable[[Story, Run], Coroutine[Any, Any, None]]) -> list[ev.Event]:
    async def all_of_it() -> list[ev.Event]:
        story = Story()
        await work(story, await story.begin())
        await story.until_idle()
        return story.told

    return asyncio.run(all_of_it())


def test_a_launcher_that_did_not_begin_has_ended_when_it_says_so_after_its_pod_vanished() -> None:
    async def work(story: Story, run: Run) -> None:
        first, second = run.members.values()
        line = story.attach(run, first.name)
        story.see(first, gone=True)
        assert first.alive, "it may hold a lease"
        story.say(line, Ended(78, "it is no longer wanted", False))
        assert not first.alive
        story.see(second, gone=True)

    assert [type(event) for event in _told(work)] == [ev.Stopped], "nobody's fault"


def test_a_launcher_that_did_not_begin_has_ended_when_it_says_so_where_no_kubelet_speaks() -> None:
    async def work(story: Story, run: Run) -> None:
        first, second = run.members.values()
        lines = [story.attach(run, member.name) for member in (first, second)]
        for member in (first, second):
            story.see(member)
        story.unready = {"n0", "n1"}
        story.backend.perform(Stop(JobId(run.key.job_id), 1, 2, "cancelled"))
        await story.until_idle()
        for line in lines:
            story.say(line, Ended(78, "cancelled", False))

    assert [type(event) for event in _told(work)] == [ev.Stopped]


def test_a_gang_that_cannot_begin_does_not_wait_for_a_kubelet_that_is_silent() -> None:
    async def work(story: Story, run: Run) -> None:
        first, second = run.members.values()
        line = story.attach(run, first.name)
        story.see(first)
        story.see(second, running=False)
        story.unready = {"n1"}  # where trainers of another job renew: the node is not lost
        await story.launch()  # said again, as there was no answer
        assert story.writer.deleted == [first.pod_name, second.pod_name]
        story.say(line, Ended(78, "node n1 is not ready", False))
        assert story.told == [], "the first one's pod is there, and its kubelet tells when it has ended"
        story.see(first, gone=True)
        again = story.attach(run, second.name)
        assert isinstance(again.heard[0], Refused), "whoever comes late may not begin"

    assert [type(event) for event in _told(work)] == [ev.Stopped], "nobody's fault"


def test_a_gang_whose_members_have_all_attached_waits_for_none_of_its_kubelets() -> None:
    async def work(story: Story, run: Run) -> None:
        for member in run.members.values():
            story.attach(run, member.name)
        story.unready = {"n1"}
        await story.launch()
        assert run.attempt.outcome is None

    assert _told(work) == []


def _taken_over(elastic: bool) -> tuple[Story, Launch]:
    """A new leader, and an attempt that the one before has answered for, of which no pod is there any more."""
    story = Story()
    job = {**JOB, "spec": {**JOB["spec"], "workers": {"min": 1, "max": 2}}} if elastic else JOB
    story.backend._registry.job_of = lambda *_: job
    spec = spec_of_trainingjob(job, 0)
    parts = (Part(0, 1, 0, ()), Part(1, 1, 0, ()))
    return story, Launch(spec.id, 1, 1, Allocation(0, parts), spec)


@pytest.mark.parametrize("elastic", [False, True])
def test_a_run_whose_pods_all_vanished_while_nobody_led_ends_when_their_leases_have(elastic: bool) -> None:
    async def all_of_it() -> None:
        story, launch = _taken_over(elastic)
        story.backend.start([launch])
        await story.until_idle()
        assert story.told == [], "trainers may live on under the lease that the last leader gave them"
        for name in ("worker-0", "worker-1"):
            (run,) = story.backend.runs.values()
            line = story.attach(run, name)
            assert isinstance(line.heard[0], Refused)
            story.hub._lapse(story.hub._runs[run.key].trainers[name])
        await story.until_idle()
        assert [type(event) for event in story.told] == [ev.Stopped]

    asyncio.run(all_of_it())


def test_a_run_whose_pods_all_vanished_while_nobody_led_is_over_where_no_lease_runs() -> None:
    async def all_of_it() -> None:
        story, launch = _taken_over(elastic=False)
        job = {**JOB, "metadata": {**JOB["metadata"], "annotations": {"trainmaster.dev/launcher": "false"}}}
        story.backend._registry.job_of = lambda *_: job
        story.unready = {"n1"}
        story.backend.start([launch])
        await story.until_idle()
        assert story.told == [], "nobody can tell of the member on the node that is not ready"
        story.unready = set()
        story.backend._pod_observer.node_ready("n1", 1)
        await story.until_idle()
        assert [type(event) for event in story.told] == [ev.NodeJoined, ev.Stopped]

    asyncio.run(all_of_it())


@pytest.mark.parametrize("workers", [1, 3])
def test_a_resize_that_the_last_leader_had_half_done_is_carried_on(workers: int) -> None:
    async def all_of_it() -> None:
        before, launch = _taken_over(elastic=True)
        before.backend.start()
        before.backend.perform(launch)
        await before.until_idle()
        first, second = before.writer.made
        second["metadata"]["annotations"]["trainmaster.dev/seq"] = "2"  # made for the resize

        story, _ = _taken_over(elastic=True)
        story.writer.made = [first, second]
        story.backend._watch.our_pods = lambda: iter([first, second])  # type: ignore[method-assign]
        story.backend.start()
        wanted = Allocation(
            0, launch.allocation.parts[:1] if workers == 1 else (*launch.allocation.parts, Part(0, 1, 0, ()))
        )
        story.backend.perform(Resize(launch.job_id, 1, 2, wanted))
        story.backend.observe()
        await story.until_idle()
        (inventory,) = story.told
        assert isinstance(inventory, ev.Inventory)
        assert inventory.entries[0].allocation_seq < 2, "not done"
        assert len(story.writer.made) == 2 and not story.writer.deleted, "nobody has said yet how it is resized"
        (run,) = story.backend.runs.values()
        for member in list(run.members.values()):
            line = story.attach(run, member.name, begun=True)
            membership = Membership(7, (Peer("worker-0", "worker", 0), Peer("worker-1", "worker", 1)), "h", 1)
            for message in (membership, Hello("t", member.name, 1, True), Joined(7)):
                story.say(line, message)
        await story.until_idle()
        assert len(story.writer.made) == max(workers, 2)
        assert not story.writer.deleted, "who leaves hands over first"
        assert [member.leaving for member in run.members.values()].count(True) == (workers == 1)

    asyncio.run(all_of_it())


@pytest.mark.parametrize("code", [0, 143, 75])
def test_a_deleted_pod_is_no_success_and_costs_no_attempt(code: int) -> None:
    """A trainer that saves on SIGTERM ends with 0, any other with 143; a launcher of this version says 75."""

    async def work(story: Story, run: Run) -> None:
        story.run_all(run)
        first, second = run.members.values()
        story.see(first, code=code, deletionTimestamp="2026-01-01T00:00:00Z")
        await story.until_idle()
        assert story.writer.deleted == [second.pod_name]
        story.see(second, code=75, deletionTimestamp="2026-01-01T00:00:00Z")

    assert [type(event) for event in _told(work)] == [ev.Started, ev.Stopped]


def test_a_gang_that_failed_says_what_the_member_that_failed_wrote_last() -> None:
    log = 'step 7\nTraceback (most recent call last):\n  File "t.py", line 3, in <module>\nValueError: no such class'

    async def work(story: Story, run: Run) -> None:
        story.run_all(run)
        first, second = run.members.values()
        story.see(second, code=1, message=log)
        story.see(first, code=143, message="ended by us")

    exited = next(event for event in _told(work) if isinstance(event, ev.Exited))
    assert (exited.code, exited.output) == (1, '  File "t.py", line 3, in <module>\nValueError: no such class')


def test_a_gang_whose_commands_end_by_themselves_with_0_has_finished() -> None:
    async def work(story: Story, run: Run) -> None:
        story.run_all(run)
        for member in run.members.values():
            story.see(member, code=0)

    started, exited = _told(work)
    assert isinstance(started, ev.Started) and isinstance(exited, ev.Exited) and exited.code == 0


def test_a_plain_elastic_gang_that_is_shrunk_refills() -> None:
    async def all_of_it() -> None:
        story, launch = _taken_over(elastic=True)
        story.backend._registry.options = PodOptions(hello_wait_s=0.0)  # nobody waits for it to speak
        story.backend.start()
        story.backend.perform(launch)
        await story.until_idle()
        (run,) = story.backend.runs.values()
        story.run_all(run)
        story.backend.perform(Resize(launch.job_id, 1, 2, Allocation(0, launch.allocation.parts[:1])))
        await story.until_idle()
        assert len(story.writer.deleted) == 2, "a plain command is resized by a restart"
        for member in list(run.members.values()):
            story.see(member, code=143, deletionTimestamp="2026-01-01T00:00:00Z")
        await story.until_idle()
        assert [pod["metadata"]["name"][-2:] for pod in story.writer.made] == ["w0", "w1", "w2"]
        story.run_all(run)
        resized = [event for event in story.told if isinstance(event, ev.Resized)]
        assert [event.seq for event in resized] == [2]

    asyncio.run(all_of_it())


def test_a_job_that_gives_half_of_its_devices_to_another_runs_on_in_its_pods() -> None:
    async def work(story: Story, run: Run) -> None:
        story.run_all(run)
        parts = (Part(0, 1, 0, ()), Part(1, 1, 0, ()))
        story.backend.perform(Resize(run.facts.spec.id, 1, 2, Allocation(0, parts, 500)))
        await story.until_idle()
        assert len(story.writer.made) == 2 and not story.writer.deleted

    resized = [event for event in _told(work) if isinstance(event, ev.Resized)]
    assert [event.seq for event in resized] == [2]


def test_a_new_leader_takes_a_member_that_was_left_out_for_no_finisher() -> None:
    async def all_of_it() -> None:
        before, launch = _taken_over(elastic=True)
        before.backend.start()
        before.backend.perform(launch)
        await before.until_idle()
        first, second = before.writer.made
        done = {"phase": "Succeeded", "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 0}}}]}
        second["status"] = done

        story, _ = _taken_over(elastic=True)
        story.writer.made = [first, second]
        story.backend._watch.our_pods = lambda: iter([second, first])  # type: ignore[method-assign]
        shrunk = replace(launch, seq=2, allocation=Allocation(0, launch.allocation.parts[:1]))
        story.backend.start([shrunk])
        (run,) = story.backend.runs.values()
        assert [(m.name, m.leaving) for m in run.members.values()] == [("worker-0", False), ("worker-1", True)]
        story.see(run.members["worker-0"], code=0)
        await story.until_idle()
        assert [type(event) for event in story.told] == [ev.Exited]

    asyncio.run(all_of_it())


def _refuse(story: Story, why: str, made: int = 0) -> None:
    """The API server makes so many pods, and refuses the others."""

    async def create(_namespace: str, bodies: list[Object], _wanted: Any) -> list[Object]:
        there = await Writer.create(story.writer, _namespace, bodies[:made], _wanted)
        refused = Refusal(why, "n0")
        refused.done = [*there, *[None] * (len(bodies) - made)]
        raise refused

    story.writer.create = create  # type: ignore[method-assign]


def test_starts_that_nodes_refuse_count_when_there_were_many() -> None:
    async def all_of_it() -> list[ev.Event]:
        story = Story()
        _refuse(story, "OutOfcpu")
        story.backend.start()
        launch = _taken_over(elastic=False)[1]
        for attempt in range(1, PATIENCE + 3):
            story.backend.perform(replace(launch, generation=attempt, seq=attempt))
            await story.until_idle()
        assert "OutOfcpu" in story.backend.slow_starts.words[launch.job_id]
        return story.told

    failed = asyncio.run(all_of_it())
    assert [event.node for event in failed if isinstance(event, ev.StartFailed)] == [0] * PATIENCE + [None] * 2


def test_an_elastic_job_is_cut_down_to_what_a_quota_grants() -> None:
    async def all_of_it(made: int) -> list[ev.Event]:
        story, launch = _taken_over(elastic=True)
        _refuse(story, "forbidden: exceeded quota: gpus, requested: 1, used: 1, limited: 1", made)
        story.backend.start()
        story.backend.perform(launch)
        await story.until_idle()
        for pod in story.writer.made:
            story.backend._pod_observer.pod_changed({**pod, "status": {}}, True)
        await story.until_idle()
        assert "exceeded quota: gpus" in story.backend.slow_starts.words[launch.job_id]
        return story.told

    failed, changed = asyncio.run(all_of_it(made=1))
    assert isinstance(failed, ev.StartFailed) and failed.node == 0, "no fault of the job"
    assert isinstance(changed, ev.JobRangeChanged) and (changed.workers_min, changed.workers_max) == (1, 1)
    assert [type(event) for event in asyncio.run(all_of_it(made=0))] == [ev.StartFailed], "it waits for the quota"


@pytest.mark.parametrize("adopted", [False, True])
def test_a_start_that_does_not_succeed_is_given_up_and_counts(adopted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_starts, "START_LIMIT_S", 0.2)

    async def all_of_it() -> tuple[Run, list[ev.Event]]:
        story = Story()
        run = await story.begin()
        if adopted:
            pods = story.writer.made
            story.backend.halt()
            story = Story()
            story.writer.made = pods
            story.backend._watch.our_pods = lambda: iter(pods)  # type: ignore[method-assign]
            story.backend.start()
            (run,) = story.backend.runs.values()
        while run.attempt.outcome is None:
            await asyncio.sleep(0.01)
        await story.until_idle()
        for member in list(run.members.values()):
            story.see(member, gone=True, running=False)
        await story.until_idle()
        return run, story.told

    run, told = asyncio.run(asyncio.wait_for(all_of_it(), 30))
    outcome = run.attempt.outcome
    assert outcome is not None and outcome.node is None and "not started within" in outcome.why
    assert [type(event) for event in told] == ([] if adopted else [ev.StartFailed]), "adopted ones may hold a lease"

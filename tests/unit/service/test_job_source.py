"""New TrainingJobs: a submission is answered with the verdict of the control plane, whichever of the two is first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from service_bench import Bench

from trainmaster.backends.kubernetes.resources.training_job import job_id_of_object
from trainmaster.engine import queries
from trainmaster.model.errors import InputError
from trainmaster.service.api.metrics import exposition
from trainmaster.service.api.problems import Refusal
from trainmaster.service.kubernetes.job_source import JobSource, News, ReviewRoom, TakeJobs
from trainmaster.service.kubernetes.job_writer import KubernetesJobApi
from trainmaster.service.kubernetes.namespace_teams import parse_bindings

FAULT = InputError("asks for more than the cluster has", "fewer GPUs")


class _Scheduler:
    """Takes requests and answers them when told to, as the scheduler thread does."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, Callable[[Any], object]]] = []

    def put(self, request: Any, answered: Callable[[Any], object]) -> None:
        self.asked.append((request, answered))

    async def answer(self, *refused: str) -> None:
        """All that was asked; jobs of these names are refused."""
        while not self.asked:
            await asyncio.sleep(0.001)
        for request, answered in self.asked:
            news = getattr(request, "news", ())
            answered([(item.job, FAULT) for item in news if item.job["metadata"]["name"] in refused])
        self.asked = []
        await asyncio.sleep(0.01)


class _NoSets:
    def name_for(self, job: Any) -> str:
        return ""

    def new(self) -> list[Any]:
        return []


def _job(name: str) -> dict[str, Any]:
    meta = {"name": name, "namespace": "vision", "uid": f"{name}-0000", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": meta, "spec": {"template": {}}}


def _id(name: str) -> str:
    return job_id_of_object(_job(name))


def _source(scheduler: _Scheduler, refused: list[str]) -> JobSource:
    def note(job: Any, _: InputError) -> None:
        refused.append(job["metadata"]["name"])

    return JobSource(scheduler, _Room(), _NoSets(), note)  # type: ignore[arg-type]


class _Room:
    """Everything fits, but for jobs of these names."""

    def __init__(self, **lacking: str) -> None:
        self.lacking = lacking

    def lacks(self, spec: Any) -> str:
        return self.lacking.get(spec.name, "") if spec.workers_min > 1 else ""


def _training_job(name: str, uid: str, after: list[str] | None = None, namespace: str = "vision") -> dict[str, Any]:
    meta = {"name": name, "namespace": namespace, "uid": uid, "creationTimestamp": "2026-01-01T00:00:00Z"}
    template = {"spec": {"containers": [{"name": "trainer", "image": "i", "command": ["train"]}]}}
    spec = {"workers": {"min": 1, "max": 1}, "work": {"steps": 5}, "template": template}
    return {"metadata": meta, "spec": {**spec, **({"after": after} if after else {})}}


def _take(bench: Bench, *jobs: dict[str, Any]) -> list[tuple[str, InputError]]:
    request = TakeJobs([News(job, False, None) for job in jobs], _Room())  # type: ignore[arg-type]
    (refused,) = bench.plane.batch([request])
    return [(job["metadata"]["name"], error) for job, error in refused]


def test_a_training_job_waits_for_those_it_names(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    first, second = _training_job("first", "a1b2c3d4-0"), _training_job("second", "a1b2c3d5-0", ["first"])
    assert _take(bench, first, second) == []
    bench.pass_s(1)
    waits = job_id_of_object(second)
    assert bench.get(f"/jobs/{waits}/why")["why"] == "dependency"
    bench.pass_s(60)
    assert bench.state(waits) == "finished"
    # What is over already is no reason to wait; by id too.
    third = _training_job("third", "a1b2c3d6-0", ["vision.first", job_id_of_object(second)])
    assert _take(bench, third) == []
    bench.pass_s(60)
    assert bench.state(job_id_of_object(third)) == "finished"


def test_a_job_that_nobody_knows_or_of_another_namespace_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    there = _training_job("there", "a1b2c3d4-0", namespace="speech")
    assert _take(bench, there) == []
    for text in ("nobody", "there", "speech.there", job_id_of_object(there)):
        ((name, error),) = _take(bench, _training_job("x", "a1b2c3d5-0", [text]))
        assert (name, error.column) == ("x", "spec.after")


def test_who_asks_before_and_after_gets_the_verdict() -> None:
    async def run() -> None:
        scheduler, refused = _Scheduler(), list[str]()
        source = _source(scheduler, refused)
        early = [asyncio.ensure_future(source.verdict(_id(name))) for name in ("good", "bad")]
        for name in ("good", "bad"):
            source.changed("ADDED", _job(name), None)
        await scheduler.answer("bad")
        assert await asyncio.gather(*early) == [None, FAULT]
        assert [await source.verdict(_id(name)) for name in ("good", "bad")] == [None, FAULT]
        assert refused == ["bad"]

    asyncio.run(asyncio.wait_for(run(), 10))


def test_a_store_that_fails_leaves_the_answer_open_until_the_job_is_taken() -> None:
    async def run() -> None:
        scheduler = _Scheduler()
        source = _source(scheduler, [])
        waits = asyncio.ensure_future(source.verdict(_id("good")))
        source.changed("ADDED", _job("good"), None)
        while not scheduler.asked:
            await asyncio.sleep(0.001)
        (_, answered), *_ = scheduler.asked
        scheduler.asked = []
        answered(InputError("storage unavailable"))
        await asyncio.sleep(0.01)
        assert not waits.done()
        await scheduler.answer()
        assert await waits is None

    asyncio.run(asyncio.wait_for(run(), 10))


def test_a_leader_that_stops_keeps_nobody_waiting() -> None:
    async def run() -> None:
        source = _source(_Scheduler(), [])
        waits = asyncio.ensure_future(source.verdict(_id("good")))
        await asyncio.sleep(0)
        source.stop()
        assert await waits is None
        assert await source.verdict(_id("late")) is None

    asyncio.run(asyncio.wait_for(run(), 10))


def test_an_object_that_cannot_be_read_is_refused_alone() -> None:
    class Sets(_NoSets):
        def name_for(self, job: Any) -> str:
            if job["metadata"]["name"] == "odd":
                raise AttributeError("'list' object has no attribute 'get'")
            return ""

    async def run() -> None:
        scheduler, told = _Scheduler(), dict[str, InputError]()
        source = JobSource(
            scheduler, _Room(), Sets(), lambda job, fault: told.__setitem__(job["metadata"]["name"], fault)  # type: ignore[arg-type]
        )  # fmt: skip
        deep: dict[str, Any] = {}
        for _ in range(260):
            deep = {"x": deep}
        nested = {**_job("deep"), "spec": {"template": {"metadata": deep}}}
        for job in (nested, _job("odd"), _job("good")):
            source.changed("ADDED", job, None)
        await scheduler.answer()
        verdicts = [await source.verdict(_id(name)) for name in ("deep", "odd", "good")]
        assert [fault is None for fault in verdicts] == [False, False, True]
        assert "nested" in str(told["deep"]) and "AttributeError" in str(told["odd"])

    asyncio.run(asyncio.wait_for(run(), 10))


def test_a_job_whose_templates_cannot_be_judged_is_refused_alone() -> None:
    class Templates:
        def known(self, job: Any) -> bool:
            if job["metadata"]["name"] == "odd":
                raise TypeError("Integer exceeds 64-bit range")
            return True

        def fault(self, job: Any) -> None: ...

        def filled(self, job: Any) -> Any:
            return job

    async def run() -> None:
        scheduler, refused = _Scheduler(), list[str]()
        source = _source(scheduler, refused)
        source._templates = Templates()  # type: ignore[assignment]
        for name in ("odd", "good"):
            source.changed("ADDED", _job(name), None)
        await scheduler.answer()
        assert refused == ["odd"] and await source.verdict(_id("good")) is None

    asyncio.run(asyncio.wait_for(run(), 10))


def test_a_job_that_makes_the_control_plane_fail_is_refused_alone(tmp_path: Path) -> None:
    class Room:
        def lacks(self, spec: Any) -> str:
            if spec.name == "odd":
                raise RecursionError("maximum recursion depth exceeded")
            return ""

    bench = Bench(tmp_path)
    jobs = [_training_job("odd", "a1b2c3d4-0"), _training_job("good", "a1b2c3d5-0")]
    request = TakeJobs([News(job, False, None) for job in jobs], Room())  # type: ignore[arg-type]
    (refused,) = bench.plane.batch([request])
    assert [job["metadata"]["name"] for job, _ in refused] == ["odd"]
    bench.pass_s(60)
    assert bench.state(job_id_of_object(jobs[1])) == "finished"


def test_a_job_that_no_node_can_take_waits_alone_until_there_are_others(tmp_path: Path) -> None:
    """Under strict fifo, over a restart, and when its user asks for less."""
    lacks = "no node can take a worker; n0: disk=ssd wanted"
    bench, room = Bench(tmp_path, nodes="v100=8x4"), _Room(wide=lacks, other=lacks)
    wide, other = (_training_job(name, f"a1b2c3d{k}-0") for k, name in enumerate(("wide", "other")))
    for each in (wide, other):
        each["spec"]["workers"] = {"min": 2, "max": 2}
    behind = _training_job("behind", "a1b2c3d7-0")
    news = [News(each, False, None) for each in (wide, other, behind)]
    assert bench.plane.batch([TakeJobs(news, room)]) == [[]]  # type: ignore[arg-type]
    bench.pass_s(1)
    assert bench.state(job_id_of_object(behind)) == "running"
    for _ in range(2):
        shown = bench.get(f"/jobs/{job_id_of_object(wide)}")
        assert (shown["state"], shown["why"]) == ("pending", "no_node") and shown["reason"].startswith(lacks)
        bench.start()
    fewer = {**other, "spec": {**other["spec"], "workers": {"min": 1, "max": 2}}}
    bench.plane.batch([TakeJobs([News(fewer, False, other)], room)])  # type: ignore[arg-type]
    bench.pass_s(1)
    assert bench.state(job_id_of_object(other)) == "running"
    bench.plane.batch([ReviewRoom(_Room(wide="the cluster has no nodes"))])  # type: ignore[arg-type]
    assert "the cluster has no nodes" in bench.get(f"/jobs/{job_id_of_object(wide)}")["reason"]
    bench.plane.batch([ReviewRoom(_Room())])  # type: ignore[arg-type]
    bench.pass_s(1)
    assert bench.state(job_id_of_object(wide)) == "running"


def test_a_namespace_submits_for_the_teams_that_it_is_bound_to(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    def entity(bindings: str | None, namespace: str, asked: str | None) -> str:
        take = {"number": bench.clock.ms}
        bench.clock.ms += 1
        job = _training_job("a", f"{take['number']:08x}-0", namespace=namespace)
        job["spec"] |= {} if asked is None else {"entity": asked}
        bound = None if bindings is None else parse_bindings(bindings)
        ((refused, *_),) = [bench.plane.batch([TakeJobs([News(job, False, None)], _Room(), bound)])[0] or [None]]  # type: ignore[arg-type]
        if refused is not None:
            assert refused[1].column == "spec.entity"
            return "refused"
        spec = queries.spec_of(bench.plane.live, job_id_of_object(job))
        assert spec is not None
        return spec.entity

    bound = "vision=red+blue,speech=green"
    assert entity(None, "vision", None) == "vision" and entity(None, "vision", "green") == "green"
    assert entity(bound, "vision", None) == "red" and entity(bound, "vision", "blue") == "blue"
    assert entity(bound, "vision", "green") == "refused"
    assert entity(bound, "other", None) == "other" and entity(bound, "other", "red") == "refused"
    assert entity("own", "vision", "vision") == "vision" and entity("own", "vision", "red") == "refused"


def test_jobs_by_kubectl_are_counted(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    _take(bench, _training_job("a", "a1b2c3d4-0"), _training_job("b", "a1b2c3d5-0"))
    assert b"trainmaster_jobs_submitted_total 2.0" in exposition(bench.plane)


def test_nodes_that_left_the_cluster_are_not_listed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, nodes="v100=8x4")
    listed = bench.get("/nodes")
    bench.plane.is_gone = lambda name: name == listed[-1]["id"]
    assert bench.get("/nodes") == listed[:-1]
    assert b'trainmaster_gpus{type="v100"} 4.0' in exposition(bench.plane)


@pytest.mark.parametrize("over", [False, True])
def test_who_asks_by_name_hears_of_no_job_in_a_hidden_namespace(tmp_path: Path, over: bool) -> None:
    bench = Bench(tmp_path)
    hidden = [_training_job("secret", f"a1b2c3d{k}-0", namespace=space) for k, space in enumerate(("speech", "text"))]
    twice = [_training_job("twice", f"b1b2c3d{k}-0") for k in range(2)]
    assert _take(bench, *hidden, *twice, _training_job("mine", "c1b2c3d4-0")) == []
    if over:
        bench.pass_s(200)

    class Rights:
        async def may(self, who: Any, right: Any) -> bool:
            return right.namespace == "vision"

        async def need(self, who: Any, right: Any) -> None:
            assert right.namespace == "vision"

    class Gateway:
        async def ask(self, request: Any) -> Any:
            (found,) = bench.plane.batch([request])
            if isinstance(found, BaseException):
                raise found
            return found

    api = KubernetesJobApi(Gateway(), None, None, None)  # type: ignore[arg-type]
    api.rights = Rights()  # type: ignore[assignment]
    assert asyncio.run(api.see_job(None, "mine")) == "vision.mine.c1b2c3d4"  # type: ignore[arg-type]
    told = []
    for name in ("secret", "twice"):
        with pytest.raises(Refusal) as caught:
            asyncio.run(api.see_job(None, name))  # type: ignore[arg-type]
        told.append(caught.value.problem)
    assert told[0].what == "job 'secret' not found" and told[1].what == "2 jobs are called 'twice'"
    assert "speech" not in str(told) and "text." not in str(told)


def test_a_job_asks_for_what_its_namespace_adds(tmp_path: Path) -> None:
    def with_resources(asked: dict[str, Any]) -> dict[str, Any]:
        job = _training_job("a", "a1b2c3d4-0")
        job["spec"]["template"]["spec"]["containers"][0]["resources"] = {"requests": asked}
        return job

    bench = Bench(tmp_path)
    plain = _training_job("a", "a1b2c3d4-0")
    news = News(plain, False, None, filled=with_resources({"ephemeral-storage": "1Gi"}))
    ((_, error),) = bench.plane.batch([TakeJobs([news], _Room())])[0]  # type: ignore[arg-type]
    assert error.column == "spec.template.spec.containers[0].resources.requests.ephemeral-storage"
    news = News(plain, False, None, filled=with_resources({"cpu": "2"}))
    assert bench.plane.batch([TakeJobs([news], _Room())]) == [[]]  # type: ignore[arg-type]
    spec = queries.spec_of(bench.plane.live, job_id_of_object(plain))
    assert spec is not None and spec.worker.cpu_milli == 2000

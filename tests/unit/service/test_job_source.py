"""New TrainingJobs: a submission is answered with the verdict of the control plane, whichever of the two is first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from trainmaster.model.errors import InputError
from trainmaster.service.job_source import JobSource

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
    from trainmaster.backends.kubernetes.translate import job_id_of_object

    return job_id_of_object(_job(name))


def _source(scheduler: _Scheduler, refused: list[str]) -> JobSource:
    def note(job: Any, _: InputError) -> None:
        refused.append(job["metadata"]["name"])

    return JobSource(scheduler, list, _NoSets(), note)  # type: ignore[arg-type]


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

"""A job that declares only a deadline: it is noted, probed, and answered when it has shown what it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trainmaster.engine import queries
from trainmaster.engine.engine import Engine, Settings
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.estimate.speeds.learned import LearningEstimator
from trainmaster.model import event as ev
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.command import Command, Launch, Resize, Stop
from trainmaster.model.job import DeadlineKind, JobId, JobSpec, Phase
from trainmaster.model.reason_text import deadline_answer, sentence
from trainmaster.policies.deadline.answers import standing_answer
from trainmaster.policies.registry import create


class World:
    """Launches and resizes take effect at once; reports are the test's."""

    def __init__(self, cluster: str, policy: str = "deadline") -> None:
        self.estimator = LearningEstimator(DeclaredSpeeds())
        self.engine = Engine(parse_cluster(cluster), create(policy), self.estimator, Settings())
        self.sizes: dict[str, int] = {}

    def step(self, at_s: float, *events: ev.Event) -> list[Command]:
        now_ms, todo, sent = round(at_s * 1000), [*events], []
        while True:
            commands = self.engine.step(now_ms, *todo)
            sent += commands
            todo = [self._answer(command, now_ms) for command in commands]
            if not todo:
                return sent

    def _answer(self, command: Command, now_ms: int) -> ev.Event:
        job, generation = command.job_id, command.generation
        if isinstance(command, Launch):
            self.sizes[job] = command.allocation.workers
            return ev.Started(job, generation, 0.0, now_ms)
        if isinstance(command, Resize):
            self.sizes[job] = command.allocation.workers
            return ev.Resized(job, generation, command.seq, np.nan, now_ms)
        assert isinstance(command, Stop)
        self.sizes[job] = 0
        return ev.Stopped(job, generation, np.nan)

    def answer(self, job: str) -> dict[str, Any] | None:
        engine = self.engine
        spec = queries.spec_of(engine, job)
        assert spec is not None
        values, reservation = queries.policy_state_of(engine, job, "plan")
        return standing_answer(values, reservation, job, spec.deadline_ms, engine.cluster.types)

    def reports(self, at_s: float, job: str, work: float, rate: float, total: float | None = None) -> None:
        """Progress, and the amount of work as the service passes it on."""
        progressed = ev.Progressed(JobId(job), 1, work, round(at_s * 1000), rate, total=total)
        told = [] if total is None else [ev.JobTermsChanged(JobId(job), work_total=total)]
        self.step(at_s, progressed, *told)


def job(name: str, due_s: float, **more: Any) -> JobSpec:
    command = {"command": ["python", f"{name}.py"], "user": name}
    return JobSpec(
        JobId(name), deadline_ms=round(due_s * 1000), deadline_kind=DeadlineKind.HARD, payload=command, **more
    )


def test_noted_probed_at_the_smallest_size_then_promised() -> None:
    world = World("gpu=4")
    world.step(0, ev.JobSubmitted(job("a", 600, workers_max=4)))
    assert world.sizes == {"a": 1}, "a probe is small"
    told = world.answer("a")
    assert told is not None
    assert told == {"answer": "noted", "lacks": ["speed", "work"]}
    assert deadline_answer(told).startswith("deadline noted; a promise follows when its speed is measured")
    world.reports(5, "a", 5.0, 1.0, total=1200.0)
    assert world.answer("a") == {"answer": "noted", "lacks": ["speed"]}, "the first seconds are not believed"
    world.step(12, ev.Woken())
    told = world.answer("a")
    assert told is not None
    assert told["answer"] == "promised"
    assert told["workers"] >= 2, "1200 s of work in 590 s"
    assert world.sizes["a"] >= 2
    assert "deadline promised: planned to finish" in deadline_answer(told)


def test_the_engine_asks_to_be_woken_for_the_end_of_a_probe() -> None:
    world = World("gpu=1")
    world.step(0, ev.JobSubmitted(job("a", 600, work_total=100.0)))
    assert world.engine.next_wake_ms <= 2_000


def test_best_effort_makes_room_for_a_probe_and_promises_do_not() -> None:
    world = World("gpu=1")
    best = JobSpec(JobId("b"), work_total=10_000.0, preemptible=True)
    world.step(0, ev.JobSubmitted(best))
    world.step(1, ev.JobSubmitted(job("a", 600)))
    assert (world.sizes["b"], world.sizes["a"]) == (0, 1)
    full = World("gpu=1")
    full.step(0, ev.JobSubmitted(job("p", 520, work_total=500.0, steps_per_s={"gpu": 1.0})))
    full.step(1, ev.JobSubmitted(job("a", 600)))
    assert full.sizes == {"p": 1}
    why = queries.Explainer(full.engine).reason(JobId("a"))
    assert why is not None
    assert sentence(why).startswith("deadline noted; a promise follows when")


def test_what_cannot_be_met_says_the_earliest_and_runs_on() -> None:
    world = World("gpu=2")
    world.step(0, ev.JobSubmitted(job("a", 300, workers_max=2)))
    world.reports(11, "a", 11.0, 1.0, total=3000.0)
    world.step(13, ev.Woken())
    told = world.answer("a")
    assert told is not None
    assert told["answer"] == "refused"
    assert 13 + 2987 / 2 < told["earliest_deadline_s"] < 13 + 2987, "two workers are faster than one"
    assert "the earliest that could be is" in deadline_answer(told)
    assert world.sizes["a"] >= 1, "a measurement of seconds stops nobody"


def test_one_that_says_nothing_is_told_so_and_runs_on() -> None:
    world = World("gpu=1")
    world.step(0, ev.JobSubmitted(job("a", 600)))
    world.step(200, ev.Woken())
    told = world.answer("a")
    assert told is not None
    assert told == {"answer": "unknown", "lacks": ["speed", "work"]}
    assert "amount of work unknown; pass --steps" in deadline_answer(told)
    world.step(700, ev.Woken())
    assert world.sizes["a"] == 1, "nobody knows that it is late"
    assert queries.phase_of(world.engine, "a") == Phase.RUNNING


def test_a_limit_of_run_time_bounds_the_work() -> None:
    world = World("gpu=1")
    world.step(0, ev.JobSubmitted(job("a", 600, time_s=500.0)))
    told = world.answer("a")
    assert told is not None
    assert told["answer"] == "promised"
    assert told["spare_s"] == pytest.approx(100, abs=1)
    world.step(1, ev.JobSubmitted(job("b", 600, time_s=500.0)))
    assert (world.answer("b") or {})["answer"] == "refused"


def test_jobs_alike_that_have_finished_tell() -> None:
    world = World("gpu=1")
    for k in range(6):
        done = JobSpec(JobId(f"a-{k}"), payload={"command": ["python", "a.py"], "user": "a"})
        world.estimator.ended(done, 0.0, True, 100.0 + k, "gpu")
    world.step(0, ev.JobSubmitted(job("a", 600)))
    told = world.answer("a")
    assert told is not None
    assert told["answer"] == "promised"
    assert 300 < told["spare_s"] < 500, "as the slow ones among them"


def test_where_nothing_is_learned_unknown_work_is_refused() -> None:
    engine = Engine(parse_cluster("gpu=1"), create("deadline"), DeclaredSpeeds(), Settings())
    engine.step(0, ev.JobSubmitted(job("a", 600)))
    assert [end.phase for end in engine.drain_ended()] == [Phase.REJECTED]

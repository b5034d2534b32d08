"""Answers to deadlines that everything is known of: data that is right, and reads well."""

from __future__ import annotations

import json
from typing import Any

from trainmaster.engine import queries
from trainmaster.engine.engine import Engine, Settings
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.estimate.speeds.learned import LearningEstimator
from trainmaster.model import event as ev
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.job import DeadlineKind, JobId, JobSpec
from trainmaster.model.reason_text import deadline_answer
from trainmaster.model.units import NEVER_MS
from trainmaster.policies.deadline.answers import standing_answer
from trainmaster.policies.registry import create


def job(name: str, work_s: float, due_s: float | None, kind: DeadlineKind = DeadlineKind.HARD, **more: Any) -> JobSpec:
    due_ms = NEVER_MS if due_s is None else round(due_s * 1000)
    kind = DeadlineKind.NONE if due_s is None else kind
    more = {"work_total": work_s, "steps_per_s": {"gpu": 1.0}, **more}
    return JobSpec(JobId(name), deadline_ms=due_ms, deadline_kind=kind, **more)


def engine_with(cluster: str, *specs: JobSpec) -> Engine:
    engine = Engine(parse_cluster(cluster), create("deadline"), LearningEstimator(DeclaredSpeeds()), Settings())
    engine.step(0, *[ev.JobSubmitted(spec) for spec in specs])
    return engine


def answer_of(engine: Engine, name: str) -> dict[str, Any] | None:
    values, reservation = queries.policy_state_of(engine, name, "plan")
    spec = queries.spec_of(engine, name)
    assert spec is not None
    return standing_answer(values, reservation, name, spec.deadline_ms, engine.cluster.types)


def busy() -> list[JobSpec]:
    return [job("b0", 100, 110), job("b1", 100, 150)]


def test_promised_with_the_configuration() -> None:
    engine = engine_with("gpu=4", job("a", 100, 60, workers_max=4))
    answer = answer_of(engine, "a")
    assert answer is not None
    assert (answer["answer"], answer["type"]) == ("promised", "gpu")
    assert answer["workers"] >= 2
    assert answer["spare_s"] >= 0
    assert json.loads(json.dumps(answer)) == answer
    assert deadline_answer(answer).startswith("deadline promised: planned to finish ")


def test_refused_with_the_earliest_deadline_and_what_it_would_take() -> None:
    engine = engine_with("gpu=2", *busy(), job("late", 50, 90))
    answer = answer_of(engine, "late")
    assert answer is not None
    assert answer["answer"] == "refused"
    assert (answer["more_gpus"], answer["more_type"]) == (1, "gpu")
    assert answer["slack_of"] == "b1"
    assert 150 <= answer["earliest_deadline_s"] < 150.1
    text = deadline_answer(answer)
    assert "1 GPU more of gpu" in text
    assert "b1" in text
    # The answer holds: with the deadline it names the job is promised.
    again = engine_with("gpu=2", *busy(), job("late", 50, answer["earliest_deadline_s"]))
    assert (answer_of(again, "late") or {})["answer"] == "promised"


def test_a_refusal_is_forgotten_when_it_becomes_a_promise() -> None:
    engine = engine_with("gpu=2", *busy(), job("late", 50, 90))
    engine.step(1000, ev.JobCancelled(JobId("b1")), ev.Stopped(JobId("b1"), 1, 0.0))
    assert (answer_of(engine, "late") or {})["answer"] == "promised"
    assert "late" not in engine.memo_values["answers"]


def test_soft_deadlines_and_jobs_without_one_have_no_answer() -> None:
    engine = engine_with("gpu=2", job("a", 100, 60, DeadlineKind.SOFT), job("b", 100, None))
    assert answer_of(engine, "a") is None
    assert answer_of(engine, "b") is None


def test_what_nobody_asks_for_is_not_kept() -> None:
    engine = Engine(parse_cluster("gpu=2"), create("deadline"), DeclaredSpeeds(), Settings())
    engine.step(0, *[ev.JobSubmitted(spec) for spec in (*busy(), job("late", 50, 90))])
    assert "answers" not in engine.memo_values

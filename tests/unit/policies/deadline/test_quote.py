"""The admission answer for a live service: data that is right, changes nothing, and reads well."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trainmaster.engine.engine import Engine, Settings
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.model import event as ev
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.errors import InputError
from trainmaster.model.job import DeadlineKind, JobId, JobSpec
from trainmaster.model.units import NEVER_MS
from trainmaster.policies.deadline.quote import admission_answer, describe
from trainmaster.policies.registry import create


def job(name: str, work_s: float, due_s: float | None, kind: DeadlineKind = DeadlineKind.HARD, **more: Any) -> JobSpec:
    due_ms = NEVER_MS if due_s is None else round(due_s * 1000)
    kind = DeadlineKind.NONE if due_s is None else kind
    return JobSpec(JobId(name), work_total=work_s, deadline_ms=due_ms, deadline_kind=kind, **more)


def engine_with(cluster: str, *specs: JobSpec) -> Engine:
    engine = Engine(parse_cluster(cluster), create("deadline"), DeclaredSpeeds(), Settings())
    engine.step(0, *[ev.JobSubmitted(spec) for spec in specs])
    return engine


def busy() -> list[JobSpec]:
    return [job("b0", 100, 110), job("b1", 100, 150)]


def test_accepted_with_the_configuration() -> None:
    engine = engine_with("gpu=4", job("a", 100, 60, workers_max=4))
    answer = admission_answer(engine.snapshot(), "a")
    assert answer["answer"] == "accepted"
    assert answer["kept"]
    assert answer["type"] == "gpu"
    assert answer["planned_finish_s"] <= 60
    assert answer["schedule"][0]["from_s"] == 0
    assert json.loads(json.dumps(answer)) == answer
    assert "is promised: " in describe(answer)


def test_refused_with_the_earliest_deadline_and_what_it_would_take() -> None:
    engine = engine_with("gpu=2", *busy(), job("late", 50, 90))
    before = engine.snapshot().memo.to_json()
    answer = admission_answer(engine.snapshot(), "late")
    assert answer["answer"] == "refused"
    assert (answer["more_gpus"], answer["more_type"]) == (1, "gpu")
    assert answer["slack_of"] == "b1"
    assert 150 <= answer["earliest_deadline_s"] < 150.1
    text = describe(answer)
    assert "1 GPU more of gpu" in text
    assert "b1" in text
    assert engine.snapshot().memo.to_json() == before, "an answer changes nothing"
    # The answer holds: with the deadline it names the job is accepted.
    again = engine_with("gpu=2", *busy(), job("late", 50, answer["earliest_deadline_s"]))
    assert admission_answer(again.snapshot(), "late")["answer"] == "accepted"


def test_possible_before_the_policy_has_decided() -> None:
    engine = Engine(parse_cluster("gpu=2"), create("fifo"), DeclaredSpeeds(), Settings())
    engine.step(0, ev.JobSubmitted(job("a", 50, 90)))
    answer = admission_answer(engine.snapshot(), "a")
    assert (answer["answer"], answer["workers"], answer["planned_finish_s"]) == ("possible", 1, 50.0)
    assert "can be promised" in describe(answer)


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        (job("x", 100, 50), "deadline before the fastest possible finish"),
        (JobSpec(JobId("x"), deadline_ms=50_000, deadline_kind=DeadlineKind.HARD), "unknown work"),
    ],
)
def test_faults(spec: JobSpec, fault: str) -> None:
    """Such jobs are refused at once, so a service asks before it submits: with FIFO in the place of the policy."""
    engine = Engine(parse_cluster("gpu=2"), create("fifo"), DeclaredSpeeds(), Settings())
    engine.step(0, ev.JobSubmitted(spec))
    answer = admission_answer(engine.snapshot(), "x")
    assert (answer["answer"], answer["fault"]) == ("refused", fault)
    assert fault in describe(answer)


def test_soft_and_none() -> None:
    engine = engine_with("gpu=2", job("s", 50, 90, DeadlineKind.SOFT), job("n", 50, None))
    assert admission_answer(engine.snapshot(), "n") == {"job_id": "n", "answer": "none"}
    answer = admission_answer(engine.snapshot(), "s")
    assert (answer["answer"], answer["reserved"]) == ("soft", True)
    assert "yield" in describe(answer)


def test_unknown_job() -> None:
    with pytest.raises(InputError):
        admission_answer(engine_with("gpu=2").snapshot(), "nobody")

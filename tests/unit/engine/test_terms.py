"""A user changes what a job wishes for: the policy and the store see it."""

from __future__ import annotations

from harness import job, new_engine

from trainmaster.engine.persistence import Recorder
from trainmaster.model import event as ev
from trainmaster.model.job import DeadlineKind, JobId

A = JobId("a")


def test_new_terms_are_in_the_columns_the_spec_and_the_next_commit() -> None:
    engine, _ = new_engine()
    engine.step(0, ev.JobSubmitted(job("a")), ev.JobSubmitted(job("b")))
    recorder = Recorder(engine)
    assert not recorder.changes([]).jobs
    decisions = engine.decisions
    terms = ev.JobTermsChanged(A, deadline_ms=90_000, deadline_kind=DeadlineKind.HARD, weight=2.0, priority=5)
    engine.step(1, terms)
    assert engine.decisions == decisions + 1, "the policy is asked again"
    job_index = engine.columns.job_index_of[A]
    assert engine.columns.ints["deadline_ms"][job_index] == 90_000
    assert engine.columns.ints["priority"][job_index] == 5
    assert engine.columns.floats["weight"][job_index] == 2.0
    record = recorder.changes([]).jobs["a"]
    assert record is not None and record["spec"]["deadline_ms"] == 90_000


def test_a_weight_that_is_none_is_refused_whole() -> None:
    engine, _ = new_engine()
    engine.step(0, ev.JobSubmitted(job("a")))
    engine.step(1, ev.JobTermsChanged(A, weight=-1.0, priority=9), ev.JobTermsChanged(JobId("nobody"), weight=1.0))
    job_index = engine.columns.job_index_of[A]
    assert (engine.columns.floats["weight"][job_index], engine.columns.ints["priority"][job_index]) == (1.0, 0)
    assert any("refused" in note for note in engine.notes)

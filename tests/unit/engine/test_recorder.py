"""What a commit holds: what changed since the last one, and no more."""

from __future__ import annotations

from harness import job, new_engine

from trainmaster.engine.persistence import Recorder, stored_state_of
from trainmaster.model import event as ev
from trainmaster.model.job import JobId


def test_jobs_that_did_not_change_are_not_told_again_when_the_table_grows() -> None:
    engine, _ = new_engine()
    recorder = Recorder.of_new(engine)
    told: dict[str, object] = {}
    n, capacities = 0, set()
    while len(capacities) < 4:
        fresh = [job(f"j{n + k}", workers=9) for k in range(50)]
        n += len(fresh)
        engine.step(n, *map(ev.JobSubmitted, fresh))
        capacities.add(engine.columns.capacity)
        jobs = recorder.changes(engine.drain_ended()).jobs
        assert set(jobs) == {spec.id for spec in fresh}
        told.update(jobs)
    assert told == stored_state_of(engine).jobs, "and nothing is left out"


def test_a_change_in_the_step_in_which_the_table_grows_is_told() -> None:
    engine, _ = new_engine()
    recorder = Recorder.of_new(engine)
    engine.step(0, ev.JobSubmitted(job("a", workers=9)), ev.JobSubmitted(job("b", workers=9)))
    recorder.changes([])
    before = engine.columns.capacity
    many = [ev.JobSubmitted(job(f"j{k}", workers=9)) for k in range(2 * before)]
    engine.step(1, ev.JobTermsChanged(JobId("a"), priority=5), *many)
    assert engine.columns.capacity > before
    jobs = recorder.changes([]).jobs
    assert "a" in jobs
    assert "b" not in jobs
    assert len(jobs) == 1 + len(many)

"""Seeded variants of a trace: drawn from the trace, in order, the same for the same seed."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.model.errors import InputError
from trainmaster.traces.assign import Assignment, assign
from trainmaster.traces.generator import GeneratorSpec, generate
from trainmaster.traces.resample import resample, window_s
from trainmaster.traces.utility import at_age

TRACE = assign(generate(GeneratorSpec(jobs=300), 4), Assignment((), 0, 2, 1.0, 0.5), 5)


@given(st.sampled_from(["windows", "jobs"]), st.integers(1, 50))
@settings(max_examples=30, deadline=None)
def test_every_job_is_a_job_of_the_trace_moved_as_a_whole(kind: str, seed: int) -> None:
    drawn = resample(TRACE, kind, seed)
    assert drawn.jobs["submit_s"].is_sorted()
    assert drawn.jobs["job_id"].is_unique().all()
    origin = {row["job_id"]: row for row in TRACE.jobs.rows(named=True)}
    for row in drawn.jobs.rows(named=True):
        old = origin[row["job_id"].rpartition("~")[0]]
        assert (row["gpus"], row["duration_s"]) == (old["gpus"], old["duration_s"])
        moved = row["submit_s"] - old["submit_s"]
        assert row["deadline_s"] == pytest.approx(old["deadline_s"] + moved, abs=0.01)
        if row["utility"] is not None:
            before, after = at_age(old["utility"], old["submit_s"]), at_age(row["utility"], row["submit_s"])
            age = old["deadline_s"] - old["submit_s"] - 1
            assert before.value(age) == after.value(age)
    assert drawn.jobs.equals(resample(TRACE, kind, seed).jobs)


def test_seed_zero_is_the_trace_and_seeds_differ() -> None:
    assert resample(TRACE, "windows", 0) is TRACE
    assert resample(TRACE, "none", 7) is TRACE
    assert not resample(TRACE, "windows", 1).jobs.equals(resample(TRACE, "windows", 2).jobs)
    assert resample(TRACE, "jobs", 3).jobs["submit_s"].equals(TRACE.jobs["submit_s"])
    with pytest.raises(InputError):
        resample(TRACE, "dice", 1)


def test_windows_stay_whole() -> None:
    """Gaps between arrivals within a window are those of the trace."""
    length_s = window_s(TRACE)
    start_s = float(TRACE.jobs["submit_s"][0])
    known = set(np.round((TRACE.jobs["submit_s"].to_numpy() - start_s) % length_s, 2))
    drawn = resample(TRACE, "windows", 9).jobs["submit_s"].to_numpy() - start_s
    assert {round(x, 2) for x in drawn % length_s} <= known | {0.0, round(length_s, 2)}


def test_the_mean_work_is_that_of_the_trace() -> None:
    def work(jobs: pl.DataFrame) -> float:
        return float((jobs["gpus"] * jobs["duration_s"].clip(0, 3600)).sum())

    drawn = [work(resample(TRACE, "windows", seed).jobs) for seed in range(1, 400)]
    error = np.std(drawn) / np.sqrt(len(drawn))
    assert abs(np.mean(drawn) - work(TRACE.jobs)) < 4 * error

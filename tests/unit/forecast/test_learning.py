"""Measured speeds are believed, followed, and serve the next job of the kind; predictions are judged."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.estimate.profiles import JobProfiles
from trainmaster.estimate.speeds.knowledge import Knowledge, profile_of
from trainmaster.estimate.speeds.learned import LearningEstimator
from trainmaster.forecast.accuracy import AccuracyLog
from trainmaster.forecast.forecast import Band, Outlook
from trainmaster.forecast.situation import Belief
from trainmaster.forecast.worlds import Believed
from trainmaster.model.job import JobId, JobSpec
from trainmaster.testing.builders import a_measurement

JOB = JobSpec(JobId("a"), model="resnet", steps_per_s={"v100": 10.0, "k80": 4.0})
TYPES = ("k80", "v100")


def speed(estimator: LearningEstimator, spec: JobSpec = JOB) -> list[float]:
    return estimator.profile(spec, TYPES)[0].tolist()


def test_a_change_of_speed_is_followed_within_three_reports() -> None:
    estimator = LearningEstimator(DeclaredSpeeds())
    for _ in range(20):
        estimator.observe(a_measurement(JOB, "v100", 10.0))
    for _ in range(3):
        estimator.observe(a_measurement(JOB, "v100", 5.0))
    assert speed(estimator)[1] == pytest.approx(5.0, rel=0.05)
    assert speed(estimator)[0] == pytest.approx(2.0, rel=0.05), "the other type moves by the same factor"


def test_a_job_that_measures_is_surer_than_one_that_declares() -> None:
    estimator = LearningEstimator(DeclaredSpeeds())
    before = estimator.sigma(JOB)
    estimator.observe(a_measurement(JOB, "v100", 8.0))
    assert estimator.sigma(JOB) < before / 3


def test_the_next_of_its_kind_begins_with_what_was_measured_also_after_a_restart() -> None:
    estimator = LearningEstimator(DeclaredSpeeds())
    estimator.observe(a_measurement(JOB, "v100", 5.0))
    estimator.ended(JOB, 1000.0, finished=True)
    profiles, known = estimator.profiles.to_json(), estimator.knowledge.to_json()
    again = LearningEstimator(DeclaredSpeeds(), JobProfiles.from_json(profiles), Knowledge.from_json(known))
    nxt = replace(JOB, id=JobId("b"))
    assert speed(again, nxt) == pytest.approx([2.0, 5.0], rel=1e-4)
    steps = again.profiles.steps_of(nxt)
    assert steps is not None and steps.median == pytest.approx(1000.0)
    assert 0.5 < steps.sigma < 0.8, "one job does not tell how much the next may differ"
    slow, fast = speed(again, replace(nxt, model="other"))
    assert 2.5 < slow < 4.0 and 6.0 < fast < 10.0, "a user who overstated one model may overstate another"


def test_a_type_that_cannot_run_the_job_stays_so() -> None:
    estimator = LearningEstimator(DeclaredSpeeds())
    only = replace(JOB, steps_per_s={"v100": 10.0})
    estimator.observe(a_measurement(JOB, "v100", 5.0))
    assert speed(estimator, only) == pytest.approx([0.0, 5.0], rel=1e-4)


def test_kinds() -> None:
    plain = JobSpec(JobId("x"), payload={"command": ["python", "code/train.py", "--lr", "1"]})
    other = {"command": ["python3", "code/train.py", "--lr", "0.5"]}
    assert profile_of(plain) == profile_of(replace(plain, id=JobId("y"), payload=other))
    assert profile_of(replace(plain, name="run-7")) == profile_of(replace(plain, name="run-12"))
    assert profile_of(replace(plain, name="walk-7")) != profile_of(replace(plain, name="run-12"))
    assert profile_of(JobSpec(JobId("z"))) != profile_of(JobSpec(JobId("y"))), "nothing says that they are alike"


def test_predictions_are_judged_where_they_were_made() -> None:
    profiles = AccuracyLog()
    for at_s, finish_s in ((0, 80), (50, 55), (60, 30)):
        outlook = Outlook(None, Band(finish_s - 10, finish_s, finish_s + 5, finish_s + 10), "finished", True)
        profiles.predicted(at_s * 1000, {"a": outlook})
    judged = {j.point: j for j in profiles.finished("a", 0, 100_000)}
    assert judged[0.0].error == pytest.approx(0.2) and not judged[0.0].inside
    assert judged[0.5].error == pytest.approx(0.05) and judged[0.5].inside
    assert judged[0.5].error_left == pytest.approx(0.1)
    assert judged[0.75].error == pytest.approx(0.1)
    again = AccuracyLog.from_json(profiles.to_json())
    assert again.summary() == profiles.summary()
    assert [row["at_fraction_of_life"] for row in again.summary()] == [0.0, 0.25, 0.5, 0.75]


def test_futures_come_in_pairs_of_opposite_luck_so_that_a_few_have_the_right_middle() -> None:
    believed = Believed([JOB], [Belief(0.4, (100.0, 0.5))], np.array([[4.0, 10.0, 4.0, 10.0]]), np.zeros(1))
    middle_rate, middle_work = (float(values.flat[0]) for values in believed.draw(0))
    for seed in (1, 3, 23):
        drawn = [[float(values.flat[0]) for values in believed.draw(one)] for one in (seed, seed + 1)]
        (rate, work), (other_rate, other_work) = drawn
        assert rate != middle_rate
        assert math.sqrt(rate * other_rate) == pytest.approx(middle_rate)
        assert math.sqrt(work * other_work) == pytest.approx(middle_work)

"""Jobs that declare nothing are judged by those that are most like them, and honestly when there are none."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.estimate.likeness import Expectation, Level, LogFigure, expect, levels_of
from trainmaster.estimate.profiles import KEPT_KINDS, JobProfiles
from trainmaster.estimate.speeds.learned import LearningEstimator
from trainmaster.forecast.situation import Belief
from trainmaster.forecast.worker_request import belief_of
from trainmaster.model.cluster import Node, cluster_of
from trainmaster.model.job import JobId, JobSpec
from trainmaster.testing.builders import a_measurement

TYPES = ("k80", "v100")
CLUSTER = cluster_of([Node(name, name, 8) for name in TYPES])


def job(*command: str, user: str = "ann", **more: Any) -> JobSpec:
    return JobSpec(JobId("x"), payload={"command": list(command), "user": user}, **more)


def levels_shared(one: JobSpec, other: JobSpec) -> list[str]:
    keys = {level.key for level in levels_of(other)}
    return [level.key.split(":")[0] for level in levels_of(one) if level.key in keys]


def belief(profiles: JobProfiles, spec: JobSpec) -> Belief:
    return belief_of(LearningEstimator(DeclaredSpeeds(), profiles), spec, CLUSTER)


def seconds(found: Belief) -> float:
    """Median run time on the fastest type of a job without an amount of work."""
    assert found.work is not None and found.speeds is not None
    return found.work[0] / max(found.speeds)


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        (("python", "a.py", "--seed", "1"), ("python3.11", "a.py", "--seed", "2"), "all user script arguments command"),
        (("python", "a.py", "--lr", "1"), ("python", "a.py", "--lr", "2"), "all user script arguments"),
        (("python", "a.py", "--big"), ("python", "a.py", "--small"), "all user script"),
        (("python", "idea_1.py"), ("python", "idea_2.py"), "all user"),
        (("python", "-m", "pkg.a"), ("python", "-m", "pkg.b"), "all user"),
        ((), (), "all user"),
    ],
)
def test_which_levels_two_commands_share(one: tuple[str, ...], other: tuple[str, ...], shared: str) -> None:
    assert " ".join(levels_shared(job(*one), job(*other))) == shared
    assert " ".join(levels_shared(job(*one), job(*other, user="bob"))) == "all"


def test_few_jobs_move_a_belief_a_little_and_many_decide_it() -> None:
    start, level = Expectation(0.0, 1.0), Level("a", 0.5, "like it")
    sigmas = []
    for count in (1, 3, 30):
        figure = LogFigure()
        for k in range(count):
            figure.add(math.exp(2.0 + (0.1 if k % 2 else -0.1)))
        found = expect({"a": figure}, [level], start)
        assert 0.0 < found.mean <= 2.1
        assert found.jobs == count
        sigmas.append(found.sigma)
    assert sigmas == sorted(sigmas, reverse=True)
    assert sigmas[-1] < 0.2 < sigmas[0]
    assert expect({}, [level], start) == start


def test_a_run_time_of_the_same_command_is_expected_again_and_says_by_how_many() -> None:
    profiles, sweep = JobProfiles(), job("python", "train.py", "--lr", "0.1")
    assert not belief(profiles, sweep).known
    for _ in range(3):
        profiles.add_seconds(sweep, 500.0, "v100")
    found = belief(profiles, sweep)
    assert (found.known, found.basis) == (True, "3 jobs like it")
    assert seconds(found) == pytest.approx(500.0, rel=0.05)
    same_script = belief(profiles, job("python", "train.py", "--fast"))
    assert same_script.basis == "3 jobs of the same script"
    assert same_script.work is not None and found.work is not None
    assert same_script.work[1] > 2 * found.work[1], "other arguments may mean anything"
    assert not belief(profiles, job("python", "new.py")).known, "three jobs of a user tell nothing of a new command"
    assert not belief(profiles, job("python", "train.py", user="bob")).known


def test_a_new_command_is_judged_by_many_jobs_of_its_user_and_widely() -> None:
    profiles = JobProfiles()
    for k in range(8):
        profiles.add_seconds(job("python", f"old{k}.py"), 100.0 * 2**k, "v100")
    found = belief(profiles, job("python", "new.py"))
    assert (found.known, found.basis) == (True, "8 jobs of its user")
    assert found.work is not None and found.work[1] > 1.0


def test_short_jobs_end_first_so_those_of_a_user_do_not_narrow_what_a_new_command_may_take() -> None:
    profiles = JobProfiles()
    for k in range(20):
        profiles.add_seconds(job("python", f"old{k}.py"), 100.0, "v100")
    found = belief(profiles, job("python", "new.py"))
    assert found.work is not None and found.work[1] > 1.1


def test_epochs_count() -> None:
    profiles = JobProfiles()
    for epochs in (2, 4):
        profiles.add_seconds(job("python", "train.py", "--epochs", str(epochs)), 60.0 * epochs, "v100")
    assert seconds(belief(profiles, job("python", "train.py", "--epochs", "40"))) == pytest.approx(2400, rel=0.35)


def test_another_type_is_as_much_faster_as_the_catalogue_says() -> None:
    profiles, spec = JobProfiles(), job("python", "train.py")
    for _ in range(5):
        profiles.add_seconds(spec, 1000.0, "k80")
    found = belief(profiles, spec)
    assert found.speeds is not None
    slower = found.speeds[1] / found.speeds[0]
    assert 4 < slower < 7
    assert seconds(found) == pytest.approx(1000.0 / slower, rel=0.1)


def test_without_a_declared_speed_the_faster_type_is_preferred_and_nothing_is_known() -> None:
    estimator = LearningEstimator(DeclaredSpeeds())
    here, _ = estimator.profile(job("python", "a.py"), TYPES)
    assert here[1] == 1.0 > here[0]
    assert not estimator.speeds(job("python", "a.py"), TYPES).known
    assert np.all(estimator.profile(job("python", "a.py"), ("cpu", "mystery"))[0] == 1.0)


def test_steps_alone_are_unknown_until_a_job_of_the_script_has_measured() -> None:
    estimator = LearningEstimator(DeclaredSpeeds())
    first = job("python", "a.py", work_total=1000.0)
    assert not belief_of(estimator, first, CLUSTER).known
    estimator.observe(a_measurement(first, "v100", 20.0))
    running = LearningEstimator(DeclaredSpeeds(), *estimator.so_far([first]))
    found = belief_of(running, replace(job("python", "a.py", "--fast", work_total=500.0), id=JobId("y")), CLUSTER)
    assert (found.known, found.basis) == (True, "1 job of the same script")
    assert found.speeds is not None and max(found.speeds) == pytest.approx(20.0, rel=0.1)


def test_a_plain_command_with_a_wrong_declaration_is_judged_by_how_long_it_took() -> None:
    profiles, spec = JobProfiles(), job("python", "a.py", work_total=1000.0, steps_per_s={"v100": 10.0})
    assert belief(profiles, spec).basis == ""
    for _ in range(3):
        profiles.add_seconds(spec, 400.0, "v100")
    found = belief(profiles, spec)
    assert found.speeds is not None and found.basis == "3 jobs like it"
    assert 1000.0 / max(found.speeds) == pytest.approx(400.0, rel=0.1)


def test_what_is_kept_is_bounded_and_survives_a_file() -> None:
    profiles = JobProfiles()
    for k in range(KEPT_KINDS + 50):
        profiles.add_seconds(job("python", f"{k}.py"), 10.0, "v100")
        profiles.add_ratio(job("python", f"{k}.py"), 2.0, 1.0)
    assert max(len(profiles.seconds), len(profiles.ratios)) <= KEPT_KINDS
    again = JobProfiles.from_json(profiles.to_json())
    assert again == profiles
    assert belief(again, job("python", f"{KEPT_KINDS + 49}.py")).known

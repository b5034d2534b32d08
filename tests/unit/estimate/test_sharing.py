"""Which pairs are tried, kept and parted, by what is known of memory, of jobs alone and of pairs."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.estimate.gpu_memory import device_mib, needed_mib
from trainmaster.estimate.speeds.knowledge import Knowledge, profile_of
from trainmaster.estimate.speeds.learned import LearningEstimator
from trainmaster.estimate.speeds.sharing import Standing
from trainmaster.model.job import JobSpec
from trainmaster.model.scaling import Measurement
from trainmaster.testing.builders import a_job

TYPE = "v100"


def job(name: str, model: str = "", **rest: Any) -> JobSpec:
    return a_job(f"job-{name}", model=model or name, gpu_memory_mib=4096, speeds={TYPE: 10.0}, **rest)


class World:
    """Jobs alone at 10 steps/s, and pairs that keep what the test says."""

    def __init__(self) -> None:
        self.estimator = LearningEstimator(DeclaredSpeeds())

    def measured(self, spec: JobSpec, speed: float, beside: JobSpec | None = None, seconds: float = 60.0) -> None:
        self.estimator.observe(Measurement(spec, TYPE, 1, 0, False, speed, 1, beside, seconds))

    def alone(self, *specs: JobSpec) -> None:
        for spec in specs:
            self.measured(spec, 10.0)

    def together(self, a: JobSpec, b: JobSpec, kept_a: float, kept_b: float) -> None:
        self.measured(a, 10.0 * kept_a, b)
        self.measured(b, 10.0 * kept_b, a)

    def standing(self, a: JobSpec, b: JobSpec) -> Standing:
        return self.estimator.pair_belief(a, b, TYPE).standing


@pytest.fixture
def world() -> World:
    return World()


def test_a_pair_is_tried_once_both_were_seen_alone_and_then_kept_or_parted(world: World) -> None:
    a, b, c = job("a"), job("b"), job("c")
    assert world.standing(a, b) == Standing.NOT_SEEN_ALONE
    world.alone(a, b, c)
    assert world.standing(a, b) == Standing.UNTRIED
    world.together(a, b, 0.8, 0.7)
    world.together(a, c, 0.5, 0.3)
    assert (world.standing(a, b), world.standing(b, a)) == (Standing.KEPT, Standing.KEPT)
    assert world.standing(a, c) == Standing.PARTED
    kept = world.estimator.pair_kept(a, b, [TYPE])
    assert kept == pytest.approx(np.array([[0.8, 0.7]]), rel=0.05)
    assert (world.estimator.pair_kept(a, c, [TYPE]) == 0).all()


def test_jobs_of_the_same_profiles_are_not_tried_again_also_by_the_next_service(world: World) -> None:
    a, c = job("a"), job("c")
    world.alone(a, c)
    world.together(a, c, 0.5, 0.3)
    known = Knowledge.from_json(world.estimator.knowledge.to_json())
    after = LearningEstimator(DeclaredSpeeds(), None, known)
    again = replace(a, id="job-9"), replace(c, id="job-10")
    assert after.pair_belief(*again, TYPE).standing == Standing.PARTED


def test_what_is_offered_untried_lies_below_what_is_expected_and_bounds_hold_it(world: World) -> None:
    a, b = job("a"), job("b")
    world.alone(a, b)
    belief = world.estimator.pair_belief(a, b, TYPE)
    assert belief.low[0] < belief.kept[0] < belief.high[0]
    offered = world.estimator.pair_kept(a, b, [TYPE])[0, 0]
    assert 0 < offered < belief.kept[0]
    assert world.estimator.pair_kept(a, b, [TYPE], probability=0.9)[0, 0] < offered


def test_aggressive_jobs_are_not_tried_with_others(world: World) -> None:
    bully, others = job("bully"), [job(f"x{k}") for k in range(5)]
    world.alone(bully, *others)
    for other in others[:4]:
        world.together(bully, other, 0.45, 0.15)
    for other in others[1:3]:
        world.together(others[0], other, 0.8, 0.8)
    assert world.standing(bully, others[4]) == Standing.UNLIKELY
    assert world.standing(others[1], others[2]) == Standing.UNTRIED


@pytest.mark.parametrize(
    ("memory", "model", "standing"),
    [
        (9000, "x", Standing.TOO_LARGE), (7000, "x", Standing.NOT_SEEN_ALONE), (None, "x", Standing.MEMORY_UNKNOWN),
        (None, "ResNet-18", Standing.NOT_SEEN_ALONE), (None, "Llama-2-7B", Standing.TOO_LARGE),
    ],
)  # fmt: skip
def test_memory_decides_first(world: World, memory: int | None, model: str, standing: Standing) -> None:
    one = replace(job("m"), model=model, gpu_memory_mib=memory)
    other = replace(one, id="job-2", gpu_memory_mib=memory and 7000)
    belief = world.estimator.pair_belief(one, other, TYPE)
    assert belief.standing == standing
    assert not belief.offered
    assert belief.text(one.id, other.id)


def test_memory_as_declared_by_the_catalogue_and_of_devices() -> None:
    assert needed_mib(job("a")) == 4096
    assert needed_mib(job("a"), measured_mib=6000.0) == 6000
    assert needed_mib(replace(job("a"), gpu_memory_mib=None)) is None
    small, large = (a_job("r", model="ResNet-50", batch_size=batch) for batch in (16, 64))
    assert 1024 < (needed_mib(small) or 0) < (needed_mib(large) or 0) < 16_000
    assert needed_mib(a_job("r", model="ResNet-50", gpus=2, gpus_each=2)) is None
    assert (device_mib("Tesla-V100-SXM2-32GB") or 0) == pytest.approx(2 * (device_mib("v100") or 0))
    assert device_mib("cpu") is None


def test_a_type_of_unknown_memory_and_gangs_of_other_sizes_are_refused(world: World) -> None:
    assert world.estimator.pair_belief(job("a"), job("b"), "mystery").standing == Standing.DEVICE_UNKNOWN
    assert world.standing(job("a"), job("b", gpus=2)) == Standing.OTHER_SIZE


def test_a_job_that_starves_is_taken_to_keep_next_to_nothing(world: World) -> None:
    a, b = job("a"), job("b")
    world.alone(a, b)
    world.together(a, b, 0.9, 0.0)
    assert world.standing(a, b) == Standing.PARTED
    assert world.estimator.pair_belief(a, b, TYPE).kept[1] < 0.1


def test_a_run_is_compared_with_itself_and_short_measurements_prove_nothing(world: World) -> None:
    a, b = job("a"), job("b")
    world.alone(a, b)
    world.measured(a, 5.0, b, seconds=2.0)
    world.measured(b, 4.0, a, seconds=2.0)
    assert world.standing(a, b) == Standing.UNTRIED
    slow = replace(a, id="job-slow")  # another run of the profile, on a slow day
    world.measured(slow, 8.0)
    world.measured(slow, 6.4, b)
    for _ in range(3):  # a figure follows what is reported
        world.together(a, b, 0.8, 0.8)
    assert world.estimator.pair_belief(a, b, TYPE).kept[0] == pytest.approx(0.8, rel=0.03)


def test_the_version_grows_with_what_may_be_offered_and_not_otherwise(world: World) -> None:
    a, b = job("a"), job("b")
    versions = [world.estimator.pairs_version]
    for act in (
        lambda: world.alone(a, b),
        lambda: world.together(a, b, 0.8, 0.7),
        lambda: world.together(a, b, 0.79, 0.7),
        lambda: world.together(a, b, 0.2, 0.2),
    ):
        for _ in range(4):  # figures follow
            act()
        versions.append(world.estimator.pairs_version)
    grew = [after > before for before, after in pairwise(versions)]
    assert grew == [True, True, False, True]
    assert math.isclose(world.estimator.pair_belief(a, b, TYPE).kept[0], 0.2, rel_tol=0.1)
    assert profile_of(a).key != profile_of(b).key

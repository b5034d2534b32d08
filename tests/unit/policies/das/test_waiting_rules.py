"""Waiting for a faster type or a whole machine: only as long as it pays."""

import numpy as np
import pytest

from trainmaster.model.allocation import Allocation, Part
from trainmaster.model.reasons import Why
from trainmaster.policies import registry
from trainmaster.policies.das.features import Parts, Scene
from trainmaster.policies.das.gaussian import Kernel, SpeedHistory
from trainmaster.policies.das.observed_jobs import ObservedJobs
from trainmaster.policies.das.waiting_rules import LATER, PATIENCE, settle
from trainmaster.testing.builders import Held, a_job, a_view


def a_scene(free, need, speed, parts=(), minutes=60.0, kept=1.0, gpus=4) -> Scene:
    """As many machines of each type as `free` has rows; `parts`: (machine, GPUs, minutes left) of running jobs."""
    types, m = len(free), sum(len(row) for row in free)
    table = np.array(parts, float).reshape(-1, 3)
    return Scene(
        gpus=np.full(m, gpus), free=np.concatenate([np.array(row) for row in free]).astype(np.int64),
        type_of=np.repeat(np.arange(types), [len(row) for row in free]), rack_of=np.zeros(m, np.int64),
        jobs_on=np.zeros(m, np.int64), left_s=np.zeros(m),
        parts=Parts.sorted(table[:, 0], table[:, 1], table[:, 2] * 60.0), need=np.array(need),
        each=np.ones(len(need), np.int64), speed=np.tile(np.array(speed), (len(need), 1)),
        log_time=np.log(np.full(len(need), minutes * 60.0)), deviation=np.full(len(need), 0.5),
        waited_s=np.zeros(len(need)), whole_only=np.zeros(len(need), np.bool_), kept=np.full(len(need), kept),
    )  # fmt: skip


def settled(scene: Scene) -> Scene:
    return settle(scene, scene.need <= scene.gpus.max())


def test_a_slow_type_is_left_alone_while_a_fast_one_is_expected_soon():
    """60 minutes on the fast type, 300 on the slow one."""
    soon = settled(a_scene([[0], [4]], [1], [1.0, 0.2], [(0, 4, 10.0)]))
    assert (soon.usable[0] > 0).tolist() == [True, False]
    late = settled(a_scene([[0], [4]], [1], [1.0, 0.2], [(0, 4, 300.0)]))
    assert (late.usable[0] > 0).tolist() == [True, True]


def test_a_little_slower_is_taken_at_once():
    scene = settled(a_scene([[0], [4]], [1], [1.0, 1.0 / LATER], [(0, 4, 1.0)]))
    assert (scene.usable[0] > 0).all()


def test_with_a_long_queue_every_type_is_used():
    """Four of twelve jobs are laid on the fast machine soon; behind three rounds of them a slow GPU ends no later."""
    scene = settled(a_scene([[0], [4]], [1] * 40, [1.0, 0.2], [(0, 4, 10.0)]))
    slow = scene.usable[:, 1] > 0
    assert not slow[0]
    assert slow[-1]


def test_a_type_that_cannot_be_used_stays_so():
    scene = settled(a_scene([[4], [4]], [1], [1.0, 0.0]))
    assert scene.usable[0].tolist() == [1.0, 0.0]


def test_a_gang_that_loses_nothing_apart_does_not_wait_for_a_machine():
    for kept, minutes, waits in ((1.0, 10.0, False), (0.5, 10.0, True), (0.5, 60.0 * PATIENCE + 1, False)):
        scene = settled(a_scene([[1, 1]], [2], [1.0], [(0, 3, minutes), (1, 3, 1000.0)], kept=kept))
        assert scene.whole_only[0] == waits, (kept, minutes)


def test_no_machine_is_waited_for_that_nobody_frees():
    assert not settled(a_scene([[1, 1]], [2], [1.0], kept=0.5)).whole_only[0]


@pytest.mark.parametrize(("left_s", "starts"), [(60.0, False), (50_000.0, True)])
def test_the_policy_waits_for_the_faster_type_and_says_so(left_s: float, starts: bool):
    jobs = [
        a_job("r", gpus=1, seconds=left_s, speeds={"v100": 1.0, "k80": 0.2}),
        a_job("w", gpus=1, seconds=3600.0, speeds={"v100": 1.0, "k80": 0.2}),
    ]
    view = a_view(jobs, "k80=1,v100=1", running={"r": Held(allocation=Allocation(1, (Part(1, 1, 0, (0,)),)))})
    plan = registry.create("das").decide(view)
    assert bool(plan.changes) == starts
    if not starts:
        assert plan.why[1] == Why.SHAPE


def test_who_waits_by_choice_is_looked_at_again():
    """The job that is waited for may go on for longer than expected, and nothing would happen meanwhile."""
    jobs = [a_job(name, seconds=600.0, speeds={"v100": 1.0, "k80": 0.2}) for name in ("r", "w")]
    running = {"r": Held(allocation=Allocation(1, (Part(1, 1, 0, (0,)),)))}
    plan = registry.create("das").decide(a_view(jobs, "k80=1,v100=1", running=running, now_s=100.0))
    assert not plan.changes
    assert plan.wake_at_ms is not None
    assert 100_000 < plan.wake_at_ms <= 1_000_000
    full = registry.create("das").decide(a_view(jobs, "v100=1", running={"r": 1}, now_s=100.0))
    assert full.wake_at_ms is None


def beliefs() -> ObservedJobs:
    return ObservedJobs(SpeedHistory(Kernel()), declared=True, groups={}, running={})


def test_what_gangs_lose_apart_is_learned():
    """At first a little is feared; gangs that lose nothing, or a third, are believed before long."""
    free, dear = beliefs(), beliefs()
    before = free.kept_apart()
    for _ in range(40):
        free.seen_apart(0.0)
        dear.seen_apart(np.log(2 / 3))
    assert 0.9 < before < 1.0
    assert free.kept_apart() > 0.99
    assert dear.kept_apart() == pytest.approx(2 / 3, abs=0.04)
    for _ in range(100):  # what was once so is not so for ever
        dear.seen_apart(0.0)
    assert dear.kept_apart() > 0.95


def test_a_job_on_a_slower_type_is_expected_to_stay_longer():
    speeds = {"v100": 1.0, "k80": 0.2}
    jobs = [a_job(name, seconds=1000.0, speeds=speeds) for name in ("fast", "slow")]
    on = {name: Held(allocation=Allocation(k, (Part(k, 1, 0, (0,)),))) for name, k in (("slow", 0), ("fast", 1))}
    view = a_view(jobs, "k80=1,v100=1", running=on)
    left = beliefs().left_s(view, np.arange(2))
    assert left[1] == pytest.approx(5 * left[0], rel=0.01)

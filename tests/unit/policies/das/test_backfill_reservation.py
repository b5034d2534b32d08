"""Waiting for room: when it is expected, whom that keeps from starting, and what a plan says of it."""

import numpy as np
import pytest

from trainmaster.model.allocation import Allocation, Part
from trainmaster.model.reasons import Why
from trainmaster.policies import registry
from trainmaster.policies.das.backfill_reservation import BACKFILL_COUNTED, hold_for, startable
from trainmaster.policies.das.features import Parts, Scene, machines_for
from trainmaster.testing.builders import Held, a_job, a_view


def a_scene(free, need, parts=(), minutes=None, whole=None, types=None) -> Scene:
    """Machines of 4 GPUs; `parts`: (machine, GPUs, minutes left) of running jobs."""
    m, n = len(free), len(need)
    table = np.array(parts, float).reshape(-1, 3)
    return Scene(
        gpus=np.full(m, 4), free=np.array(free), type_of=np.array(types or [0] * m), rack_of=np.zeros(m, np.int64),
        jobs_on=np.zeros(m, np.int64), left_s=np.zeros(m),
        parts=Parts.sorted(table[:, 0], table[:, 1], table[:, 2] * 60.0), need=np.array(need),
        each=np.ones(n, np.int64), speed=np.ones((n, 2 if types else 1)),
        log_time=np.log(np.array(minutes or [60.0] * n) * 60.0), deviation=np.full(n, 0.5), waited_s=np.zeros(n),
        whole_only=np.array(whole if whole is not None else [k <= 4 for k in need]),
    )  # fmt: skip


def test_room_comes_where_and_when_jobs_end():
    scene = a_scene([1, 0, 0], [4], [(0, 3, 30), (1, 1, 10), (1, 3, 50), (2, 4, 20)])
    assert scene.earliest(0) == (20 * 60, 2, 0, 0)
    assert a_scene([1, 4], [3]).earliest(0)[0] == 0
    assert a_scene([1, 1], [2]).earliest(0)[0] == np.inf
    assert a_scene([1, 1], [2], whole=[False]).earliest(0)[0] == 0


def test_a_gang_of_several_machines_counts_the_type():
    scene = a_scene([2, 2, 0, 1], [8], [(2, 4, 30), (3, 3, 10)], types=[0, 0, 0, 1])
    assert scene.earliest(0) == (30 * 60, -1, 0, 0)
    hold = hold_for(scene, 0)
    assert hold is not None
    assert hold.machines.tolist() == [True, True, True, False]


def test_who_may_start_beside_a_job_that_is_held_for():
    """Machine 1 is waited for until 40 minutes: short jobs may use it till then, long ones go elsewhere or wait."""
    short, long = 40 / BACKFILL_COUNTED - 1, 40 / BACKFILL_COUNTED + 1
    scene = a_scene([0, 2], [4, 2, 2, 1], [(1, 2, 40), (0, 4, 90)], [60, short, long, long])
    hold = hold_for(scene, 0)
    assert hold is not None
    assert (hold.until_s, hold.spare, hold.machines.tolist()) == (2400, 0, [False, True])
    assert startable(scene, None).tolist() == [False, True, True, True]
    assert startable(scene, hold).tolist() == [False, True, False, False]
    assert hold.bars(scene, 2).tolist() == [False, True]
    assert not hold.bars(scene, 1).any()


def test_what_is_left_over_may_be_used_until_it_is_used_up():
    scene = a_scene([1, 0], [2, 1, 1], [(0, 2, 30), (0, 1, 90), (1, 4, 90)], [60, 1000, 1000])
    hold = hold_for(scene, 0)
    assert hold is not None
    assert hold.spare == 1
    assert startable(scene, hold).tolist() == [False, True, True]
    hold.note_start(scene, 1, np.array([1, 0]))
    assert hold.spare == 0
    scene.free[:] = [1, 0]
    assert not startable(scene, hold)[2]


def test_nobody_is_held_for_who_fits_or_never_will():
    assert hold_for(a_scene([4], [2]), 0) is None
    assert hold_for(a_scene([1], [8], [(0, 3, 10)]), 0) is None


def test_startable_is_what_placement_finds():
    rng = np.random.default_rng(5)
    for _ in range(200):
        m = int(rng.integers(2, 6))
        free = rng.integers(0, 5, m)
        parts = [(k, 4 - free[k], float(rng.uniform(1, 100))) for k in range(m) if free[k] < 4]
        need = rng.choice([1, 2, 3, 4, 6, 8], 6).tolist()
        types = rng.integers(0, 2, m).tolist()
        scene = a_scene(free, need, parts, rng.uniform(1, 200, 6).tolist(), types=types)
        hold = hold_for(scene, 0)
        fits = startable(scene, hold)
        for row in range(6):
            room = np.where(hold.bars(scene, row), 0, scene.free) if hold is not None else scene.free
            found = machines_for(room, need[row], scene.type_of, np.zeros(m), bool(scene.whole_only[row]))
            assert fits[row] == (found is not None)


@pytest.mark.parametrize(("gang_s", "waits"), [(10_000.0, True), (50.0, False)])
def test_a_gang_waits_for_one_machine_while_that_pays(gang_s: float, waits: bool):
    """Two machines of two GPUs, each with a job of 100 seconds: a long gang of two waits for one of them."""
    jobs = [a_job("r1", seconds=100.0), a_job("r2", seconds=100.0), a_job("gang", gpus=2, seconds=gang_s)]
    on = [Held(allocation=Allocation(0, (Part(node, 1, 0, (0,)),))) for node in (0, 1)]
    plan = registry.create("das").decide(a_view(jobs, "v100=4x2", running={"r1": on[0], "r2": on[1]}))
    assert bool(plan.changes) != waits
    assert not waits or plan.why[2] == Why.SHAPE


def test_a_gang_that_no_machine_can_take_is_split():
    plan = registry.create("das").decide(a_view([a_job("gang", gpus=4, seconds=50.0)], "v100=4x2"))
    given = plan.changes[0]
    assert given is not None
    assert len(given.parts) == 2

"""DAS's world is the simulator's: the same starts give the same completion times; and its streams are honest."""

from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pytest

from trainmaster.engine.engine import Settings
from trainmaster.learn.das import heuristics
from trainmaster.learn.das.heuristics import RULES
from trainmaster.learn.das.jobs import PARTS, draw_stream, seeds_of, synthetic_pool
from trainmaster.learn.das.metaheuristics import LookAhead, Malo, Mosa
from trainmaster.learn.das.world import GPUS_ASKED, SITES, TRUTH, World, job_name
from trainmaster.learn.das.world_shapes import varied_site, varied_world
from trainmaster.model.allocation import Allocation, Part
from trainmaster.model.plan import Plan
from trainmaster.model.policy_state import PolicyState
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import MS_PER_S
from trainmaster.sim.run import simulate

POOL = synthetic_pool()


def a_world(seed: int = 0, site: str = "small", jobs: int = 40) -> World:
    return World(SITES[site], draw_stream([POOL], "train", seeds_of("train", 1, seed)[0], jobs, GPUS_ASKED))


@dataclass(frozen=True)
class Scripted:
    """Starts each job where and when the world had started it."""

    order: tuple[str, ...]
    start_ms: dict[str, float] = field(hash=False)
    taken: dict[str, np.ndarray] = field(hash=False)

    def decide(self, view: Snapshot) -> Plan:
        builder = view.draft()
        rows = {view.jobs.id(row): row for row in range(len(view.jobs))}
        memo = int(view.memo.values.get("next", 0))
        while memo < len(self.order) and self.order[memo] in rows:
            row, gpus = rows[self.order[memo]], self.taken[self.order[memo]]  # type: ignore[index]
            nodes = np.flatnonzero(gpus)
            if view.now_ms < self.start_ms[self.order[memo]] - 100:
                break
            free = builder.free_capacity.device_milli
            parts = []
            for node in nodes.tolist():
                devices = np.flatnonzero(free[node] == 1000)[: gpus[node]]
                if len(devices) < gpus[node]:
                    break
                parts.append(Part(node, int(gpus[node]), 0, tuple(devices.tolist())))
            if len(parts) < len(nodes):
                break
            spec = view.jobs.spec(row)
            allocation = Allocation(int(view.cluster.type_of[nodes[0]]), tuple(parts))
            builder.free_capacity.take(allocation, spec.worker, spec.server)
            builder.changes[row] = allocation
            memo += 1
        return builder.plan(memo=PolicyState({"next": memo}))


@pytest.mark.parametrize("rule", ["FIFO-LoadBalance", "SJF-BestFit, perfect"])
@pytest.mark.parametrize("seed", [0, 1])
def test_same_starts_same_ends_as_the_simulator(rule: str, seed: int):
    world = a_world(seed)
    taken: dict[str, np.ndarray] = {}
    order: list[str] = []

    def watched(w: World):
        start = RULES[rule](w)
        if start is not None:
            order.append(job_name(start[0]))
            taken[job_name(start[0])] = start[1].copy()
        return start

    heuristics.run(world, watched)
    start_ms = {job_name(j): float(world.start_s[j]) * MS_PER_S for j in range(len(world.stream))}
    script = Scripted(tuple(order), start_ms, taken)
    result = simulate(world.job_specs(), world.cluster, script, Settings(seed=world.stream.seed), TRUTH)
    ended = {end.spec.id: end for end in result.ended}
    for j in range(len(world.stream)):
        end = ended[job_name(j)]  # type: ignore[index]
        assert end.first_start_ms / MS_PER_S == pytest.approx(world.start_s[j], abs=0.5), job_name(j)
        assert end.ended_ms / MS_PER_S == pytest.approx(world.end_s[j], abs=0.5), job_name(j)
        # The engine charges what the world charges.
        assert end.cost == pytest.approx(world.fee()[j], rel=1e-3)


@pytest.mark.parametrize("name", sorted(RULES))
def test_every_rule_ends_every_job(name: str):
    world = heuristics.run(a_world(3), RULES[name])
    assert world.over
    assert (world.start_s >= world.stream.submit_s).all()
    assert (world.end_s > world.start_s).all()
    assert (world.free == world.gpus).all()


@pytest.mark.parametrize("rival", [Malo(), Mosa(), LookAhead()], ids=["MALO", "MOSA", "look-ahead"])
def test_searches_end_every_job_and_repeat(rival):
    first = heuristics.run(a_world(4, jobs=30), rival)
    again = heuristics.run(a_world(4, jobs=30), rival)
    assert first.over
    assert (first.end_s == again.end_s).all()


def test_strict_lets_nobody_pass():
    strict = heuristics.run(a_world(5), RULES["FIFO-FirstFit, strict"])
    order = np.argsort(strict.stream.submit_s, kind="stable")
    assert (np.diff(strict.start_s[order]) >= 0).all()


def test_a_start_that_cannot_be_is_refused():
    world = a_world(6)
    world.to_decision()
    job = int(world.pending()[0])
    with pytest.raises(ValueError, match="cannot start"):
        world.start(job, np.zeros(len(world.free), np.int64))
    too_much = np.zeros(len(world.free), np.int64)
    too_much[0] = world.stream.gpus[job]
    world.free[0] = 0
    with pytest.raises(ValueError):
        world.start(job, too_much)


def test_parts_of_a_source_do_not_meet():
    bounds = sorted(PARTS.values())
    assert all(before[1] <= after[0] for before, after in pairwise(bounds))
    used = [set(seeds_of(part, 100)) for part in PARTS]
    assert len(set.union(*used)) == 300


def test_expectations_come_from_declarations_and_the_past_alone():
    """Doubling true durations while declarations stay changes nothing that is expected when the episode begins."""
    stream = draw_stream([POOL], "train", 7, 40, GPUS_ASKED)
    longer = replace(stream, work_s=stream.work_s * 2.0)
    jobs = np.arange(40)
    one, two = World(SITES["small"], stream), World(SITES["small"], longer)
    assert (one.expected(jobs)[0] == two.expected(jobs)[0]).all()
    told = np.corrcoef(one.expected(jobs)[0], np.log(stream.work_s))[0, 1]
    assert 0.4 < told < 0.99


def test_varied_worlds_are_varied_and_repeat():
    """Sites differ in shape, speeds and losses; the same seed gives the same one, and rules end every job on it."""
    sites = [varied_site(seed) for seed in range(40)]
    assert {len(site.speed) for site in sites} == {1, 2, 3}
    assert {gpus for site in sites for _, gpus in site.machines} == {1, 2, 4, 8}
    assert len({site.truth.spread_penalty for site in sites}) > 2
    assert min(speed for site in sites for _, speed in site.speed) < 0.4
    assert varied_site(7) == varied_site(7)
    for seed in range(4):
        one, two = (varied_world([POOL], "train", seed, 30) for _ in range(2))
        for world in (one, two):
            heuristics.run(world, RULES["SJF-BestFit, expected durations"])
        assert one.over
        assert (one.end_s == two.end_s).all()


def test_real_durations_are_not_scaled():
    scaled, real = (draw_stream([POOL], "train", 3, 40, GPUS_ASKED, real=flag) for flag in (False, True))
    ratio = real.work_s / scaled.work_s
    assert ratio.min() == pytest.approx(ratio.max())
    assert ratio[0] != pytest.approx(1.0)
    assert (scaled.gpus == real.gpus).all()

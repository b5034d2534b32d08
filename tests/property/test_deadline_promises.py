"""Promises hold: no accepted hard deadline is missed in a world without noise, whatever arrives later."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.promises import Promises
from trainmaster.engine.engine import Settings
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.job import DeadlineKind, Demand, JobId, JobSpec, Phase
from trainmaster.model.placement import parse_strategy
from trainmaster.model.scaling import amdahl
from trainmaster.model.units import NEVER_MS
from trainmaster.policies.registry import create
from trainmaster.sim.run import simulate
from trainmaster.sim.truth import TruthOptions

CLUSTERS = ("gpu=4", "gpu=8x4", "k80=4,v100=4", "gpu=6x2")


def world(seed: int, jobs: int) -> tuple[str, list[JobSpec], TruthOptions]:
    """Rigid and elastic, hard, soft and best-effort jobs, one type or two, with costs."""
    rng = np.random.Generator(np.random.PCG64(seed))
    cluster = CLUSTERS[int(rng.integers(len(CLUSTERS)))]
    types = parse_cluster(cluster).types
    specs, clock = [], 0
    for number in range(jobs):
        clock += int(rng.exponential(120_000))
        low = int(rng.integers(1, 3))
        high = low + int(rng.integers(0, 4)) * int(rng.random() < 0.6)
        work_s = float(rng.integers(10, 900)) + float(rng.random())
        kind = DeadlineKind(int(rng.choice([0, 1, 2], p=[0.2, 0.2, 0.6])))
        deadline = clock + int(work_s * 1000 * rng.uniform(0.6, 4.0)) if kind else NEVER_MS
        specs.append(
            JobSpec(
                id=JobId(f"j{number:03d}"),
                submit_ms=clock,
                workers_min=low,
                workers_max=min(high, 4),
                workers_ref=low,
                worker=Demand(1000),
                work_total=work_s,
                steps_per_s={name: float(rng.uniform(0.5, 2.0)) for name in types} if rng.random() < 0.5 else {},
                scaling=amdahl(float(rng.uniform(0.0, 0.3))),
                deadline_ms=deadline,
                deadline_kind=kind,
            )
        )
    costs = TruthOptions(
        restart_cost_ms=int(rng.choice([0, 5_000, 30_000])),
        resize_cost_ms=int(rng.choice([0, 1_000, 10_000])),
    )
    return cluster, specs, costs


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(
    seed=st.integers(0, 10**9),
    jobs=st.integers(1, 25),
    placement=st.sampled_from(["pack", "count"]),
    keep_trying=st.booleans(),
)
def test_no_promise_is_broken(seed: int, jobs: int, placement: str, keep_trying: bool) -> None:
    cluster, specs, costs = world(seed, jobs)
    watched = Promises(create(f"deadline:keep_trying={str(keep_trying).lower()}"))
    result = simulate(
        specs,
        parse_cluster(cluster),
        watched,
        Settings(placement=parse_strategy(placement)),
        costs,
    )
    assert result.plans_refused == 0, result.notes
    for ended in result.ended:
        if ended.spec.deadline_kind == DeadlineKind.HARD:
            if ended.spec.id in watched.admitted:
                assert ended.phase == Phase.FINISHED, ended
                assert ended.ended_ms <= ended.spec.deadline_ms, ended
            elif ended.phase == Phase.FINISHED:
                assert keep_trying, "it ran without a promise"
            else:
                assert ended.phase == Phase.REJECTED
                assert ended.rejection is not None
                assert ended.rejection.details["fault"]
        else:
            assert ended.phase == Phase.FINISHED


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(seed=st.integers(0, 10**9))
def test_sizes_do_not_go_back_and_forth(seed: int) -> None:
    """Changes are bounded by what happened: a job's stops by the arrivals and ends in its life."""
    cluster, specs, costs = world(seed, 15)
    result = simulate(specs, parse_cluster(cluster), create("deadline"), Settings(), costs)
    for ended in result.ended:
        if ended.phase == Phase.FINISHED:
            events = sum(
                1 for other in result.ended
                if ended.spec.submit_ms <= other.spec.submit_ms <= ended.ended_ms
                or ended.spec.submit_ms <= other.ended_ms <= ended.ended_ms
            )  # fmt: skip
            assert ended.preemptions <= 2 * events + 8


def test_same_bytes_twice() -> None:
    cluster, specs, costs = world(5, 25)
    runs = [simulate(specs, parse_cluster(cluster), create("deadline"), Settings(), costs) for _ in range(2)]
    assert [(e.spec.id, e.ended_ms, e.phase) for e in runs[0].ended] == [
        (e.spec.id, e.ended_ms, e.phase) for e in runs[1].ended
    ]

"""Dominant resource fairness: the paper's example, teams and weights, gangs, filling, patience."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.engine.verify import verify
from trainmaster.model.plan import Plan
from trainmaster.model.reasons import Why
from trainmaster.model.snapshot import Snapshot
from trainmaster.policies.registry import create
from trainmaster.testing.builders import Held, a_job, a_node, a_view, row_of, sizes_after, started


def _decide(view: Snapshot, name: str = "drf") -> Plan:
    plan = create(name).decide(view)
    verify(view, plan)
    return plan


def test_the_example_of_the_paper() -> None:
    """NSDI'11 section 4.1: 9 CPUs and 18 GB; A's tasks take <1 CPU, 4 GB>, B's <3 CPU, 1 GB>: 3 and 2."""
    nodes = [a_node("n0", 16, cpu=9, mem_mib=18 * 1024)]
    user_a = a_job("a", elastic=(1, 16), gpus_each=0, cpu=1, mem_mib=4 * 1024)
    user_b = a_job("b", elastic=(1, 16), gpus_each=0, cpu=3, mem_mib=1 * 1024)
    view = a_view([user_a, user_b], nodes)
    assert sizes_after(view, _decide(view)) == {"a": (3, 0), "b": (2, 0)}


def test_gpus_are_shared_equally_and_by_weight() -> None:
    jobs = [a_job("a", elastic=(1, 12)), a_job("b", elastic=(1, 12))]
    view = a_view(jobs, "v100=12x4")
    assert sizes_after(view, _decide(view)) == {"a": (6, 0), "b": (6, 0)}
    jobs = [a_job("a", elastic=(1, 12), weight=3.0), a_job("b", elastic=(1, 12))]
    view = a_view(jobs, "v100=12x4")
    assert sizes_after(view, _decide(view)) == {"a": (9, 0), "b": (3, 0)}


def test_teams_come_before_jobs() -> None:
    jobs = [a_job(f"red-{k}", elastic=(1, 12), entity="red") for k in range(3)]
    jobs.append(a_job("blue", elastic=(1, 12), entity="blue"))
    view = a_view(jobs, "v100=12")
    assert sizes_after(view, _decide(view)) == {
        "blue": (6, 0),
        "red-0": (2, 0),
        "red-1": (2, 0),
        "red-2": (2, 0),
    }
    weighted = a_view(jobs, "v100=12", entity_weights={"red": 3.0})
    assert sizes_after(weighted, _decide(weighted))["blue"] == (3, 0)


def test_a_team_that_has_less_is_served_first() -> None:
    jobs = [
        a_job("r0", gpus=4, entity="red"),
        a_job("r1", gpus=2, entity="red"),
        a_job("b0", gpus=2, entity="blue"),
    ]
    view = a_view(jobs, "v100=6", running=["r0"])
    assert started(view, _decide(view)) == {"b0"}


def test_rigid_jobs_are_not_stopped() -> None:
    jobs = [a_job("r0", gpus=8, entity="red"), a_job("b0", gpus=2, entity="blue")]
    view = a_view(jobs, "v100=8", running=["r0"])
    plan = _decide(view)
    assert not plan.changes
    assert plan.why[row_of(view, "b0")] == Why.CAPACITY


def test_elastic_jobs_shrink_to_let_others_in() -> None:
    jobs = [a_job("a", elastic=(1, 8)), a_job("b", elastic=(2, 8)), a_job("c", gpus=1)]
    view = a_view(jobs, "v100=8", running={"a": 8})
    assert sizes_after(view, _decide(view)) == {"a": (4, 0), "b": (3, 0), "c": (1, 0)}


def test_bundles_hold_a_server_each() -> None:
    nodes = [a_node("n0", 8, cpu=12)]
    job = a_job("a", elastic=(1, 8), servers=(1, 8), cpu=1, server_cpu=1)
    view = a_view([job], nodes)
    assert sizes_after(view, _decide(view)) == {"a": (6, 6)}


def test_growth_waits_when_it_would_not_repay_a_restart() -> None:
    job = a_job("a", elastic=(1, 8), seconds=100.0)
    view = a_view([job], running={"a": Held(4, work_done=96.0)}, restart_cost_ms=60_000)
    assert not _decide(view).changes


def test_a_second_look_changes_nothing() -> None:
    """No ping-pong: carry the plan out and decide again."""
    jobs = [
        a_job("a", elastic=(1, 8)),
        a_job("b", elastic=(1, 3)),
        a_job("c", gpus=2),
        a_job("d", elastic=(2, 6)),
    ]
    view = a_view(jobs, "v100=12x4")
    sizes = sizes_after(view, _decide(view))
    after = a_view(jobs, "v100=12x4", running={name: Held(w, s) for name, (w, s) in sizes.items()})
    assert not _decide(after).changes


def test_patience_reserves_for_a_large_gang() -> None:
    jobs = [a_job("r", gpus=3), a_job("big", gpus=4), *(a_job(f"s{k}") for k in range(3))]
    early = a_view(jobs, "v100=4", running=["r"], now_s=100)
    assert len(started(early, _decide(early))) == 1
    late = a_view(jobs, "v100=4", running=["r"], now_s=3600)
    plan = _decide(late)
    assert not plan.changes
    assert plan.why[row_of(late, "s0")] == Why.BEHIND
    assert started(late, _decide(late, "drf:patience_s=0")) == {"s0"}


def test_a_gang_that_can_never_fit_reserves_nothing() -> None:
    jobs = [a_job("giant", gpus=64), a_job("s")]
    view = a_view(jobs, "v100=4", now_s=100_000)
    assert started(view, _decide(view)) == {"s"}


def test_it_wakes_when_patience_ends() -> None:
    view = a_view([a_job("r", gpus=4), a_job("w", submit_s=50)], "v100=4", running=["r"], now_s=100)
    assert _decide(view).wake_at_ms == 3_650_000


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 6), st.integers(0, 2), st.integers(1, 3)),
        min_size=1,
        max_size=6,
    ),
    st.integers(4, 24),
)
@settings(max_examples=80, deadline=None)
def test_filling_is_max_min_fair(shapes: list[tuple[int, int, int, int]], gpus: int) -> None:
    """No job could be given one more GPU by taking it from a job that would still have more per weight."""
    jobs = [
        a_job(f"j{k}", elastic=(1, 1 + more), weight=float(weight)) for k, (_, more, _, weight) in enumerate(shapes)
    ]
    view = a_view(jobs, f"v100={gpus}x{gpus}")
    given_ = {name: w for name, (w, _) in sizes_after(view, _decide(view)).items()}
    share = {job.id: given_.get(job.id, 0) / job.weight for job in jobs}
    assert sum(given_.values()) == min(gpus, sum(job.workers_max for job in jobs))
    for poor in jobs:
        if given_.get(poor.id, 0) == poor.workers_max:
            continue
        for rich in jobs:
            if rich.id != poor.id and given_.get(rich.id, 0) > 0:
                after_giving = (given_[rich.id] - 1) / rich.weight
                assert after_giving <= share[poor.id] + 1e-9, (poor.id, rich.id, given_)


def test_a_thousand_jobs_are_decided_in_milliseconds() -> None:
    rng = np.random.Generator(np.random.PCG64(5))
    jobs = [a_job(f"j{k}", elastic=(1, int(rng.integers(1, 9)))) for k in range(1000)]
    view = a_view(jobs, "v100=512")
    plan = _decide(view)
    assert sum(w for w, _ in sizes_after(view, plan).values()) == 512


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_ties_go_to_the_earlier_arrival(order: list[int]) -> None:
    jobs = [a_job("c", entity="x"), a_job("b", entity="y"), a_job("a", entity="z")]
    view = a_view(jobs, "v100=1", row_order=order)
    assert started(view, _decide(view)) == {"c"}

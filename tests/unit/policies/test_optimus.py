"""Optimus: marginal gains against brute force, estimation error, fitted curves, no ping-pong."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.engine.verify import verify
from trainmaster.estimate.loss_fit import LossCurve
from trainmaster.model.plan import Plan
from trainmaster.model.scaling import Scaling, amdahl
from trainmaster.model.snapshot import Snapshot
from trainmaster.policies.registry import create
from trainmaster.policies.shared.optimus_estimates import believe
from trainmaster.testing.builders import Held, a_job, a_node, a_view, row_of, sizes_after, started

PS = Scaling(a=10.0, b=0.1, c=0.5, d=0.05, e=0.02)


def _decide(view: Snapshot, name: str = "optimus") -> Plan:
    plan = create(name).decide(view)
    verify(view, plan)
    return plan


@given(
    st.lists(st.tuples(st.floats(0.0, 0.5), st.integers(1, 8), st.floats(10, 1000)), min_size=1, max_size=3),
    st.integers(3, 9),
)
@settings(max_examples=60, deadline=None)
def test_greedy_is_optimal_for_concave_speed_ups(shapes: list[tuple[float, int, float]], gpus: int) -> None:
    """With one resource and convex run times, marginal gains minimise their sum: brute force agrees."""
    jobs = [
        a_job(f"j{k}", elastic=(1, most), seconds=s, scaling=amdahl(serial))
        for k, (serial, most, s) in enumerate(shapes)
    ]
    view = a_view(jobs, f"v100={gpus}x{gpus}")

    def total_s(sizes: tuple[int, ...]) -> float:
        return sum(
            (job.work_total or 0.0) / float(job.scaling.speed(w) / job.scaling.speed(1))
            for job, w in zip(jobs, sizes, strict=True)
        )

    best = min(
        total_s(sizes) for sizes in product(*(range(1, job.workers_max + 1) for job in jobs)) if sum(sizes) <= gpus
    )
    given_ = sizes_after(view, _decide(view))
    assert total_s(tuple(given_[job.id][0] for job in jobs)) == pytest.approx(best)


def test_it_stops_where_more_workers_only_slow_down() -> None:
    slows = Scaling(a=8.0, d=0.5)  # fastest at 4 workers
    view = a_view([a_job("a", elastic=(1, 8), scaling=slows)])
    assert sizes_after(view, _decide(view)) == {"a": (4, 0)}


def test_the_job_that_gains_most_gets_most() -> None:
    jobs = [
        a_job("scales", elastic=(1, 8), scaling=amdahl(0.02)),
        a_job("does-not", elastic=(1, 8), scaling=amdahl(0.8)),
    ]
    sizes = sizes_after(view := a_view(jobs, "v100=8"), _decide(view))
    assert sizes["scales"][0] > sizes["does-not"][0] >= 1


def test_everyone_starts_small_before_anyone_grows() -> None:
    jobs = [a_job(f"j{k}", elastic=(1, 8), seconds=10_000.0 if k == 0 else 10.0) for k in range(8)]
    view = a_view(jobs, "v100=8", running={"j0": 8})
    assert sizes_after(view, _decide(view)) == {f"j{k}": (1, 0) for k in range(8)}


def test_servers_are_given_where_they_are_the_bottleneck() -> None:
    nodes = [a_node("n0", 8, cpu=64)]
    bound = Scaling(a=1.0, f=20.0)
    view = a_view([a_job("a", elastic=(1, 4), servers=(1, 8), server_cpu=1, scaling=bound)], nodes)
    workers, servers = sizes_after(view, _decide(view))["a"]
    assert servers > workers


def test_scarce_cpu_makes_servers_dear() -> None:
    job = a_job("a", elastic=(1, 8), servers=(1, 8), cpu=1, server_cpu=4, scaling=PS)
    rich = a_view([job], [a_node("n0", 8, cpu=64)])
    poor = a_view([job], [a_node("n0", 8, cpu=16)])
    assert sizes_after(poor, _decide(poor))["a"][1] < sizes_after(rich, _decide(rich))["a"][1]


def test_rigid_jobs_start_in_order_and_are_not_stopped() -> None:
    jobs = [a_job("r0", gpus=5), a_job("r1", gpus=4), a_job("r2", gpus=2)]
    view = a_view(jobs, "v100=8", running=["r0"])
    plan = _decide(view)
    assert started(view, plan) == {"r2"}


def test_a_second_look_changes_nothing() -> None:
    nodes = [a_node(f"n{k}", 4, cpu=32) for k in range(3)]
    jobs = [
        a_job(f"j{k}", elastic=(1, 6), servers=(1, 6), server_cpu=1, scaling=PS, seconds=100.0 + k) for k in range(4)
    ]
    view = a_view(jobs, nodes)
    sizes = sizes_after(view, _decide(view))
    after = a_view(jobs, nodes, running={name: Held(w, s) for name, (w, s) in sizes.items()})
    assert not _decide(after).changes


def test_measured_curves_are_read_from_their_points() -> None:
    flat_after_two = Scaling(points=((1, 1.0), (2, 2.0), (3, 2.0), (8, 2.0)))
    view = a_view([a_job("a", elastic=(1, 8), scaling=flat_after_two)])
    assert sizes_after(view, _decide(view)) == {"a": (2, 0)}


def test_error_is_stable_per_job_and_kept_in_the_memo() -> None:
    jobs = [a_job(f"j{k}", elastic=(1, 8), seconds=100.0) for k in range(20)]
    view = a_view(jobs, "v100=64", seed=9)
    memo = _decide(view, "optimus:error=0.2").memo
    factors = memo.columns["estimate_factors"]
    assert set(np.unique(factors).round(9)) == {0.8, 1.2}
    again = a_view(jobs, "v100=64", seed=9, row_order=list(reversed(range(20))))
    other = _decide(again, "optimus:error=0.2").memo.columns["estimate_factors"]
    assert (other[::-1] == factors).all()
    assert (
        _decide(a_view(jobs, "v100=64", seed=10), "optimus:error=0.2").memo.columns["estimate_factors"] != factors
    ).any()
    assert not _decide(view).memo.columns, "without error there is nothing to remember"


def test_a_memo_written_before_is_not_drawn_again() -> None:
    jobs = [a_job("a", elastic=(1, 8)), a_job("b", elastic=(1, 8))]
    first = _decide(a_view(jobs), "optimus:error=0.2").memo
    kept = _decide(a_view(jobs, memo=first), "optimus:error=0.2").memo
    assert kept.to_json() == first.to_json()


def test_fitted_speeds_lead_to_nearly_the_same_sizes() -> None:
    nodes = [a_node(f"n{k}", 8, cpu=64) for k in range(2)]
    jobs = [a_job(f"j{k}", elastic=(1, 8), servers=(1, 8), server_cpu=1, scaling=PS, seconds=500.0) for k in range(3)]
    view = a_view(jobs, nodes)
    exact, fitted = sizes_after(view, _decide(view)), sizes_after(view, _decide(view, "optimus:fitted=true"))
    for name, (w, s) in exact.items():
        assert fitted[name] == (w, s), "noise-free profiles identify the curve"
    noisy = sizes_after(view, _decide(view, "optimus:fitted=true,error=0.2"))
    assert sum(w for w, _ in noisy.values()) >= 12


def test_losses_tell_how_much_is_left() -> None:
    job = a_job("a", elastic=(1, 8), seconds=100_000.0, epochs_total=100.0)
    curve = LossCurve(0.0002, 0.2, 0.1)
    converged = curve.converged_step(1000.0, 0.01 * float(curve.at(0)))
    history = [(float(k), float(curve.at(k))) for k in np.linspace(0, 5000, 20)]
    view = a_view([job], running={"a": Held(1, work_done=5000.0)}, losses={"a": history})
    rows = np.arange(1)
    fitted = believe(view, rows, 0.0, True, 8, 0.01).remaining[0]
    assert converged > 6000
    assert fitted == pytest.approx(converged - 5000.0, rel=0.05)
    assert believe(view, rows, 0.0, False, 8, 0.01).remaining[0] == pytest.approx(95_000.0)
    silent = a_view([job], running={"a": Held(1, work_done=5000.0)})
    assert believe(silent, rows, 0.0, True, 8, 0.01).remaining[0] == pytest.approx(95_000.0)


def test_growth_respects_the_restart_cost() -> None:
    job = a_job("a", elastic=(1, 8), seconds=100.0)
    free = a_view([job], running={"a": Held(4, work_done=20.0)})
    dear = a_view([job], running={"a": Held(4, work_done=20.0)}, restart_cost_ms=60_000)
    assert sizes_after(free, _decide(free)) == {"a": (8, 0)}
    assert not _decide(dear).changes


def test_unknown_work_stays_small() -> None:
    view = a_view([a_job("a", elastic=(1, 8), seconds=None)])
    assert sizes_after(view, _decide(view)) == {"a": (1, 0)}
    assert row_of(view, "a") == 0

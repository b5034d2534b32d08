"""Tetris: alignment, the mix with remaining work, and the order against a plain re-computation."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.engine.verify import verify
from trainmaster.model.plan import Plan
from trainmaster.model.snapshot import Snapshot
from trainmaster.policies.registry import create
from trainmaster.policies.tetris import _order
from trainmaster.testing.builders import a_job, a_node, a_view, started


def _decide(view: Snapshot, name: str = "tetris") -> Plan:
    plan = create(name).decide(view)
    verify(view, plan)
    return plan


def test_alignment_prefers_the_demand_that_matches_what_is_free() -> None:
    # Much CPU and few GPUs are left: the CPU-heavy job aligns better.
    nodes = [a_node("n0", 8, cpu=32)]
    jobs = [a_job("holder", gpus=6), a_job("gpu-heavy", gpus=2, cpu=1), a_job("cpu-heavy", gpus=1, cpu=28)]
    view = a_view(jobs, nodes, running=["holder"])
    assert started(view, _decide(view, "tetris:mix=0")) == {"cpu-heavy"}


def test_the_mix_turns_it_into_shortest_work_first() -> None:
    jobs = [a_job("large", gpus=4, seconds=1000), a_job("small", gpus=1, seconds=10)]
    view = a_view([*jobs, a_job("mid", gpus=3, seconds=50)], "v100=4")
    assert started(view, _decide(view, "tetris:mix=0")) == {"large"}
    assert started(view, _decide(view, "tetris:mix=100")) == {"small", "mid"}


def test_nothing_that_runs_is_stopped() -> None:
    view = a_view([a_job("a", gpus=4, seconds=1000), a_job("b", gpus=4, seconds=1)], "v100=4", running=["a"])
    assert not _decide(view).changes


def test_unknown_work_counts_as_the_longest_known() -> None:
    jobs = [
        a_job("unknown", gpus=2, seconds=None),
        a_job("short", gpus=2, seconds=5),
        a_job("long", gpus=2, seconds=500),
    ]
    view = a_view(jobs, "v100=2")
    assert started(view, _decide(view)) == {"short"}


def _score_order(
    free: list[float], demand: list[list[float]], seconds: list[float], total: list[float], mix: float
) -> list[int]:
    """Tetris by the formula, with plain lists."""
    left = list(free)
    share = [[d / t for d, t in zip(row, total, strict=True)] for row in demand]
    work = [sum(row) * s for row, s in zip(share, seconds, strict=True)]
    mean_work = sum(work) / len(work)
    remaining, chosen = list(range(len(demand))), []
    while True:
        remaining = [i for i in remaining if all(d <= f for d, f in zip(demand[i], left, strict=True))]
        if not remaining:
            return chosen
        align = {i: sum(s * f / t for s, f, t in zip(share[i], left, total, strict=True)) for i in remaining}
        mean = sum(align.values()) / len(align)
        best = max(remaining, key=lambda i: (align[i] / mean - mix * work[i] / mean_work, -i))
        chosen.append(best)
        remaining.remove(best)
        left = [f - d for f, d in zip(left, demand[best], strict=True)]


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 8), st.integers(1, 9), st.floats(1, 1e4)),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from([0.0, 0.5, 1.0, 3.0]),
)
@settings(max_examples=80, deadline=None)
def test_the_order_follows_the_formula(shapes: list[tuple[int, int, int, float]], mix: float) -> None:
    nodes = [a_node("n0", 8, cpu=24, mem_mib=32_000)]
    jobs = [
        a_job(f"j{k}", gpus=g, gpus_each=g, cpu=c, mem_mib=m * 1000, seconds=s) for k, (g, c, m, s) in enumerate(shapes)
    ]
    view = a_view(jobs, nodes)
    total = [8000.0, 24_000.0, 32_000.0]
    demand = [[g * 1000.0, c * 1000.0, m * 1000.0] for g, c, m, _ in shapes]
    expected = _score_order(total, demand, [s for *_, s in shapes], total, mix)
    order = _order(view, np.arange(len(jobs)), mix).tolist()
    assert order[: len(expected)] == expected
    assert sorted(order) == list(range(len(jobs)))

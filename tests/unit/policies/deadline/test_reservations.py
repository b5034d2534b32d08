"""Filling reservations: ElasticFlow's worked example, costs, and an independent check of what was booked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.policies.deadline import reservation_layout as col
from trainmaster.policies.deadline import reservations as rs


def arrays(**given_) -> rs.JobArrays:
    """One job by default: sizes 1, 2, 4 with speeds 1, 1.5, 2."""
    sizes = np.zeros((1, 12))
    speeds = np.zeros((1, 12))
    pairs = given_.pop("curve", [(1, 1.0), (2, 1.5), (4, 2.0)])
    for c, (size, speed) in enumerate(pairs):
        sizes[0, c], speeds[0, c] = size, speed
    values = {
        "work": np.array([3.0]), "base": np.ones((1, 1)), "sizes": sizes, "speeds": speeds,
        "levels": np.array([len(pairs)]), "each": np.array([1000]), "held": np.array([0]),
        "held_kind": np.array([-1]), "ran": np.array([False]), "pending_ms": np.zeros(1),
        "whole": np.array([False]), "restart_ms": 0.0, "resize_ms": 0.0,
    }  # fmt: skip
    return rs.JobArrays(**{**values, **given_})


def profile(steps: list[tuple[float, int]], capacity: int = 4000) -> rs.Profile:
    """One type: (from, free milli-GPUs)."""
    made = rs.Profile(0.0, np.array([capacity]), np.zeros((0, col.WIDTH)), np.zeros(0, np.int64), col.SOFT, 64)
    for i, (at, amount) in enumerate(steps):
        made.times[0, i], made.free[0, i] = at, amount
    made.n[0] = len(steps)
    return made


@pytest.mark.parametrize(("level", "fits"), [(0, False), (1, False), (2, True)])
def test_worked_example_of_elasticflow(level: int, fits: bool) -> None:
    """T(1, 2, 4) = 1, 1.5, 2; work 3; two slots; one GPU free in the first: it takes level 4."""
    cert = np.zeros(col.WIDTH)
    finish = profile([(0.0, 1000), (1000.0, 4000)]).fill(arrays(), 0, 0, level, 2000.0 + col.SLIP_MS, cert)
    assert (finish > 0) == fits
    if fits:
        assert finish == 2000.0
        assert int(cert[col.COUNT]) == 2
        assert cert[col.FIRST + 2] == 1  # one GPU, then four
        assert cert[col.FIRST + 5] == 4
        assert cert[col.FIRST + 3] == 1000.0


def test_the_smallest_sufficient_size_is_taken() -> None:
    cert = np.zeros(col.WIDTH)
    p = profile([(0.0, 4000)])
    assert p.reserve(arrays(), 0, 2500.0, col.PROMISED, cert)
    assert cert[col.FIRST + 2] == 2  # 3 / 1.5 = 2 s; one GPU would take 3 s
    assert p.free[0, 0] == 2000


def test_costs_are_taken_off_the_time() -> None:
    cert = np.zeros(col.WIDTH)
    again = arrays(ran=np.array([True]), restart_ms=600.0)
    assert profile([(0.0, 4000)]).fill(again, 0, 0, 0, 3599.0, cert) < 0
    assert profile([(0.0, 4000)]).fill(again, 0, 0, 0, 3600.0, cert) == 3600.0
    first = arrays(restart_ms=600.0)
    assert profile([(0.0, 4000)]).fill(first, 0, 0, 0, 3000.0, cert) == 3000.0


def test_a_growth_that_does_not_pay_is_not_made() -> None:
    held = arrays(held=np.array([1]), held_kind=np.array([0]), ran=np.array([True]), resize_ms=5000.0)
    cert = np.zeros(col.WIDTH)
    assert profile([(0.0, 4000)]).fill(held, 0, 0, 2, 9000.0, cert) == 3000.0
    assert cert[col.FIRST + 2] == 1


def test_what_may_not_be_interrupted_is_in_one_piece() -> None:
    job = arrays(whole=np.array([True]), curve=[(2, 1.0)])
    steps = [(0.0, 2000), (1000.0, 1000), (1500.0, 2000)]
    cert = np.zeros(col.WIDTH)
    assert profile(steps).fill(job, 0, 0, 0, 9000.0, cert) == 4500.0
    assert int(cert[col.COUNT]) == 1


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_reservations_are_covered_and_sufficient(data: st.DataObject) -> None:
    """An independent walk over the pieces: room at every moment, enough work with all costs, in time."""
    n = data.draw(st.integers(1, 8))
    times = [0.0, *sorted(float(x) for x in data.draw(st.sets(st.integers(1, 9000), min_size=n, max_size=n)))]
    steps = [(at, data.draw(st.integers(0, 6)) * 1000) for at in times]
    restart, resize = data.draw(st.sampled_from([0.0, 50.0])), data.draw(st.sampled_from([0.0, 200.0]))
    job = arrays(restart_ms=restart, resize_ms=resize, work=np.array([data.draw(st.floats(0.5, 8.0))]))
    due = float(data.draw(st.integers(500, 12000)))
    p = profile(steps, capacity=6000)
    before = list(steps)
    cert = np.zeros(col.WIDTH)
    if not p.reserve(job, 0, due, col.PROMISED, cert):
        return
    speed = {1: 1.0, 2: 1.5, 4: 2.0}
    done, size_before, end_before, ran = 0.0, 0, 0.0, False
    for s in range(int(cert[col.COUNT])):
        a, b, size = cert[col.FIRST + 3 * s : col.FIRST + 3 * s + 3]
        last = s == int(cert[col.COUNT]) - 1
        b = min(b, cert[col.FINISH]) if last else b
        for i, (at, amount) in enumerate(before):
            until = before[i + 1][0] if i + 1 < len(before) else np.inf
            if at < b and until > a:
                assert amount >= size * 1000
        joined = a == end_before and size_before > 0
        cost = (resize if size != size_before else 0.0) if joined else (restart if ran else 0.0)
        done += speed[int(size)] * max(0.0, b - a - cost) / 1000.0
        size_before, end_before, ran = size, b, True
    assert done >= job.work[0] - 1e-2 * (1 + job.work[0])
    assert cert[col.FINISH] <= due
    # Giving it back restores what was free.
    p.occupy(cert, 1000, -1)
    for i in range(p.n[0]):
        expected = [f for a, f in before if a <= p.times[0, i]][-1]
        assert p.free[0, i] == expected

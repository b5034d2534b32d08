"""Measured speeds become curves: the least-squares fit, factors of single jobs, and what progress adds to profiles."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.sizing_choices import choose
from trainmaster.estimate.nonnegative import nonnegative_least_squares
from trainmaster.learn.sizing.batch import SlotBatch
from trainmaster.learn.sizing.job_types import MEASURED
from trainmaster.learn.sizing.trace import TERMS, SizingSpec, draw_trace
from trainmaster.policies.dl2.speed_evidence import add_point, best_size, fit, move, settle, terms
from trainmaster.policies.dl2.speed_profiles import EVIDENCE, profile_draws
from trainmaster.policies.shared.speed_curves import SpeedCurves

SIZES = [(1, 1), (1, 4), (2, 2), (2, 16), (4, 8), (8, 4), (8, 32), (16, 16), (32, 8)]


def step_time(curve, workers, servers):
    return SpeedCurves(np.asarray(curve)[None]).step_time(0, workers, servers)


def curve_of(kind: int) -> np.ndarray:
    return np.array([getattr(MEASURED[kind].scaling(), term) for term in TERMS])


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_the_fit_is_the_least_squares_one(seed: int) -> None:
    rng = np.random.Generator(np.random.PCG64(seed))
    pool, design = np.zeros(EVIDENCE), []
    for w, p in rng.integers(1, 33, size=(rng.integers(2, 30), 2)).tolist():
        speed, weight = float(np.exp(rng.normal())), float(rng.integers(1, 4))
        add_point(pool, w, p, speed, weight)
        row = np.empty(7)
        terms(w, p, row)
        design.append(np.sqrt(weight) * np.append(speed * row, 1.0))
    matrix, wanted = np.array(design)[:, :7], np.array(design)[:, 7]
    found = np.empty(7)
    fit(pool, found)
    best = nonnegative_least_squares(matrix, wanted)
    assert (found >= 0).all()
    errors = [float(((matrix @ x - wanted) ** 2).sum()) for x in (found, best)]
    assert errors[0] <= errors[1] * (1 + 1e-6) + 1e-9


@pytest.mark.parametrize("kind", range(len(MEASURED)))
def test_exact_points_give_the_curve_back(kind: int) -> None:
    true, pool, found = curve_of(kind), np.zeros(EVIDENCE), np.empty(7)
    for w, p in SIZES:
        add_point(pool, w, p, 1.0 / step_time(true, w, p), 1.0)
    fit(pool, found)
    for w, p in [(3, 3), (1, 32), (12, 6)]:
        assert step_time(found, w, p) == pytest.approx(step_time(true, w, p), rel=1e-3)
    times = [(step_time(true, w, p), w, p) for w in range(1, 33) for p in range(1, 33)]
    assert step_time(true, *best_size(true, 1, 32, 1, 32)) <= 1.01 * min(times)[0]


def test_a_job_that_is_slower_than_its_model_is_known_by_its_own_points() -> None:
    true = curve_of(0)
    evidence, factors, pool = np.zeros((3, *EVIDENCE)), np.ones(3), np.zeros(EVIDENCE)
    for job, slower in enumerate((1.0, 1.0, 1.5)):
        for w, p in SIZES[job::2]:
            add_point(evidence[job], w, p, 1.0 / (slower * step_time(true, w, p)), 25.0)
        move(pool, evidence[job], 0.0, 1.0)
    found = np.empty(7)
    for _ in range(10):
        settle(pool, evidence, factors, np.arange(3), 3, found)
    assert factors[2] / factors[0] == pytest.approx(1.5, rel=0.05)
    assert step_time(found * factors[2], 3, 6) == pytest.approx(1.5 * step_time(true, 3, 6), rel=0.05)


def test_profiles_depend_on_the_job_alone_and_stay_in_range() -> None:
    one, again = (profile_draws((1, 8), (1, 16), 8, 0, "a") for _ in range(2))
    assert one.sizes.tolist() == again.sizes.tolist() and one.noise.tolist() == again.noise.tolist()
    assert one.sizes.tolist() != profile_draws((1, 8), (1, 16), 8, 0, "b").sizes.tolist()
    assert one.sizes[:, 0].max() <= 8 and one.sizes[:, 1].max() <= 16 and one.sizes.min() >= 1
    few = profile_draws((2, 2), (0, 0), 8, 0, "rigid")
    assert few.sizes.tolist() == [[2, 0]] * 8


def test_running_teaches_more_than_profiling_alone() -> None:
    """Relative error of the believed speed at the sizes that jobs run at, at their first slot and later."""
    trace = draw_trace(SizingSpec(servers=16, jobs=24, arrivals_per_slot_max=1), 3)
    batch, errors = SlotBatch([trace]), {True: [], False: []}
    s, slots = batch.state, dict.fromkeys(range(len(trace)), 0)
    before = -1
    while len(batch.alive):
        decisions = batch.decisions()
        if int(s.slot[0]) != before:
            before = int(s.slot[0])
            for j in decisions.job.tolist():
                error = abs(np.log(step_time(s.believed[0, j], 2, 8) / step_time(trace.curve[j], 2, 8)))
                errors[slots[j] == 0].append(error)
                slots[j] += 1
        gain = decisions.rows[:, 9:12]
        scores = np.where(decisions.rows[:, 6:9] < 3e-3, np.float32(-1e6), gain).astype(np.float32)
        batch.apply(decisions, *choose(decisions, scores, np.full(1, -1e5, np.float32)))
    assert np.mean(errors[False]) < 0.8 * np.mean(errors[True])

"""The bound on deadlines met: known cases, and never below what a schedule achieves."""

from __future__ import annotations

import highspy
import numpy as np
import pytest

from support.oracles.admitted_optimum import most_deadlines, tiny_deadline_instance
from support.oracles.deadline_bound import least_area_gpu_s, most_in_time
from support.weak_duality import bounded_maximum, upper_bound
from trainmaster.model.job import DeadlineKind, JobId, JobSpec
from trainmaster.model.scaling import LINEAR, amdahl


def job(name: str, submit_s: int, work_s: float, due_s: int, largest: int = 1, scaling=LINEAR) -> JobSpec:
    return JobSpec(
        JobId(name), submit_s * 1000, workers_max=largest, work_total=work_s, scaling=scaling,
        deadline_ms=due_s * 1000, deadline_kind=DeadlineKind.HARD,
    )  # fmt: skip


def test_three_of_four_fit_by_area() -> None:
    assert most_in_time([job(f"j{i}", 0, 100, 150) for i in range(4)], 2) == pytest.approx(3.0)


def test_release_times_count() -> None:
    """One GPU: the second comes too late to use what is free before."""
    jobs = [job("a", 0, 100, 200), job("b", 150, 60, 230)]
    assert most_in_time(jobs, 1) == pytest.approx(2.0)
    jobs = [job("a", 100, 100, 200), job("b", 150, 60, 230)]
    assert most_in_time(jobs, 1) == pytest.approx(1.0 + 70 / 100)  # b has 30 s alone and takes 30 s of a's 100


def test_a_job_that_cannot_be_in_time_at_its_largest() -> None:
    assert most_in_time([job("a", 0, 100, 30, largest=2)], 8) == 0.0
    assert most_in_time([job("a", 0, 100, 30, largest=4)], 8) == pytest.approx(1.0)
    assert most_in_time([job("a", 0, 100, 30, largest=4)], 2) == 0.0


def test_area_of_a_tight_window_counts_lost_efficiency() -> None:
    """Amdahl 50 %: speed 2 / 1.5 at two workers, so in 75 s it needs both all the time: 150 GPU seconds."""
    assert least_area_gpu_s(job("a", 0, 100, 75, 2, amdahl(0.5)), 8) == pytest.approx(150.0)
    assert least_area_gpu_s(job("a", 0, 100, 100, 2, amdahl(0.5)), 8) == pytest.approx(100.0)


@pytest.mark.parametrize("seed", range(8))
def test_never_below_the_exact_optimum(seed: int) -> None:
    instance = tiny_deadline_instance(seed, jobs=6)
    assert most_in_time(instance.specs, instance.gpus) >= most_deadlines(instance) - 1e-6


@pytest.mark.parametrize("seed", range(4))
def test_whatever_the_duals_the_bound_holds(seed: int) -> None:
    """max x1 + x2, x1 + 2 x2 <= 3, x1 >= 1, 0 <= x <= 2: the optimum is 2.5; good duals reach it, none goes below."""
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = 2, 2
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = np.ones(2), np.zeros(2), np.full(2, 2.0)
    lp.row_lower_, lp.row_upper_ = np.array([-np.inf, 1.0]), np.array([3.0, np.inf])
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_, lp.a_matrix_.index_ = np.array([0, 2, 3]), np.array([0, 1, 0])
    lp.a_matrix_.value_ = np.array([1.0, 1.0, 2.0])
    assert bounded_maximum(lp) == pytest.approx(2.5)
    rng = np.random.Generator(np.random.PCG64(seed))
    assert all(upper_bound(lp, rng.normal(size=2)) >= 2.5 - 1e-12 for _ in range(200))

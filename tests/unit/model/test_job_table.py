"""Columns and the table that shows them: staleness, freezing, derived figures, loss history."""

import numpy as np
import pytest

from trainmaster.core.state.job_arrays import free_index
from trainmaster.model.job import Phase
from trainmaster.model.job_table import MAX_LOSSES, JobColumns, JobTable
from trainmaster.model.scaling import amdahl
from trainmaster.testing.builders import Held, a_cluster, a_job, a_view, row_of


def _columns(n: int) -> JobColumns:
    columns = JobColumns(a_cluster("v100=8"))
    for k in range(n):
        columns.add(a_job(f"j{k}"), 0, np.ones(1), np.ones(1))
    return columns


def test_a_table_is_stale_once_the_engine_moves_on() -> None:
    columns = _columns(3)
    table = JobTable(columns, 0)
    assert table.id(0) == "j0"
    columns.version += 1
    with pytest.raises(RuntimeError, match="stale"):
        table.weight  # noqa: B018
    with pytest.raises(RuntimeError, match="stale"):
        table.spec(0)


def test_a_frozen_table_keeps_its_columns() -> None:
    columns = _columns(3)
    table = JobTable(columns, 0)
    table.freeze()
    columns.version += 1
    columns.floats["weight"][:] = 99.0
    assert table.weight.tolist() == [1.0, 1.0, 1.0]


def test_columns_cannot_be_written_through_a_table() -> None:
    table = JobTable(_columns(2), 0)
    with pytest.raises(ValueError, match="read-only"):
        table.weight[0] = 5.0


def test_unknown_columns_are_named() -> None:
    with pytest.raises(AttributeError, match="no column 'colour'"):
        JobTable(_columns(1), 0).colour  # noqa: B018


def test_rows_stay_in_arrival_order_while_slots_are_reused() -> None:
    columns = _columns(4)
    job_index = columns.job_index_of[a_job("j1").id]
    columns.forget(job_index)
    free_index(columns, job_index)
    columns.add(a_job("late"), 0, np.ones(1), np.ones(1))
    assert JobTable(columns, 0).ids == ["j0", "j2", "j3", "late"]


def test_columns_grow_without_losing_anything() -> None:
    columns = _columns(200)
    assert JobTable(columns, 0).ids == [f"j{k}" for k in range(200)]
    assert columns.capacity >= 200


def test_progress_is_extrapolated_at_the_estimated_rate_and_capped() -> None:
    jobs = [a_job("a", elastic=(1, 4), seconds=100.0, scaling=amdahl(0.5)), a_job("b", seconds=30.0)]
    view = a_view(jobs, now_s=0.0, running={"a": Held(4), "b": Held(1)})
    columns = view.jobs._source()
    later = JobTable(columns, 50_000)
    speed_up = 1.0 / (0.5 / 4 + 0.5)
    assert later.work_done.tolist() == pytest.approx([50 * speed_up, 30.0])
    assert later.service_gpu_s.tolist() == pytest.approx([200.0, 50.0])
    assert later.remaining_s.tolist() == pytest.approx([100 - 50 * speed_up, 0.0])


def test_ready_rows_leave_out_what_cannot_be_touched() -> None:
    jobs = [a_job(name) for name in "abcdefg"] + [a_job("h", preemptible=False)]
    view = a_view(
        jobs, now_s=10, running={"a": Held(1), "b": Held(1, phase=Phase.LAUNCHING), "h": Held(1)},
        backoff_until_s={"c": 20, "d": 10}, paused=["e"], row_order=[6, 5, 4, 3, 2, 1, 0, 7],
    )  # fmt: skip
    assert [view.jobs.id(row) for row in view.waiting_rows().tolist()] == ["d", "f", "g"]
    assert [view.jobs.id(row) for row in view.movable_rows().tolist()] == ["a", "d", "f", "g"]


def test_loss_history_is_thinned_and_forgets_lost_work() -> None:
    columns = _columns(1)
    job_index = columns.job_index_of[a_job("j0").id]
    for step in range(100):
        columns.record_loss(job_index, float(step), 1.0 / (step + 1))
    history = columns.losses[job_index]
    assert len(history) <= MAX_LOSSES
    assert history[0][0] == 0.0
    assert history[-1][0] == 99.0
    assert [k for k, _ in history] == sorted(k for k, _ in history)
    columns.record_loss(job_index, 50.0, 0.5)
    assert columns.losses[job_index][-1] == (50.0, 0.5)
    columns.forget(job_index)
    assert job_index not in columns.losses


def test_rng_depends_on_seed_version_and_salt_alone() -> None:
    one, two = a_view([a_job("a")], seed=3), a_view([a_job("b")], seed=3)
    assert one.rng(1).random() == two.rng(1).random()
    assert one.rng(1).random() != one.rng(2).random()
    assert a_view([a_job("a")], seed=4).rng(1).random() != one.rng(1).random()


def test_free_gpus_by_type_leave_out_nodes_that_are_down() -> None:
    view = a_view([a_job("a", gpus=2, types=("k80",))], "k80=8x4,v100=4", running=["a"], down=[1])
    assert view.free_gpus_by_type.tolist() == [2.0, 4.0]
    assert row_of(view, "a") == 0

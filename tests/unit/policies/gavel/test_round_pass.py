"""The pass of the run loop decides as the policy does, from what the engine remembers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trainmaster.core.state.plan_arrays import PlanArrays
from trainmaster.engine.engine import Engine, Settings
from trainmaster.model.capacity.packed_allocation import Changes, unpacked
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.placement import Strategy
from trainmaster.model.snapshot import Snapshot
from trainmaster.policies.gavel.policy import RoundPolicy
from trainmaster.policies.gavel.round_state import rows_of
from trainmaster.policies.registry import create
from trainmaster.sim.run import simulate
from trainmaster.testing.builders import a_job


def gangs(rows: Any, first: Any, flat: Any) -> list[tuple[int, Any]]:
    """Each change as (row, allocation)."""
    return [(int(row), None if at < 0 else unpacked(flat, at)) for row, at in zip(rows, first, strict=True)]


@pytest.mark.parametrize(
    ("name", "placement"),
    [
        ("gavel-max-min", Strategy.PACK),
        ("gavel-max-min:mechanism=original", Strategy.COUNT),
        ("gavel-max-min:aware=false,mechanism=original", Strategy.COUNT),
        ("gavel-ftf:patience_s=900", Strategy.SPREAD),
    ],
)
def test_the_pass_decides_as_the_policy(name: str, placement: Strategy, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.Generator(np.random.PCG64(11))
    jobs = [
        a_job(
            f"{k:02d}", gpus=int(rng.choice([1, 1, 2, 4])), seconds=float(rng.uniform(2000, 20000)),
            submit_s=float(k * 300),
            speeds={"k80": 1.0, "p100": float(rng.uniform(1, 3)), "v100": float(rng.uniform(1, 6))},
        )
        for k in range(16)
    ]  # fmt: skip
    engines: list[Engine] = []
    due, plain, make_pass = Engine.decide, RoundPolicy.decide, RoundPolicy.compiled_pass
    made = unmade = 0

    def remembered(engine: Engine) -> None:
        engines.append(engine)
        due(engine)

    def both(policy: RoundPolicy, view: Snapshot) -> Any:
        nonlocal made, unmade
        engine, arrays, round_pass = engines[-1], PlanArrays(), make_pass(policy)
        assert round_pass is not None
        kept, values = {name: column.copy() for name, column in engine.columns.memo.items()}, engine.memo_values
        free_before = view.free_capacity.device_milli.copy()
        round_pass.bind(engine)
        done = round_pass.decide(
            engine.columns, rows_of(view), view.now_ms, view.nodes, view.free_capacity, view.placer, arrays
        )
        assert (view.free_capacity.device_milli == free_before).all()
        round_pass.store(engine)
        after, after_values = {name: column.copy() for name, column in engine.columns.memo.items()}, engine.memo_values
        for column_name, column in kept.items():
            engine.columns.memo[column_name][:] = column
        engine.memo_values = values
        plan = plain(policy, view)
        unmade += not done
        if not done:
            return plan
        made += 1
        assert isinstance(plan.changes, Changes)
        rows, first, flat = plan.changes.in_order()
        row_of = {job_index: row for row, job_index in enumerate(view.jobs.job_indices.tolist())}
        changed = [row_of[i] for i in np.asarray(arrays.jobs.values)[: arrays.jobs.n].tolist()]
        given = np.asarray(arrays.first.values)[: arrays.first.n].tolist()
        packed = np.asarray(arrays.flat.values)[: arrays.flat.n]
        assert gangs(changed, given, packed) == gangs(rows, first.tolist(), flat)
        assert (plan.wake_at_ms or -1) == arrays.wake_at_ms
        for column_name in ("share", "received_s", "deficit_s", "known", "speeds"):
            expected = plan.memo.columns.get(column_name)
            assert expected is not None
            assert after[column_name][view.jobs.job_indices].tolist() == expected.tolist()
        for value in ("worker_s", "round_end_ms", "last_reset_ms", "computed_jobs", "nodes_up"):
            assert after_values[value] == plan.memo.values[value]
        return plan

    monkeypatch.setattr(Engine, "decide", remembered)
    monkeypatch.setattr(RoundPolicy, "compiled_pass", lambda _: None)
    monkeypatch.setattr(RoundPolicy, "decide", both)
    setting = Settings(placement=placement, round_ms=300_000)
    simulate(jobs, parse_cluster("k80=4x4,p100=4x2,v100=4x2"), create(name), setting)
    assert made > 20
    assert unmade > 0

"""Decisions at the start of rounds: also by a clock that never hits it exactly."""

from __future__ import annotations

from harness import job, new_engine

from trainmaster.model import event as ev
from trainmaster.model.command import Launch
from trainmaster.model.plan import Plan
from trainmaster.model.plan_builder import PlanBuilder
from trainmaster.model.snapshot import Snapshot


def test_the_first_step_after_a_rounds_start_decides_and_later_ones_do_not() -> None:
    engine, _ = new_engine(round_ms=10_000)
    assert engine.step(1_003, ev.JobSubmitted(job("a"))) == []
    assert engine.next_wake_ms == 10_000
    assert [type(command) for command in engine.step(10_004, ev.Woken())] == [Launch]
    engine.step(10_005, ev.Started(job("a").id, 1, 0.0, 10_005))
    assert engine.step(10_006, ev.JobSubmitted(job("b"))) == []
    assert engine.wake_at_ms == 20_000
    late = engine.step(23_500, ev.Woken())
    assert [command.job_id for command in late if isinstance(command, Launch)] == ["b"], "late is better than never"


def test_a_policy_that_wants_to_be_woken_at_the_next_round_is() -> None:
    engine, policy = new_engine(round_ms=10_000)
    engine.step(0, ev.JobSubmitted(job("a")))

    def later(view: Snapshot, builder: PlanBuilder) -> Plan:
        return builder.plan(wake_at_ms=(view.now_ms // 10_000 + 1) * 10_000)

    for now_ms in (10_002, 20_001, 30_007):
        policy.next = later
        engine.changed = True
        engine.step(now_ms - 500, ev.Woken())
        asked = len(policy.views)
        engine.step(now_ms, ev.Woken())
        assert len(policy.views) == asked + 1

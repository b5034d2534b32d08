"""When may a job run elsewhere? Only when each member of its last attempt has certainly ended."""

from __future__ import annotations

from harness import job, new_engine, only, phase_of, running

from trainmaster.model import event as ev
from trainmaster.model.command import Launch, Stop
from trainmaster.model.job import JobId, Phase
from trainmaster.model.lease import LeaseRule

A = JobId("a")
RULE = LeaseRule(lease_ms=30_000, drift=0.001, margin_ms=1_000)
OVER_MS = RULE.certainly_over_ms(0)


def test_the_rule_outlasts_the_slowest_clock() -> None:
    assert 31_000 < OVER_MS < 31_100
    for sent_ms in (0, 12_345):
        for answered_ms in (sent_ms, sent_ms + 400):
            slowest_end_ms = sent_ms + (RULE.worker_ends_ms(sent_ms) - sent_ms) * (1 + RULE.drift)
            assert RULE.certainly_over_ms(answered_ms) > slowest_end_ms


def test_a_cut_node_is_waited_for() -> None:
    engine, _ = new_engine(lease=RULE)
    running(engine, job("a", 2))
    stop = only(engine.step(10_000, ev.NodeLost(0, 0, confirmed=False)))
    assert isinstance(stop, Stop)
    assert phase_of(engine, "a") == Phase.LOST
    assert engine.next_wake_ms <= OVER_MS
    commands = [c for ms in (20_000, OVER_MS - 1) for c in engine.step(ms, ev.Woken())]
    assert all(isinstance(c, Stop) for c in commands), "only the unanswered stop is repeated"
    launch = only(engine.step(OVER_MS, ev.Woken()))
    assert isinstance(launch, Launch)
    assert launch.generation == 2
    assert [part.node for part in launch.allocation.parts] == [1]


def test_a_node_without_power_is_not_waited_for() -> None:
    engine, _ = new_engine(lease=RULE)
    running(engine, job("a", 2))
    launch = only(engine.step(10_000, ev.NodeLost(0, 0, confirmed=True)))
    assert isinstance(launch, Launch)


def test_a_split_gang_needs_both_the_stop_and_the_lease() -> None:
    for stop_first in (True, False):
        engine, _ = new_engine(lease=RULE)
        running(engine, job("a", 3))
        engine.step(10_000, ev.NodeLost(0, 0, confirmed=False))
        stopped = ev.Stopped(A, 1, 40.0, silent=frozenset({0}))
        if stop_first:
            engine.step(11_000, stopped)
        engine.step(OVER_MS, ev.NodeJoined(0))
        if not stop_first:
            assert phase_of(engine, "a") == Phase.LOST, "members on the other node were not heard of"
            engine.step(OVER_MS + 1, stopped)
        assert phase_of(engine, "a") == Phase.LAUNCHING
        assert engine.columns.floats["work_saved"][engine.columns.job_index_of[A]] == 40.0


def test_a_stop_with_a_silent_node_ends_nothing_there() -> None:
    engine, _ = new_engine(lease=RULE)
    running(engine, job("a", 3))
    engine.step(1_000, ev.JobPaused(A))
    engine.step(2_000, ev.Stopped(A, 1, 5.0, silent=frozenset({0})))
    assert phase_of(engine, "a") == Phase.LOST
    assert [c for c in engine.step(3_000, ev.JobSubmitted(job("b", 2))) if isinstance(c, Launch)] == []
    assert phase_of(engine, "b") == Phase.RESERVED, "planned there, but its devices may still be in use"
    launch = only([c for c in engine.step(4_000, ev.Stopped(A, 1, 5.0)) if isinstance(c, Launch)])
    assert launch.job_id == "b"
    assert phase_of(engine, "a") == Phase.PAUSED


def test_an_old_loss_says_nothing_of_a_later_launch() -> None:
    """The node was off and is back; the report of its loss comes late, after a launch onto it."""
    for confirmed in (True, False):
        engine, _ = new_engine(lease=RULE)
        launch = running(engine, job("a", 2), now_ms=50_000)
        engine.step(60_000, ev.NodeLost(0, 0, confirmed, seen_up_to=launch.seq - 1))
        assert phase_of(engine, "a") == Phase.RUNNING
        engine.step(61_000, ev.NodeLost(0, 0, confirmed, seen_up_to=launch.seq))
        assert phase_of(engine, "a") != Phase.RUNNING


def test_the_wish_of_the_user_outlives_the_loss() -> None:
    engine, _ = new_engine(lease=RULE)
    running(engine, job("a", 2))
    engine.step(1_000, ev.NodeLost(0, 0, confirmed=False))
    engine.step(2_000, ev.JobCancelled(A))
    engine.step(3_000, ev.JobPaused(A))  # too late: nothing takes a cancellation back
    assert phase_of(engine, "a") == Phase.LOST
    engine.step(OVER_MS, ev.Woken())
    assert [end.phase for end in engine.drain_ended()] == [Phase.CANCELLED]


def test_reservations_on_a_lost_node_are_withdrawn() -> None:
    engine, policy = new_engine(lease=RULE)
    running(engine, job("a", 2))

    def swap(view, builder):
        builder.release(0)
        builder.place(1)

    policy.next = swap
    engine.step(1_000, ev.JobSubmitted(job("b", 4)))
    assert phase_of(engine, "b") == Phase.RESERVED
    engine.step(2_000, ev.NodeLost(1, 0, confirmed=True))
    assert phase_of(engine, "b") == Phase.PENDING
    assert engine.reserved.n == 0


def test_an_unreachable_node_is_not_the_jobs_fault() -> None:
    engine, _ = new_engine()
    for attempt in range(1, 6):
        now_ms = attempt * 20_000
        events = [ev.JobSubmitted(job("a", 1, max_attempts=2))] if attempt == 1 else [ev.Woken()]
        launch = only([c for c in engine.step(now_ms, *events) if isinstance(c, Launch)])
        engine.step(now_ms + 1, ev.StartFailed(A, launch.generation, "no route", node=0))
        assert phase_of(engine, "a") == Phase.PENDING
    launch = only(engine.step(200_000, ev.Woken()))
    engine.step(200_001, ev.StartFailed(A, launch.generation, "no such image"))
    assert phase_of(engine, "a") == Phase.PENDING
    launch = only(engine.step(300_000, ev.Woken()))
    engine.step(300_001, ev.StartFailed(A, launch.generation, "no such image"))
    assert [end.phase for end in engine.drain_ended()] == [Phase.FAILED]

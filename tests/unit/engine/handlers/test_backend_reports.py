"""Reports and inventories: the old is fenced, the lost is made good, the repeated does nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from harness import job, new_engine, only, phase_of, running

from trainmaster.engine.engine import Engine, Settings
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.model import event as ev
from trainmaster.model.command import Launch, Resize, Stop
from trainmaster.model.job import JobId, Phase
from trainmaster.model.plan import Plan
from trainmaster.model.plan_builder import PlanBuilder
from trainmaster.model.snapshot import Snapshot
from trainmaster.policies import registry
from trainmaster.testing.builders import a_cluster, a_job

A = JobId("a")
BOTH = frozenset({0, 1})
LIVE = Settings(elastic_fill=True, ask_after_start=True)


def test_a_report_of_an_earlier_generation_is_ignored() -> None:
    engine, _ = new_engine()
    running(engine, job("a"))
    engine.step(1_000, ev.Exited(A, 1, 1, 10.0))
    engine.step(20_000, ev.Woken())
    assert phase_of(engine, "a") == Phase.LAUNCHING
    for late in (
        ev.Exited(A, 1, 0, 100.0),
        ev.Stopped(A, 1, 0.0),
        ev.Started(A, 1, 0.0, 0),
        ev.StartFailed(A, 1, ""),
    ):
        assert engine.step(20_000, late) == []
        assert phase_of(engine, "a") == Phase.LAUNCHING


def test_repeats_do_nothing() -> None:
    engine, _ = new_engine()
    launch = running(engine, job("a"))
    assert engine.step(1, ev.Started(A, 1, 50.0, 0)) == []
    assert engine.columns.floats["work_done"][0] < 1.0
    assert engine.step(2, ev.JobSubmitted(job("a"))) == []
    engine.step(3, ev.Exited(A, launch.generation, 0, 100.0))
    assert engine.step(4, ev.Exited(A, launch.generation, 0, 100.0), ev.JobSubmitted(job("a"))) == []
    assert [end.phase for end in engine.drain_ended()] == [Phase.FINISHED]


def test_an_unanswered_command_is_sent_again() -> None:
    engine, _ = new_engine(resend_ms=5_000)
    launch = only(engine.step(0, ev.JobSubmitted(job("a"))))
    assert engine.next_wake_ms == 5_000
    assert engine.step(4_999) == []
    assert engine.step(5_000) == [launch]
    assert engine.pending_commands() == [launch]
    engine.step(5_001, ev.Started(A, 1, 0.0, 5_001))
    assert engine.pending_commands() == []
    assert engine.step(60_000) == []


def test_an_inventory_makes_lost_reports_good() -> None:
    engine, _ = new_engine()
    launch = only(engine.step(0, ev.JobSubmitted(job("a"))))
    engine.step(10, ev.Inventory((ev.Observed(A, 1, 0.0, launch.seq, starting=True),), launch.seq, BOTH))
    assert phase_of(engine, "a") == Phase.LAUNCHING
    engine.step(20, ev.Inventory((ev.Observed(A, 1, 3.0, launch.seq),), launch.seq, BOTH))
    assert phase_of(engine, "a") == Phase.RUNNING
    engine.step(30, ev.Inventory((ev.Observed(A, 1, 100.0, 0, exit_code=0),), launch.seq, BOTH))
    assert [end.phase for end in engine.drain_ended()] == [Phase.FINISHED]


def test_silence_of_an_inventory_means_the_end_only_where_it_could_know() -> None:
    engine, _ = new_engine()
    launch = running(engine, job("a", 2))
    engine.step(10, ev.Inventory((), launch.seq - 1, BOTH))  # made before the launch was seen
    assert phase_of(engine, "a") == Phase.RUNNING
    engine.step(20, ev.Inventory((), launch.seq, frozenset({1})))  # its node could not be asked
    assert phase_of(engine, "a") == Phase.RUNNING
    command = only(engine.step(30, ev.Inventory((), launch.seq, BOTH)))
    assert isinstance(command, Launch)
    assert command.generation == 2


def test_what_should_not_run_is_stopped() -> None:
    engine, _ = new_engine()
    running(engine, job("a"))
    engine.step(1, ev.Exited(A, 1, 0, 100.0))
    stray = only(engine.step(2, ev.Inventory((ev.Observed(A, 1, 5.0, 1),), 1, BOTH)))
    assert isinstance(stray, Stop)
    foreign = ev.Observed(JobId("somebody-elses"), 1, 5.0, 1)
    assert engine.step(3, ev.Inventory((foreign,), 1, BOTH)) == []


def test_growth_waits_until_devices_are_physically_free() -> None:
    engine, policy = new_engine()
    elastic = job("a", 2, workers_min=1, workers_max=4)
    running(engine, elastic)
    running(engine, job("b", 2))

    def give_to_a(view: Snapshot, builder: PlanBuilder) -> None:
        builder.release(1)
        builder.resize(0, 4)

    policy.next = give_to_a
    stop = only(engine.step(10, ev.JobSubmitted(job("c", 4))))
    assert isinstance(stop, Stop)
    assert phase_of(engine, "a") == Phase.RUNNING

    def grow(view: Snapshot, builder: PlanBuilder) -> None:
        builder.resize(0, 4)

    policy.next = grow
    grown = only(engine.step(20, ev.Stopped(JobId("b"), 1, 1.0)))
    assert isinstance(grown, Resize)
    assert grown.allocation.workers == 4
    engine.step(30, ev.Resized(A, 1, grown.seq + 7, 0.0, 30))
    assert phase_of(engine, "a") == Phase.RESIZING, "the answer to another command"
    engine.step(40, ev.Resized(A, 1, grown.seq, 0.0, 40))
    assert phase_of(engine, "a") == Phase.RUNNING


def test_a_new_range_reaches_waiting_and_running_jobs() -> None:
    engine, _ = new_engine()
    running(engine, job("a", 4, workers_min=1))
    engine.step(10, ev.JobSubmitted(job("b", 4, workers_min=2)))
    shrink = only(engine.step(20, ev.JobRangeChanged(A, 1, 2)))
    assert isinstance(shrink, Resize), "a gang that is too large shrinks without stopping"
    assert shrink.allocation.workers == 2
    engine.step(30, ev.JobRangeChanged(JobId("b"), 0, 2), ev.JobRangeChanged(JobId("b"), 3, 2))
    assert len(engine.notes) == 2, "ranges that cannot be are refused"
    commands = engine.step(40, ev.JobRangeChanged(JobId("b"), 1, 2), ev.Resized(A, 1, shrink.seq, 0.0, 40))
    sizes = {c.job_id: c.allocation.workers for c in commands if isinstance(c, Launch)}
    assert sizes == {"b": 2}
    stop = next(c for c in engine.step(50, ev.JobRangeChanged(A, 3, 4)) if c.job_id == A)
    assert isinstance(stop, Stop), "one that is too small starts again"


def test_a_snapshot_that_the_engine_has_left_behind_cannot_be_read() -> None:
    engine, _ = new_engine()
    running(engine, job("a"))
    kept, frozen = engine.snapshot(), engine.snapshot()
    frozen.jobs.freeze()
    engine.step(1_000, ev.JobSubmitted(job("b")))
    with pytest.raises(RuntimeError, match="stale"):
        _ = kept.jobs.work_done
    assert len(frozen.jobs.work_done) == 1
    with pytest.raises(ValueError):
        frozen.jobs.work_done[0] = 5.0


def test_a_plan_made_from_an_older_snapshot_is_refused() -> None:
    engine, policy = new_engine()
    policy.next = lambda view, builder: builder.plan()
    engine.step(0, ev.JobSubmitted(job("a")))
    old = policy.views[0]

    def late(view: Snapshot, builder: PlanBuilder) -> Plan:
        builder.place(0)
        return replace(builder.plan(), based_on=old.version)

    policy.next = late
    assert engine.step(1, ev.JobSubmitted(job("b"))) == []
    assert engine.plans_refused == 1
    assert "version" in engine.notes[-1]


def test_a_command_keeps_its_job_although_the_job_ends_in_the_same_step() -> None:
    """A cancelled job's stop is written by index; its report comes in the same batch, and a new job takes the index."""
    engine, _ = new_engine()
    launch = running(engine, job("a"))
    stop, launched = engine.step(
        5, ev.JobCancelled(JobId("a")), ev.Stopped(JobId("a"), launch.generation, 1.0), ev.JobSubmitted(job("b"))
    )
    assert (type(stop), stop.job_id) == (Stop, "a")
    assert (type(launched), launched.job_id) == (Launch, "b")


@pytest.mark.parametrize("policy", [entry.name for entry in registry.entries()])
@pytest.mark.parametrize("least", [1, 4])
def test_a_start_that_took_time_leaves_nothing_undecided(policy: str, least: int) -> None:
    """While the first job was starting it could neither be stopped nor be shrunk for the second one."""
    engine = Engine(a_cluster("v100:1x4"), registry.create(policy), DeclaredSpeeds(), LIVE)
    launch = only(engine.step(0, ev.JobSubmitted(a_job("long", elastic=(least, 4), seconds=3_000))))
    engine.step(1_000, ev.JobSubmitted(a_job("short", seconds=10, submit_s=1)))
    engine.step(20_000, ev.Started(launch.job_id, launch.generation, 0.0, 20_000))
    engine.changed = True
    assert engine.step(20_000) == [], "it was not asked when the job had started"

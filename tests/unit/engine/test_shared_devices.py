"""Sharing in the engine: a launch waits until the other has really made room, and nobody is restarted for it."""

from harness import job, new_engine, only, phase_of, running

from trainmaster.model import event as ev
from trainmaster.model.cluster import Node, cluster_of
from trainmaster.model.command import Launch, Resize, Stop
from trainmaster.model.job import JobId, Phase
from trainmaster.model.plan import Plan
from trainmaster.model.plan_builder import HALF_MILLI, PlanBuilder
from trainmaster.model.snapshot import Snapshot

ONE = cluster_of([Node("n0", "v100", 1)])


def _row(view: Snapshot, name: str) -> int:
    return view.jobs.ids.index(JobId(name))


def _b_beside_a(view: Snapshot, builder: PlanBuilder) -> Plan:
    assert builder.place_beside(_row(view, "b"), _row(view, "a"))
    return builder.plan()


def _paired():
    """An engine in which a runs, b has been launched beside it; and the commands on the way."""
    engine, policy = new_engine(ONE)
    running(engine, job("a"))
    policy.next = _b_beside_a
    resize = only(engine.step(1, ev.JobSubmitted(job("b"))))
    return engine, policy, resize


def test_the_guest_is_launched_only_when_the_host_has_made_room() -> None:
    engine, _, resize = _paired()
    assert isinstance(resize, Resize)
    assert resize.job_id == "a"
    assert resize.allocation.share_milli == HALF_MILLI
    assert phase_of(engine, "a") == Phase.RESIZING
    assert phase_of(engine, "b") == Phase.RESERVED
    assert engine.physical.device_milli.tolist() == [[0]]  # the larger share is held until it is confirmed
    launch = only(engine.step(2, ev.Resized(JobId("a"), resize.generation, resize.seq, 0.0, 2)))
    assert isinstance(launch, Launch)
    assert launch.job_id == "b"
    assert launch.allocation.share_milli == HALF_MILLI
    assert phase_of(engine, "a") == Phase.RUNNING
    assert engine.columns.ints["preemptions"][engine.columns.job_index_of[JobId("a")]] == 0
    assert engine.physical.device_milli.tolist() == engine.planned.device_milli.tolist() == [[0]]


def test_a_repeated_confirmation_of_an_older_share_is_not_believed() -> None:
    engine, _, resize = _paired()
    assert engine.step(2, ev.Resized(JobId("a"), resize.generation, resize.seq - 1, 0.0, 2)) == []
    assert engine.physical.device_milli.tolist() == [[0]]
    assert phase_of(engine, "b") == Phase.RESERVED


def _both_running():
    engine, policy, resize = _paired()
    launch = only(engine.step(2, ev.Resized(JobId("a"), resize.generation, resize.seq, 0.0, 2)))
    engine.step(2, ev.Started(JobId("b"), launch.generation, 0.0, 2))
    return engine, policy


def _b_goes_a_takes_all(view: Snapshot, builder: PlanBuilder) -> Plan:
    if view.jobs.holding[_row(view, "b")]:
        builder.release(_row(view, "b"))
    assert builder.reshare(_row(view, "a"), 1000)
    return builder.plan()


def test_the_host_gets_its_device_back_once_the_guest_is_gone() -> None:
    engine, policy = _both_running()
    policy.next = _b_goes_a_takes_all
    engine.changed = True
    stop = only(engine.step(3))
    assert isinstance(stop, Stop)
    assert stop.job_id == "b"
    # The guest may still run: the host's larger share waits, and the plan's ledger says so.
    assert engine.physical.device_milli.tolist() == [[0]]
    assert engine.planned.device_milli.tolist() == [[500]]
    assert phase_of(engine, "a") == Phase.RUNNING
    policy.next = _b_goes_a_takes_all
    resize = only(engine.step(4, ev.Stopped(JobId("b"), stop.generation, 0.0)))
    assert isinstance(resize, Resize)
    assert resize.allocation.share_milli == 1000
    engine.step(5, ev.Resized(JobId("a"), resize.generation, resize.seq, 3.0, 5))
    assert engine.held[engine.columns.job_index_of[JobId("a")]].share_milli == 1000
    assert engine.plans_refused == 0


def test_measured_rates_replace_the_belief_about_a_job_alone() -> None:
    engine, _ = _both_running()
    engine.step(3, ev.Progressed(JobId("a"), 1, 0.001, 3, 0.6))
    job_index = engine.columns.job_index_of[JobId("a")]
    assert engine.columns.floats["rate"][job_index] == 0.6
    engine.step(1003)
    view = engine.snapshot()
    assert abs(view.jobs.work_done[_row(view, "a")] - 0.601) < 1e-9
    assert view.jobs.service_gpu_s[_row(view, "b")] == 0.5 * 1.001

"""Plan verification: for each rule a plan that breaks it, and one beside it that does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from harness import job, new_engine, phase_of, running

from trainmaster.engine.verify import PlanError, verify
from trainmaster.model import event as ev
from trainmaster.model.allocation import Allocation, Part
from trainmaster.model.cluster import Node, cluster_of
from trainmaster.model.job import Demand, JobSpec, Phase
from trainmaster.model.plan import Rejection
from trainmaster.model.reasons import Why
from trainmaster.model.snapshot import Snapshot

CLUSTER = cluster_of(
    [Node("n0", "v100", 2, cpu_milli=4_000, mem_mib=1_000), Node("n1", "v100", 2), Node("k0", "k80", 2)]
)
K80, V100 = 0, 1


def view_of(*specs: JobSpec, running_first: bool = False, down: int | None = None) -> Snapshot:
    """A snapshot in which these jobs wait (the first may run instead)."""
    engine, policy = new_engine(CLUSTER)
    if running_first:
        running(engine, specs[0])
        specs = specs[1:]
    policy.next = lambda view, builder: builder.plan()
    engine.step(1, *(ev.JobSubmitted(spec) for spec in specs))
    if down is not None:
        policy.next = lambda view, builder: builder.plan()
        engine.step(2, ev.NodeLost(down, 0, True))
    return engine.snapshot()


def gang(*parts: tuple[int, int, tuple[int, ...]], kind: int = V100, share: int = 1000, servers: int = 0) -> Allocation:
    placed = tuple(
        Part(node, workers, servers if i == 0 else 0, devices) for i, (node, workers, devices) in enumerate(parts)
    )
    return Allocation(kind, placed, share)


GOOD = gang((0, 2, (0, 1)))
CASES: dict[str, tuple[JobSpec, Allocation, str]] = {
    "too few workers": (job(workers=2), gang((0, 1, (0,))), "takes 2 to 2"),
    "too many workers": (job(workers=1), GOOD, "takes 1 to 1"),
    "servers it did not ask for": (job(workers=2), gang((0, 2, (0, 1)), servers=1), "servers"),
    "a type it does not accept": (
        job(workers=2, gpu_types=("v100",)), gang((2, 2, (0, 1)), kind=K80), "accept",
    ),
    "a type that is not": (job(workers=2), gang((0, 2, (0, 1)), kind=7), "accept"),
    "devices of another type": (job(workers=2), gang((2, 2, (0, 1)), kind=V100), "two types"),
    "a gang that is not whole": (job(workers=2), gang((0, 2, (0,))), "need 2 devices"),
    "a device twice": (job(workers=2), gang((0, 2, (1, 1))), "twice"),
    "a device that is not": (job(workers=2), gang((0, 2, (1, 2))), "does not have"),
    "a negative device": (job(workers=2), gang((0, 2, (-1, 0))), "does not have"),
    "a node twice": (job(workers=2), gang((0, 1, (0,)), (0, 1, (1,))), "one per node"),
    "a node that is not": (job(workers=2), gang((9, 2, (0, 1))), "one per node"),
    "more than it asks of a device": (
        job(workers=1, worker=Demand(gpu_milli=500)), gang((0, 1, (0,)), share=1000), "thousandths",
    ),
    "fractions that add up to more than a device": (
        job(workers=2, worker=Demand(gpu_milli=600)), gang((0, 2, (0, 0)), share=600), "others have",
    ),
    "more CPU than the node has": (job(workers=2, worker=Demand(cpu_milli=2_001)), GOOD, "others have"),
    "more memory than the node has": (job(workers=2, worker=Demand(mem_mib=501)), GOOD, "others have"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_bad_gang(name: str) -> None:
    spec, allocation, message = CASES[name]
    view = view_of(spec)
    plan = replace(view.draft().plan(), changes={0: allocation})
    with pytest.raises(PlanError, match=message):
        verify(view, plan)


@pytest.mark.parametrize(
    ("spec", "allocation"),
    [
        (job(workers=2), GOOD),
        (job(workers=3), gang((0, 1, (1,)), (1, 2, (0, 1)))),
        (job(workers=2, worker=Demand(gpu_milli=500)), gang((0, 2, (0, 0)), share=500)),
        (job(workers=2, worker=Demand(cpu_milli=2_000, mem_mib=500)), GOOD),
        (job(workers=1, worker=Demand(gpu_milli=2_000)), gang((0, 1, (0, 1)))),
        (job(workers=1, servers_min=1, servers_max=1, server=Demand(0, 100)), gang((0, 1, (0,)), servers=1)),
    ],
)
def test_a_good_gang(spec: JobSpec, allocation: Allocation) -> None:
    view = view_of(spec)
    free_capacity = verify(view, replace(view.draft().plan(), changes={0: allocation}))
    assert (view.free_capacity.device_milli - free_capacity.device_milli).sum() == allocation.gpu_milli


def test_two_jobs_on_one_device() -> None:
    view = view_of(job("a", 2), job("b", 2))
    plan = replace(view.draft().plan(), changes={0: GOOD, 1: GOOD})
    with pytest.raises(PlanError, match="others have"):
        verify(view, plan)
    verify(view, replace(plan, changes={0: GOOD, 1: gang((1, 2, (0, 1)))}))


def test_a_node_that_is_down() -> None:
    view = view_of(job("a", 2), down=0)
    with pytest.raises(PlanError, match="down"):
        verify(view, replace(view.draft().plan(), changes={0: GOOD}))


def _stale(view: Snapshot):
    return replace(view.draft().plan(), based_on=view.version - 1)


def _take_from_the_idle(view: Snapshot):
    return replace(view.draft().plan(), changes={1: None})


def _silent(view: Snapshot):
    plan = view.draft().plan()
    return replace(plan, why=plan.why * 0)


def _reject_the_running(view: Snapshot):
    return replace(view.draft().plan(), rejections={0: Rejection(Why.PRICE)})


def _reject_and_place(view: Snapshot):
    builder = view.draft()
    builder.place(1)
    builder.reject(1, Why.PRICE)
    return builder.plan()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_stale, "version"),
        (_take_from_the_idle, "holds nothing"),
        (_silent, "without a reason"),
        (_reject_the_running, "only while it is pending"),
        (_reject_and_place, "only while it is pending"),
    ],
)
def test_a_bad_plan(make: Callable[[Snapshot], object], message: str) -> None:
    view = view_of(job("a", 2), job("b", 2), running_first=True)
    with pytest.raises(PlanError, match=message):
        verify(view, make(view))  # type: ignore[arg-type]
    verify(view, view.draft().plan())


def test_a_job_that_may_not_be_preempted() -> None:
    view = view_of(job("a", 2, preemptible=False), running_first=True)
    with pytest.raises(PlanError, match="preempted"):
        verify(view, replace(view.draft().plan(), changes={0: None}))


def test_a_job_between_two_states_is_left_alone_and_a_refused_plan_changes_nothing() -> None:
    engine, policy = new_engine(CLUSTER)
    engine.step(0, ev.JobSubmitted(job("a", 2)))
    free = engine.planned.device_milli.copy()
    policy.next = lambda view, builder: replace(builder.plan(), changes={0: gang((1, 2, (0, 1)))})
    assert engine.step(1, ev.JobSubmitted(job("b"))) == []
    assert "cannot be changed while it is launching" in engine.notes[-1]
    assert engine.plans_refused == 1
    assert (engine.planned.device_milli == free).all()
    assert phase_of(engine, "b") == Phase.PENDING

"""Two gangs on the same devices, as a plan builder gives and takes it."""

from hypothesis import given
from hypothesis import strategies as st

from trainmaster.core.int_list import IntList
from trainmaster.core.state.packed_allocation import union_gang
from trainmaster.engine.verify import verify
from trainmaster.model.allocation import Allocation, Part
from trainmaster.model.capacity.free_resources import FreeCapacity
from trainmaster.model.capacity.packed_allocation import packed_list, unpacked
from trainmaster.model.job import Demand
from trainmaster.model.plan_builder import HALF_MILLI
from trainmaster.model.reasons import Why
from trainmaster.testing.builders import Held, a_cluster, a_job, a_node, a_view
from trainmaster.testing.recount import recount


def test_a_waiting_job_joins_a_running_one_and_both_have_half() -> None:
    view = a_view([a_job("a", gpus=2), a_job("b", gpus=2)], "v100=2", running=["a"])
    builder = view.draft()
    assert builder.place_beside(1, 0)
    a, b = builder.allocation(0), builder.allocation(1)
    assert a is not None
    assert b is not None
    assert a.parts == b.parts
    assert a.share_milli == b.share_milli == HALF_MILLI
    plan = builder.plan()
    free_capacity = verify(view, plan)
    assert free_capacity.device_milli.tolist() == builder.free_capacity.device_milli.tolist() == [[0, 0]]
    assert not recount(view, plan)
    assert plan.why[1] == 0


def test_two_waiting_jobs_start_together() -> None:
    view = a_view([a_job("a", gpus=2), a_job("b", gpus=2), a_job("c")], "v100=2")
    builder = view.draft()
    assert builder.place(0)
    assert builder.place_beside(1, 0)
    assert not builder.place(2)
    verify(view, builder.plan())


def test_a_third_job_finds_no_room_and_changes_nothing() -> None:
    view = a_view([a_job("a"), a_job("b"), a_job("c")], "v100=1", running=["a"])
    builder = view.draft()
    assert builder.place_beside(1, 0)
    before = (dict(builder.changes), builder.free_capacity.device_milli.tolist())
    assert not builder.place_beside(2, 0)
    assert (dict(builder.changes), builder.free_capacity.device_milli.tolist()) == before
    assert builder.plan().why[2] == Why.CAPACITY


def test_gangs_of_another_shape_or_type_do_not_join() -> None:
    jobs = [
        a_job("a", gpus=2, types=["v100"]), a_job("one"), a_job("fat", gpus=2, gpus_each=2),
        a_job("picky", gpus=2, types=["k80"]),
        a_job("part", gpus=0.5), a_job("ps", gpus=2, servers=(1, 1)),
    ]  # fmt: skip
    view = a_view(jobs, "v100=2,k80=2", running=["a"])
    builder = view.draft()
    for row in range(1, len(jobs)):
        assert not builder.place_beside(row, 0)
    assert builder.changes == {}


def test_cpu_of_the_node_must_suffice_for_both() -> None:
    cluster = [a_node("n0", 2, cpu=3)]
    view = a_view([a_job("a", cpu=2), a_job("b", cpu=2)], cluster, running=["a"])
    builder = view.draft()
    assert not builder.place_beside(1, 0)
    assert builder.changes == {}
    assert builder.free_capacity.device_milli.tolist() == [[0, 1000]]


def _shared(share: int = HALF_MILLI) -> Allocation:
    return Allocation(0, (Part(0, 1, 0, (0,)),), share)


def test_the_one_left_takes_the_whole_device_when_the_other_goes() -> None:
    running = {"a": Held(allocation=_shared()), "b": Held(allocation=_shared())}
    view = a_view([a_job("a"), a_job("b")], "v100=1", running=running)
    builder = view.draft()
    assert not builder.reshare(0, 1000)
    assert builder.changes == {}
    builder.release(1)
    assert builder.reshare(0, 1000)
    assert builder.changes[0] == _shared(1000)
    verify(view, builder.plan())
    assert builder.reshare(0, HALF_MILLI)
    assert 0 not in builder.changes


def test_a_job_that_may_not_be_preempted_may_share_but_not_move() -> None:
    view = a_view([a_job("a", preemptible=False), a_job("b")], "v100=1", running=["a"])
    builder = view.draft()
    assert builder.place_beside(1, 0)
    verify(view, builder.plan())


def test_service_counts_what_is_held() -> None:
    running = {"a": Held(allocation=_shared()), "b": Held(allocation=_shared())}
    view = a_view([a_job("a"), a_job("b")], "v100=1", running=running, now_s=0.0)
    assert view.jobs.held_gpu_milli.tolist() == [500, 500]


def _union(old: Allocation, new: Allocation) -> Allocation:
    gang = IntList()
    union_gang(packed_list(old), 0, packed_list(new), 0, gang)
    return unpacked(gang.values)


def test_a_union_covers_both_and_keeps_shared_devices() -> None:
    old = Allocation(0, (Part(0, 2, 0, (0, 0)),), 500)
    new = Allocation(0, (Part(0, 1, 1, (1,)), Part(1, 2, 0, (0, 0))), 500)
    assert _union(old, new).parts == (Part(0, 2, 1, (0, 0, 1)), Part(1, 2, 0, (0, 0)))


@given(st.sampled_from([500, 1000]), st.sampled_from([500, 1000]))
def test_a_union_covers_both_shares(old: int, new: int) -> None:
    both = _union(_shared(old), _shared(new))
    assert both.parts == _shared().parts
    assert both.share_milli == max(old, new)
    free_capacity = FreeCapacity.full(a_cluster("v100=1"))
    free_capacity.take(both, Demand(), Demand(0))
    assert free_capacity.device_milli[0, 0] == 1000 - max(old, new)

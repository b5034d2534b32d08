"""The ledger: what is taken is gone, what is given back is free again, shared devices count in full."""

from hypothesis import given
from hypothesis import strategies as st

from trainmaster.model.allocation import Allocation, Part
from trainmaster.model.capacity.free_resources import FreeCapacity
from trainmaster.model.job import NO_DEMAND, Demand
from trainmaster.testing.builders import a_cluster, a_node

CLUSTER = a_cluster([a_node("n0", 4, cpu=16, mem_mib=1000), a_node("n1", 2, cpu=16, mem_mib=1000)])


def _allocation(*parts: tuple[int, int, int, tuple[int, ...]], share: int = 1000) -> Allocation:
    return Allocation(0, tuple(Part(*part) for part in parts), share)


def test_full_ledger_has_only_existing_devices() -> None:
    free_capacity = FreeCapacity.full(CLUSTER)
    assert free_capacity.device_milli.tolist() == [[1000] * 4, [1000, 1000, 0, 0]]
    assert free_capacity.whole.tolist() == [4, 2]


def test_take_and_give_restore_everything() -> None:
    free_capacity = FreeCapacity.full(CLUSTER)
    worker, server = Demand(1000, 2000, 100), Demand(0, 500, 50)
    gang = _allocation((0, 2, 1, (1, 3)), (1, 1, 0, (0,)))
    free_capacity.take(gang, worker, server)
    assert free_capacity.device_milli.tolist() == [[1000, 0, 1000, 0], [0, 1000, 0, 0]]
    assert free_capacity.whole.tolist() == [2, 1]
    assert free_capacity.cpu_milli.tolist() == [16000 - 4500, 16000 - 2000]
    assert free_capacity.mem_mib.tolist() == [750, 900]
    free_capacity.give(gang, worker, server)
    fresh = FreeCapacity.full(CLUSTER)
    assert free_capacity.device_milli.tolist() == fresh.device_milli.tolist()
    assert free_capacity.whole.tolist() == fresh.whole.tolist()
    assert free_capacity.cpu_milli.tolist() == fresh.cpu_milli.tolist()


def test_fractions_break_a_whole_device_once() -> None:
    free_capacity = FreeCapacity.full(CLUSTER)
    half = Demand(500)
    free_capacity.take(_allocation((0, 2, 0, (0, 0)), share=500), half, NO_DEMAND)
    assert free_capacity.device_milli[0].tolist() == [0, 1000, 1000, 1000]
    assert free_capacity.whole[0] == 3


def test_two_members_on_one_device_need_room_for_both() -> None:
    free_capacity = FreeCapacity.full(CLUSTER)
    half = Demand(500)
    free_capacity.take(_allocation((0, 1, 0, (0,)), share=500), half, NO_DEMAND)
    assert free_capacity.fits(_allocation((0, 1, 0, (0,)), share=500), half, NO_DEMAND)
    assert not free_capacity.fits(_allocation((0, 2, 0, (0, 0)), share=500), half, NO_DEMAND)


def test_cpu_and_memory_limit_too() -> None:
    free_capacity = FreeCapacity.full(CLUSTER)
    assert not free_capacity.fits(_allocation((0, 1, 0, (0,))), Demand(1000, 16_001), NO_DEMAND)
    assert not free_capacity.fits(_allocation((0, 1, 1, (0,))), Demand(1000, 0, 600), Demand(0, 0, 401))
    assert free_capacity.fits(_allocation((0, 1, 1, (0,))), Demand(1000, 0, 600), Demand(0, 0, 400))


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3), st.sampled_from([250, 500, 1000])), max_size=30))
def test_whole_is_always_the_number_of_untouched_devices(requests: list[tuple[int, int, int]]) -> None:
    free_capacity = FreeCapacity.full(CLUSTER)
    taken = []
    for node, device, share in requests:
        gang = _allocation((node, 1, 0, (device,)), share=share)
        if free_capacity.fits(gang, Demand(share), NO_DEMAND):
            free_capacity.take(gang, Demand(share), NO_DEMAND)
            taken.append((gang, share))
        assert (free_capacity.device_milli >= 0).all()
        assert free_capacity.whole.tolist() == (free_capacity.device_milli == 1000).sum(axis=1).tolist()
    for gang, share in taken:
        free_capacity.give(gang, Demand(share), NO_DEMAND)
    assert free_capacity.whole.tolist() == [4, 2]

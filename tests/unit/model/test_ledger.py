"""The ledger: what is taken is gone, what is given back is free again, shared devices count in full."""

from hypothesis import given
from hypothesis import strategies as st

from trainmaster.model.allocation import Allocation, Part
from trainmaster.model.gangs import union
from trainmaster.model.job import NO_DEMAND, Demand
from trainmaster.model.ledger import Ledger
from trainmaster.testing.builders import a_cluster, a_node

CLUSTER = a_cluster([a_node("n0", 4, cpu=16, mem_mib=1000), a_node("n1", 2, cpu=16, mem_mib=1000)])


def _allocation(*parts: tuple[int, int, int, tuple[int, ...]], share: int = 1000) -> Allocation:
    return Allocation(0, tuple(Part(*part) for part in parts), share)


def test_full_ledger_has_only_existing_devices() -> None:
    ledger = Ledger.full(CLUSTER)
    assert ledger.device_milli.tolist() == [[1000] * 4, [1000, 1000, 0, 0]]
    assert ledger.whole.tolist() == [4, 2]


def test_take_and_give_restore_everything() -> None:
    ledger = Ledger.full(CLUSTER)
    worker, server = Demand(1000, 2000, 100), Demand(0, 500, 50)
    gang = _allocation((0, 2, 1, (1, 3)), (1, 1, 0, (0,)))
    ledger.take(gang, worker, server)
    assert ledger.device_milli.tolist() == [[1000, 0, 1000, 0], [0, 1000, 0, 0]]
    assert ledger.whole.tolist() == [2, 1]
    assert ledger.cpu_milli.tolist() == [16000 - 4500, 16000 - 2000]
    assert ledger.mem_mib.tolist() == [750, 900]
    ledger.give(gang, worker, server)
    fresh = Ledger.full(CLUSTER)
    assert ledger.device_milli.tolist() == fresh.device_milli.tolist()
    assert ledger.whole.tolist() == fresh.whole.tolist()
    assert ledger.cpu_milli.tolist() == fresh.cpu_milli.tolist()


def test_fractions_break_a_whole_device_once() -> None:
    ledger = Ledger.full(CLUSTER)
    half = Demand(500)
    ledger.take(_allocation((0, 2, 0, (0, 0)), share=500), half, NO_DEMAND)
    assert ledger.device_milli[0].tolist() == [0, 1000, 1000, 1000]
    assert ledger.whole[0] == 3


def test_two_members_on_one_device_need_room_for_both() -> None:
    ledger = Ledger.full(CLUSTER)
    half = Demand(500)
    ledger.take(_allocation((0, 1, 0, (0,)), share=500), half, NO_DEMAND)
    assert ledger.fits(_allocation((0, 1, 0, (0,)), share=500), half, NO_DEMAND)
    assert not ledger.fits(_allocation((0, 2, 0, (0, 0)), share=500), half, NO_DEMAND)


def test_cpu_and_memory_limit_too() -> None:
    ledger = Ledger.full(CLUSTER)
    assert not ledger.fits(_allocation((0, 1, 0, (0,))), Demand(1000, 16_001), NO_DEMAND)
    assert not ledger.fits(_allocation((0, 1, 1, (0,))), Demand(1000, 0, 600), Demand(0, 0, 401))
    assert ledger.fits(_allocation((0, 1, 1, (0,))), Demand(1000, 0, 600), Demand(0, 0, 400))


def test_union_covers_both_and_keeps_shared_devices() -> None:
    old = _allocation((0, 2, 0, (0, 0)), share=500)
    new = _allocation((0, 1, 1, (1,)), (1, 2, 0, (0, 0)), share=500)
    both = union(old, new)
    assert both.parts == (Part(0, 2, 1, (0, 0, 1)), Part(1, 2, 0, (0, 0)))


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3), st.sampled_from([250, 500, 1000])), max_size=30))
def test_whole_is_always_the_number_of_untouched_devices(requests: list[tuple[int, int, int]]) -> None:
    ledger = Ledger.full(CLUSTER)
    taken = []
    for node, device, share in requests:
        gang = _allocation((node, 1, 0, (device,)), share=share)
        if ledger.fits(gang, Demand(share), NO_DEMAND):
            ledger.take(gang, Demand(share), NO_DEMAND)
            taken.append((gang, share))
        assert (ledger.device_milli >= 0).all()
        assert ledger.whole.tolist() == (ledger.device_milli == 1000).sum(axis=1).tolist()
    for gang, share in taken:
        ledger.give(gang, Demand(share), NO_DEMAND)
    assert ledger.whole.tolist() == [4, 2]

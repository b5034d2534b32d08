"""Blocks cover the model exactly; maps are balanced, keep what they can, and never put a backup beside its home."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.model.errors import InputError
from trainmaster.runtime.ps.layout import Layout, make_layout
from trainmaster.runtime.ps.shard_map import NOBODY, ShardMap, assign_backups, assign_homes

SIZES = st.lists(st.integers(1, 1000), min_size=1, max_size=60)
SERVERS = st.integers(1, 9).map(lambda count: [f"s{number}" for number in range(count)])


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), min_size=1, max_size=6), st.integers(4, 5000))
def test_blocks_and_tensors_cover_the_flat_vector_once(shapes: list[tuple[int, int]], block_bytes: int) -> None:
    tensors = [(f"t{number}", shape) for number, shape in enumerate(shapes)]
    if sum(a * b for a, b in shapes) == 0:
        with pytest.raises(InputError, match="no parameters"):
            make_layout(tensors, block_bytes)
        return
    layout = make_layout(tensors, block_bytes)
    covered = [index for block in range(layout.blocks) for index in range(*layout.span(block).indices(layout.floats))]
    assert covered == list(range(layout.floats))
    assert [index for _, _, span in layout.spans() for index in range(span.start, span.stop)] == covered
    assert sum(layout.sizes_bytes) == 4 * layout.floats
    assert Layout.from_json(layout.to_json()) == layout


@given(SIZES, SERVERS, st.data())
def test_no_home_is_more_than_one_block_above_the_mean(
    sizes: list[int], servers: list[str], data: st.DataObject
) -> None:
    holders = st.sampled_from([*servers, "gone", NOBODY])
    present = data.draw(st.lists(holders, min_size=len(sizes), max_size=len(sizes)))
    homes = assign_homes(sizes, servers, present)
    load = {name: sum(s for s, home in zip(sizes, homes, strict=True) if home == name) for name in servers}
    assert set(homes) <= set(servers)
    assert max(load.values()) <= sum(sizes) / len(servers) + max(sizes)
    backups = assign_backups(sizes, servers, homes, present)
    if len(servers) == 1:
        assert set(backups) == {NOBODY}
    else:
        assert all(b in servers and b != h for b, h in zip(backups, homes, strict=True))


@given(st.integers(8, 60), st.integers(1, 6))
def test_a_newcomer_takes_its_share_and_nothing_else_moves(blocks: int, count: int) -> None:
    servers = [f"s{number}" for number in range(count)]
    before = assign_homes([100] * blocks, servers, [NOBODY] * blocks)
    after = assign_homes([100] * blocks, [*servers, "new"], before)
    moved = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert all(new == "new" for _, new in moved)
    assert abs(len(moved) - blocks / (count + 1)) <= 1


def test_the_dead_servers_blocks_go_where_their_copies_are() -> None:
    """`present` names the backup when the home is dead: promoting it moves nothing."""
    homes = assign_homes([10] * 4, ["a", "b"], ["a", "a", "b", "b"])
    assert homes == ("a", "a", "b", "b")


def test_equal_blocks_stay_put_when_nothing_changes() -> None:
    servers = ["a", "b", "c"]
    homes = assign_homes([4] * 31, servers, [NOBODY] * 31)
    assert assign_homes([4] * 31, servers, homes) == homes
    backups = assign_backups([4] * 31, servers, homes, [NOBODY] * 31)
    assert assign_backups([4] * 31, servers, homes, backups) == backups


def test_a_map_survives_json() -> None:
    made = ShardMap(7, {"a": "h:1", "b": "h:2"}, ("a", "b", "a"), ("b", "a", NOBODY))
    assert ShardMap.from_json(made.to_json()) == made


def test_two_parameters_of_one_name_are_refused() -> None:
    with pytest.raises(InputError, match="same name"):
        make_layout([("w", (2,)), ("w", (3,))])

"""Sharding: every sample of an epoch once, whatever the workers do; shares are fair."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.runtime import sampler
from trainmaster.runtime.batches import BatchRule

WORLDS = st.lists(st.integers(1, 9), min_size=1, max_size=200)


@given(
    samples=st.integers(1, 300),
    batch=st.integers(1, 64),
    worlds=WORLDS,
    seed=st.integers(0, 5),
    shuffle=st.booleans(),
)
def test_two_epochs_under_any_resizes(samples: int, batch: int, worlds: list[int], seed: int, shuffle: bool) -> None:
    """Step k is computed by `worlds[k]` workers, who only know the position."""
    position, seen, number = sampler.Position(), [[], []], 0
    while position.epoch < 2:
        world = worlds[number % len(worlds)]
        order = sampler.epoch_order(samples, seed, position.epoch, shuffle)
        shares = [sampler.share(order, position.consumed, batch, samples, world, rank) for rank in range(world)]
        sizes = [len(share) for share in shares]
        assert max(sizes) - min(sizes) <= 1
        for share in shares:
            seen[position.epoch] += share.tolist()
        position = sampler.after(position, sum(sizes), samples)
        number += 1
    assert [sorted(epoch) for epoch in seen] == [list(range(samples))] * 2
    assert number == 2 * -(-samples // batch)  # as many steps as without any resize


@given(
    samples=st.integers(1, 300),
    worker_batch=st.integers(1, 20),
    worlds=WORLDS,
    drop_last=st.booleans(),
)
def test_a_batch_that_follows_the_workers(samples: int, worker_batch: int, worlds: list[int], drop_last: bool) -> None:
    rule = BatchRule(None, worker_batch)
    position, seen = sampler.Position(), []
    for world in worlds * 300:
        size = rule.global_batch(world)
        stop = sampler.usable(samples, size, drop_last)
        order = sampler.epoch_order(samples, 1, position.epoch, True)
        batch = sampler.batch_of(order, position.consumed, size, stop)
        if position.epoch or len(batch) == 0:
            break
        seen += batch.tolist()
        position = sampler.after(position, len(batch), stop)
    assert len(set(seen)) == len(seen)
    if not drop_last:
        assert sorted(seen) == list(range(samples))


@given(st.integers(0, 1000), st.integers(1, 50))
def test_shares_tile_the_whole(size: int, world: int) -> None:
    bounds = [sampler.share_bounds(size, world, rank) for rank in range(world)]
    assert bounds[0][0] == 0 and bounds[-1][1] == size
    assert all(end == begin for (_, end), (begin, _) in itertools.pairwise(bounds))


def test_the_order_depends_on_seed_and_epoch_only() -> None:
    first = sampler.epoch_order(100, 3, 0, True)
    sampler.epoch_order.cache_clear()
    assert np.array_equal(first, sampler.epoch_order(100, 3, 0, True))
    assert not np.array_equal(first, sampler.epoch_order(100, 3, 1, True))
    assert not np.array_equal(first, sampler.epoch_order(100, 4, 0, True))


def test_learning_rate_rules() -> None:
    assert BatchRule(64, None).lr_factor(4) == 1.0
    assert BatchRule(None, 16, "linear", 2).lr_factor(4) == 2.0
    assert BatchRule(None, 16, "sqrt", 1).lr_factor(4) == 2.0
    assert BatchRule(None, 16, "none").lr_factor(4) == 1.0
    assert BatchRule(None, 16, "linear", 2).work(64) == 2.0

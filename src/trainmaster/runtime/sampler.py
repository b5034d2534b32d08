"""Which samples a worker takes in a step: a pure function of the epoch's order, what has been consumed, and its place.

A position is (epoch, consumed); a step takes the next `global_batch` samples of the epoch's order, whoever
computes them, and the workers divide them into contiguous shares whose sizes differ by at most one. So a
resize between two steps can neither skip nor repeat a sample, and the samples of a step are the same for
every number of workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Position:
    """`consumed` samples of epoch `epoch` have gone into applied updates."""

    epoch: int = 0
    consumed: int = 0


@lru_cache(maxsize=2)
def epoch_order(samples: int, seed: int, epoch: int, shuffle: bool) -> Indices:
    """The order in which an epoch visits the samples; the same on every worker. Not writable."""
    order = np.arange(samples, dtype=np.int64)
    if shuffle:
        np.random.Generator(np.random.PCG64([seed, epoch])).shuffle(order)
    order.flags.writeable = False
    return order


def usable(samples: int, global_batch: int, drop_last: bool) -> int:
    """How many samples of an epoch are visited."""
    return samples - samples % global_batch if drop_last else samples


def batch_of(order: Indices, consumed: int, global_batch: int, stop: int) -> Indices:
    """All samples of the step that begins after `consumed`; shorter at the end of an epoch."""
    return order[consumed : min(consumed + global_batch, stop)]


def share_bounds(size: int, world: int, rank: int) -> tuple[int, int]:
    """`rank`'s contiguous part of `size` things: sizes differ by at most one, larger ones first."""
    base, extra = divmod(size, world)
    begin = rank * base + min(rank, extra)
    return begin, begin + base + (rank < extra)


def share(order: Indices, consumed: int, global_batch: int, stop: int, world: int, rank: int) -> Indices:
    """This worker's samples of the step."""
    batch = batch_of(order, consumed, global_batch, stop)
    begin, end = share_bounds(len(batch), world, rank)
    return batch[begin:end]


def after(position: Position, taken: int, stop: int) -> Position:
    """The position once a step of `taken` samples has been applied."""
    consumed = position.consumed + taken
    return Position(position.epoch + 1, 0) if consumed >= stop else Position(position.epoch, consumed)

"""How a model is cut into blocks: one flat float32 vector, sliced evenly, whatever its tensors are.

A block is what is stored, moved, copied and counted; a tensor larger than a block spreads over several, small
ones share one, so that load can be balanced by bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainmaster.model.errors import InputError

FLOAT_BYTES = 4
BLOCK_BYTES_MAX = 1 << 22
"""Large enough that a frame's fixed cost vanishes, small enough to move, copy and balance."""
BLOCK_BYTES_MIN = 1 << 14
BLOCKS_WANTED = 16
"""Enough to balance a handful of servers even when the model is small."""
_ALIGN = 16  # floats: 64 bytes


@dataclass(frozen=True)
class Layout:
    """`tensors`: (name, shape) in the order of the flat vector."""

    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    block_floats: int

    @property
    def floats(self) -> int:
        return sum(math.prod(shape) for _, shape in self.tensors)

    @property
    def blocks(self) -> int:
        return -(-self.floats // self.block_floats)

    def span(self, block: int) -> slice:
        """The block's part of the flat vector."""
        start = block * self.block_floats
        return slice(start, min(start + self.block_floats, self.floats))

    def block_size_floats(self, block: int) -> int:
        span = self.span(block)
        return span.stop - span.start

    @property
    def sizes_bytes(self) -> list[int]:
        return [FLOAT_BYTES * self.block_size_floats(block) for block in range(self.blocks)]

    def spans(self) -> list[tuple[str, tuple[int, ...], slice]]:
        """Every tensor's part of the flat vector."""
        found, start = [], 0
        for name, shape in self.tensors:
            stop = start + math.prod(shape)
            found.append((name, shape, slice(start, stop)))
            start = stop
        return found

    def to_json(self) -> dict[str, Any]:
        return {"tensors": [[name, list(shape)] for name, shape in self.tensors], "block_floats": self.block_floats}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Layout:
        return Layout(
            tuple((str(name), tuple(int(size) for size in shape)) for name, shape in data["tensors"]),
            int(data["block_floats"]),
        )


def make_layout(tensors: Sequence[tuple[str, tuple[int, ...]]], block_bytes: int | None = None) -> Layout:
    """`block_bytes`: by default as large as pays, and small enough to share among several servers."""
    names = [name for name, _ in tensors]
    if len(set(names)) != len(names):
        raise InputError("two parameters have the same name", "unique names")
    floats = sum(math.prod(shape) for _, shape in tensors)
    if floats == 0:
        raise InputError("no parameters to train", "at least one tensor with elements")
    if block_bytes is None:
        block_bytes = max(BLOCK_BYTES_MIN, min(BLOCK_BYTES_MAX, FLOAT_BYTES * floats // BLOCKS_WANTED))
    if block_bytes < FLOAT_BYTES:
        raise InputError(f"blocks of {block_bytes} bytes", "at least 4", column="block_bytes")
    block_floats = -(-block_bytes // FLOAT_BYTES)
    if block_floats > _ALIGN:
        block_floats = -(-block_floats // _ALIGN) * _ALIGN
    return Layout(tuple((name, tuple(shape)) for name, shape in tensors), block_floats)

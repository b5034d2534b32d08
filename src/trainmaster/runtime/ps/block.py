"""The state of one block, and how it is written to a stream: parameters, optimizer slots, and who has been counted.

`seen[worker]` is the sequence number of that worker's last applied gradient. It travels with the block, so
that a gradient sent again, to whoever holds the block by then, is not applied twice.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import numpy as np

from trainmaster.runtime.ps.optimizer import Floats, Optimizer

_LENGTH_BYTES = 8
_ALIGN = 64


class BadBlock(ValueError):
    """Bytes that are no block of the expected size."""


@dataclass(eq=False)
class BlockState:
    """`version`: updates applied. `work`: gradients in them (a synchronous update holds one of every worker)."""

    params: Floats
    slots: Floats
    version: int = 0
    work: int = 0
    seen: dict[str, int] = field(default_factory=dict)

    def apply(self, optimizer: Optimizer, gradient: Floats, rate_factor: float, given: dict[str, int]) -> None:
        """One update made of the gradients `given` (worker -> sequence number)."""
        self.version += 1
        optimizer.apply(self.params, self.slots, gradient, self.version, rate_factor)
        self.work += len(given)
        self.seen.update(given)

    def copy(self) -> BlockState:
        return BlockState(self.params.copy(), self.slots.copy(), self.version, self.work, dict(self.seen))

    def pack(self) -> list[bytes | memoryview]:
        """Buffers to send, without copying the arrays: nobody may change them until they are sent."""
        facts = json.dumps({"version": self.version, "work": self.work, "seen": self.seen}).encode()
        facts += b" " * (-(len(facts) + _LENGTH_BYTES) % _ALIGN)
        buffers: list[bytes | memoryview] = [len(facts).to_bytes(_LENGTH_BYTES, "little") + facts]
        buffers.append(self.params.data.cast("B"))
        if self.slots.size:
            buffers.append(self.slots.reshape(-1).data.cast("B"))
        return buffers


def unpack(data: bytearray | bytes | memoryview, floats: int, slots: int) -> BlockState:
    """The block in `data`, whose memory it goes on using: give it a buffer of its own."""
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    start = _LENGTH_BYTES + length
    if len(data) != start + 4 * floats * (1 + slots):
        raise BadBlock(f"{len(data)} bytes for a block of {floats} floats and {slots} slots")
    try:
        facts = json.loads(bytes(data[_LENGTH_BYTES:start]))
        version, work = int(facts["version"]), int(facts["work"])
        seen = {str(worker): int(seq) for worker, seq in facts["seen"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadBlock(f"facts of a block cannot be read: {error}") from error
    numbers = np.frombuffer(data, np.float32, floats * (1 + slots), start)
    return BlockState(numbers[:floats], numbers[floats:].reshape(slots, floats), version, work, seen)


def new_block(params: Floats, slots: int) -> BlockState:
    return BlockState(params, np.zeros((slots, params.size), np.float32))

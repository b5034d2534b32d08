"""Allocations as rows of integers (`core.state.packed_allocation`) and back; what a plan changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping

import numpy as np

from trainmaster.core.arrays import Ints
from trainmaster.core.codes import HEAD, PART
from trainmaster.core.int_list import IntList
from trainmaster.model.allocation import Allocation, Part

_NOTHING: Ints = np.zeros(0, np.int64)


def packed(allocation: Allocation) -> list[int]:
    """The row of integers of an allocation."""
    row = [len(allocation.parts), allocation.accelerator, allocation.share_milli]
    for node, workers, servers, devices in allocation.parts:
        row += (node, workers, servers, len(devices))
    for part in allocation.parts:
        row += part.devices
    return row


def packed_list(allocation: Allocation) -> IntList:
    """An allocation as a packed gang that begins at 0."""
    row = packed(allocation)
    gangs = IntList(len(row))
    gangs.values[:] = np.array(row, np.int64)
    gangs.n = len(row)
    return gangs


def unpacked(values: Ints, at: int = 0) -> Allocation:
    """The allocation whose integers begin at `at`."""
    row = np.asarray(values)
    n_parts, gpu_type, share = row[at : at + HEAD].tolist()
    device = at + HEAD + PART * n_parts
    parts = []
    fields = row[at + HEAD : device].tolist()
    for k in range(0, PART * n_parts, PART):
        node, workers, servers, n_devices = fields[k : k + PART]
        parts.append(Part(node, workers, servers, tuple(row[device : device + n_devices].tolist())))
        device += n_devices
    return Allocation(gpu_type, tuple(parts), share)


class Changes(MutableMapping[int, "Allocation | None"]):
    """What a plan changes, by row: an allocation, or None to stop the job. Gangs that kernels have placed stay
    rows of integers until somebody reads them."""

    def __init__(self) -> None:
        self._of: dict[int, Allocation | int | None] = {}
        """An integer is the position of the gang in `_flat`."""
        self._flat: Ints = _NOTHING
        self._ordered: tuple[Ints, Ints, Ints] | None = None

    def __len__(self) -> int:
        return len(self._of)

    def __iter__(self) -> Iterator[int]:
        return iter(self._of)

    def __contains__(self, row: object) -> bool:
        return row in self._of

    def __getitem__(self, row: int) -> Allocation | None:
        given = self._of[row]
        if type(given) is int:
            return unpacked(self._flat, given)
        return given  # type: ignore[return-value]

    def __setitem__(self, row: int, allocation: Allocation | None) -> None:
        self._of[row] = allocation
        self._ordered = None

    def __delitem__(self, row: int) -> None:
        del self._of[row]
        self._ordered = None

    def __repr__(self) -> str:
        return repr(dict(self))

    def stop(self, rows: Iterable[int]) -> None:
        """These jobs shall stop."""
        self._of.update(dict.fromkeys(rows))
        self._ordered = None

    def place(self, rows: list[int], first: list[int], flat: Ints) -> None:
        """Add gangs as a kernel has written them: that of `rows[k]` begins at `first[k]`."""
        offset = len(self._flat)
        if offset:
            self._flat = np.concatenate([self._flat, flat])
            first = [at + offset for at in first]
        else:
            self._flat = flat
        self._of.update(zip(rows, first, strict=True))
        self._ordered = None

    def in_order(self) -> tuple[Ints, Ints, Ints]:
        """Rows, where the gang of each begins (-1: stop it), and the gangs. Stops first, so that devices come
        free as early as possible; then in row order."""
        if self._ordered is not None:
            return self._ordered
        of = self._of
        if not of:
            return _NOTHING, _NOTHING, _NOTHING
        stopped, given, unpacked_rows = [], [], []
        for row, value in of.items():
            if value is None:
                stopped.append(row)
            else:
                given.append(row)
                if type(value) is not int:
                    unpacked_rows.append(row)
        if unpacked_rows:
            self._pack(unpacked_rows)
        stopped.sort()
        given.sort()
        first: list[int] = [of[row] for row in given]  # type: ignore[misc]
        rows = np.array(stopped + given, np.int64)
        self._ordered = rows, np.array([-1] * len(stopped) + first, np.int64), self._flat
        return self._ordered

    def _pack(self, rows: list[int]) -> None:
        flat: list[int] = []
        first = []
        for row in rows:
            allocation = self._of[row]
            assert isinstance(allocation, Allocation)
            first.append(len(flat))
            flat += packed(allocation)
        self.place(rows, first, np.array(flat, np.int64))


def changes_of(plan_changes: object) -> Changes:
    """Any mapping from rows to allocations as `Changes`."""
    if isinstance(plan_changes, Changes):
        return plan_changes
    changes = Changes()
    changes.update(plan_changes)  # type: ignore[arg-type]
    return changes

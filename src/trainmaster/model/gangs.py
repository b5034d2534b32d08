"""Allocations as rows of integers, for compiled passes; objects are made only for those who ask.

A gang is written as `[parts, type, share_milli, (node, workers, servers, devices) per part, device, ...]`, the
devices of the first part first. `AllocationColumn` holds one such row per slot of the job columns, `Changes` the
gangs of a plan one after the other; both read as `Allocation` objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping

import numpy as np
import numpy.typing as npt
from numba import njit

from trainmaster.model.allocation import Allocation, Part
from trainmaster.model.units import GPU_MILLI

Ints = npt.NDArray[np.int64]

HEAD, PART = 3, 4
N_PARTS, KIND, SHARE = 0, 1, 2
"""Where the fields of the head are."""
_WHOLE = GPU_MILLI
_NOTHING: Ints = np.zeros(0, np.int64)


def packed(allocation: Allocation) -> list[int]:
    """The row of integers of an allocation."""
    row = [len(allocation.parts), allocation.accelerator, allocation.share_milli]
    for node, workers, servers, devices in allocation.parts:
        row += (node, workers, servers, len(devices))
    for part in allocation.parts:
        row += part.devices
    return row


def unpacked(row: Ints, at: int = 0) -> Allocation:
    """The allocation whose integers begin at `at`."""
    n_parts, kind, share = row[at : at + HEAD].tolist()
    device = at + HEAD + PART * n_parts
    parts = []
    fields = row[at + HEAD : device].tolist()
    for k in range(0, PART * n_parts, PART):
        node, workers, servers, n_devices = fields[k : k + PART]
        parts.append(Part(node, workers, servers, tuple(row[device : device + n_devices].tolist())))
        device += n_devices
    return Allocation(kind, tuple(parts), share)


@njit(cache=True)
def gang_length(row, at):
    """How many integers the gang at `at` takes."""
    length = HEAD + PART * row[at]
    for k in range(row[at]):
        length += row[at + HEAD + PART * k + 3]
    return length


@njit(cache=True)
def gang_totals(row, at):
    """(workers, servers, devices) of a gang."""
    workers = servers = devices = np.int64(0)
    for k in range(row[at]):
        part = at + HEAD + PART * k
        workers += row[part + 1]
        servers += row[part + 2]
        devices += row[part + 3]
    return workers, servers, devices


@njit(cache=True)
def add_gang(row, at, sign, cpu_each, mem_each, server_cpu, server_mem, device_milli, whole, cpu_free, mem_free):
    """Give a gang's devices, CPU and memory back to a ledger (`sign` 1) or take them (-1)."""
    n_parts, share = row[at], row[at + SHARE]
    device = at + HEAD + PART * n_parts
    for k in range(n_parts):
        part = at + HEAD + PART * k
        node, workers, servers = row[part], row[part + 1], row[part + 2]
        for _ in range(row[part + 3]):
            was = device_milli[node, row[device]]
            now = was + sign * share
            device_milli[node, row[device]] = now
            whole[node] += int(now == _WHOLE) - int(was == _WHOLE)
            device += 1
        cpu_free[node] += sign * (workers * cpu_each + servers * server_cpu)
        mem_free[node] += sign * (workers * mem_each + servers * server_mem)


@njit(cache=True)
def gang_fits(row, at, cpu_each, mem_each, server_cpu, server_mem, device_milli, cpu_free, mem_free):
    """Whether a gang could be taken now."""
    n_parts, share = row[at], row[at + SHARE]
    device = at + HEAD + PART * n_parts
    for k in range(n_parts):
        part = at + HEAD + PART * k
        node, workers, servers, n_devices = row[part], row[part + 1], row[part + 2], row[part + 3]
        for i in range(device, device + n_devices):
            need = share
            if share < _WHOLE:  # several members of one gang may share a device: what they need of it adds up
                need = 0
                for other in range(device, device + n_devices):
                    if row[other] == row[i]:
                        need += share
            if device_milli[node, row[i]] < need:
                return False
        device += n_devices
        if workers * cpu_each + servers * server_cpu > cpu_free[node]:
            return False
        if workers * mem_each + servers * server_mem > mem_free[node]:
            return False
    return True


class AllocationColumn:
    """What the job of each slot has. Reads and writes as a list of `Allocation | None`.

    Either side may be ahead: what was written as an object reaches the rows when a compiled pass asks for
    them (`rows`), what a pass wrote (`written`) becomes an object when somebody reads it.
    """

    def __init__(self) -> None:
        self._rows: Ints = np.zeros((0, 16), np.int64)
        self._objects: list[Allocation | None] = []
        self._ahead = bytearray()
        """By slot: 1 where the row is newer than the object."""
        self._unwritten: set[int] = set()
        """Slots whose object is newer than the row."""

    def grow(self, capacity: int) -> None:
        extra = capacity - len(self._objects)
        self._objects.extend([None] * extra)
        self._ahead.extend(bytes(extra))
        self._rows = np.concatenate([self._rows, np.zeros((extra, self._rows.shape[1]), np.int64)])

    def __len__(self) -> int:
        return len(self._objects)

    def __getitem__(self, slot: int) -> Allocation | None:
        if self._ahead[slot]:
            self._ahead[slot] = 0
            row = self._rows[slot]
            self._objects[slot] = unpacked(row) if row[N_PARTS] else None
        return self._objects[slot]

    def __setitem__(self, slot: int, allocation: Allocation | None) -> None:
        self._objects[slot] = allocation
        self._ahead[slot] = 0
        self._unwritten.add(slot)

    def __iter__(self) -> Iterator[Allocation | None]:
        return (self[slot] for slot in range(len(self)))

    def __repr__(self) -> str:
        return repr(list(self))

    def rows(self, width: int = 0) -> Ints:
        """One row per slot, up to date and at least so wide. A pass that writes into them calls `written`."""
        if self._unwritten:
            for slot in self._unwritten:
                allocation = self._objects[slot]
                row = [0] if allocation is None else packed(allocation)
                if len(row) > self._rows.shape[1]:
                    self._widen(len(row))
                self._rows[slot, : len(row)] = row
            self._unwritten.clear()
        if width > self._rows.shape[1]:
            self._widen(width)
        return self._rows

    def written(self, slots: Iterable[int]) -> None:
        """A compiled pass has changed the rows of these slots."""
        ahead = self._ahead
        for slot in slots:
            ahead[slot] = 1

    def _widen(self, width: int) -> None:
        more = np.zeros((len(self._rows), max(width, 2 * self._rows.shape[1]) - self._rows.shape[1]), np.int64)
        self._rows = np.concatenate([self._rows, more], axis=1)


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

"""Jobs without a reservation fill what is left now, and yield: best effort, lost soft deadlines."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainmaster.model.job import P
from trainmaster.policies.deadline import reservations as rs
from trainmaster.policies.deadline.book import Book

Ints = npt.NDArray[np.int64]


def start_leftovers(
    book: Book, kind: Ints, size: Ints, waits: npt.NDArray[np.bool_], order: Ints, window_ms: float
) -> bool:
    """Set type and size of rows without reservation (`order`: best first). What runs stays if it can.

    A waiting job starts only where the room lasts for `window_ms`, so that it is not stopped at once again.
    Returns whether some still wait.
    """
    jobs, p = book.jobs, book.profile
    if order.size == 0:
        return False
    running = order[(jobs.held[order] > 0) & (jobs.held_kind[order] >= 0)]
    kind[running] = jobs.held_kind[running]
    size[running] = jobs.held[running]
    fixed = _fixed(book)
    left = p.free[:, 0].copy()
    for k in range(len(left)):
        here = running[kind[running] == k]
        # What may not be interrupted is outside the capacity already.
        here = here[~jobs.whole[here]]
        left[k] -= int((size[here] * jobs.each[here]).sum())
        if left[k] < 0:
            left[k] += _yield(jobs, here[::-1], size, -int(left[k]), fixed)
    waiting = order[waits[order] & (jobs.held[order] == 0)]
    if not (left > 0).any():
        return waiting.size > 0
    return _start(jobs, waiting, kind, size, _lasting(book, left, window_ms))


def grow_leftovers(book: Book, kind: Ints, size: Ints, order: Ints, window_ms: float, gain: float) -> None:
    """Let elastic jobs without reservation have what nobody else uses now."""
    left = book.profile.free[:, 0] - in_use(book, kind, size, order)
    if (left > 0).any():
        fixed = _fixed(book)
        rows = order[(size[order] > 0) & ~fixed[order]]
        _grow(book, rows, kind, size, _lasting(book, left, window_ms), gain)


def in_use(book: Book, kind: Ints, size: Ints, rows: Ints) -> Ints:
    """Milli-GPUs by type that these rows shall have (what may not be interrupted is outside the capacity)."""
    rows = rows[(size[rows] > 0) & ~book.jobs.whole[rows]]
    amounts = size[rows] * book.jobs.each[rows]
    return np.bincount(kind[rows], weights=amounts, minlength=len(book.capacity)).astype(np.int64)


def _fixed(book: Book) -> npt.NDArray[np.bool_]:
    phase = book.view.jobs.phase
    return book.jobs.whole | ((phase != P.RUNNING) & (phase != P.RESERVED) & (phase != P.PENDING))


def _lasting(book: Book, left: Ints, window_ms: float) -> Ints:
    """What of this room lasts for the window."""
    p = book.profile
    least = [p.lowest_free(k, book.now + window_ms) for k in range(len(left))]
    return np.minimum(left, np.array(least) - (p.free[:, 0] - left))


def _yield(jobs: rs.JobArrays, worst_first: Ints, size: Ints, need: int, fixed: npt.NDArray[np.bool_]) -> int:
    """Take at least `need` milli-GPUs back: shrink first, then stop. Returns what was got."""
    got = 0
    for stop in (False, True):
        for row in worst_first.tolist():
            if got >= need:
                return got
            if fixed[row] or size[row] == 0:
                continue
            lowest = 0 if stop else int(jobs.sizes[row, 0])
            spare = (int(size[row]) - lowest) * int(jobs.each[row])
            if spare <= 0:
                continue
            keep = lowest
            if not stop:  # no further than needed
                for c in range(int(jobs.levels[row])):
                    freed = (int(size[row]) - int(jobs.sizes[row, c])) * int(jobs.each[row])
                    if freed >= need - got:
                        keep = int(jobs.sizes[row, c])
            got += (int(size[row]) - keep) * int(jobs.each[row])
            size[row] = keep
    return got


def _start(jobs: rs.JobArrays, waiting: Ints, kind: Ints, size: Ints, left: Ints) -> bool:
    """Start in order what fits, smallest size, on the fastest type with room. True: some wait."""
    need = jobs.sizes[waiting, 0] * jobs.each[waiting]
    some_wait = False
    for row, least in zip(waiting.tolist(), need.tolist(), strict=True):
        if least > left.max():
            some_wait = True
            continue
        best = -1
        for k in range(len(left)):
            if jobs.base[row, k] > 0 and least <= left[k] and (best < 0 or jobs.base[row, k] > jobs.base[row, best]):
                best = k
        if best < 0:
            some_wait = True
            continue
        kind[row] = best
        size[row] = int(jobs.sizes[row, 0])
        left[best] -= int(least)
    return some_wait


def _grow(book: Book, rows: Ints, kind: Ints, size: Ints, left: Ints, gain: float) -> None:
    """Give idle GPUs to elastic jobs, the smallest first, when it pays for the resize."""
    jobs = book.jobs
    for row in rows[np.argsort(size[rows], kind="stable")].tolist():
        levels = int(jobs.levels[row])
        if levels < 2 or jobs.work[row] <= 0:
            continue
        k, now_size = int(kind[row]), int(size[row])
        at = int(np.searchsorted(jobs.sizes[row, :levels], now_size))
        if at >= levels or jobs.sizes[row, at] != now_size:
            continue
        best = at
        for c in range(at + 1, levels):
            if (jobs.sizes[row, c] - now_size) * jobs.each[row] <= left[k]:
                best = c
        if best == at:
            continue
        time_ms = jobs.work[row] * 1000.0 / (jobs.base[row, k] * jobs.speeds[row, at])
        faster_ms = jobs.work[row] * 1000.0 / (jobs.base[row, k] * jobs.speeds[row, best])
        starts = jobs.held[row] == 0  # a size chosen at the start costs nothing
        if not starts and time_ms - faster_ms < max(gain * time_ms, 3.0 * jobs.resize_ms):
            continue
        left[k] -= int((jobs.sizes[row, best] - now_size) * jobs.each[row])
        size[row] = int(jobs.sizes[row, best])

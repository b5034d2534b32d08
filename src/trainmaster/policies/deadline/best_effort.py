"""Jobs without a reservation fill what is left now, and yield: best effort, lost soft deadlines."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainmaster.core.arrays import Ints
from trainmaster.model.job import PhaseCode
from trainmaster.policies.deadline import reservations as rs
from trainmaster.policies.deadline.reservation_book import ReservationBook


def start_leftovers(
    reservations: ReservationBook,
    gpu_type: Ints,
    size: Ints,
    waits: npt.NDArray[np.bool_],
    order: Ints,
    window_ms: float,
) -> bool:
    """Set type and size of rows without reservation (`order`: best first). What runs stays if it can.

    A waiting job starts only where the room lasts for `window_ms`, so that it is not stopped at once again.
    Returns whether some still wait.
    """
    jobs, p = reservations.jobs, reservations.profile
    if order.size == 0:
        return False
    running = order[(jobs.held[order] > 0) & (jobs.held_kind[order] >= 0)]
    gpu_type[running] = jobs.held_kind[running]
    size[running] = jobs.held[running]
    fixed = _fixed(reservations)
    left = p.free[:, 0].copy()
    for k in range(len(left)):
        here = running[gpu_type[running] == k]
        # What may not be interrupted is outside the capacity already.
        here = here[~jobs.whole[here]]
        left[k] -= int((size[here] * jobs.each[here]).sum())
        if left[k] < 0:
            left[k] += _yield(jobs, here[::-1], size, -int(left[k]), fixed)
    waiting = order[waits[order] & (jobs.held[order] == 0)]
    if not (left > 0).any():
        return waiting.size > 0
    return _start(jobs, waiting, gpu_type, size, _lasting(reservations, left, window_ms))


def grow_leftovers(
    reservations: ReservationBook, gpu_type: Ints, size: Ints, order: Ints, window_ms: float, gain: float
) -> None:
    """Let elastic jobs without reservation have what nobody else uses now."""
    left = reservations.profile.free[:, 0] - in_use(reservations, gpu_type, size, order)
    if (left > 0).any():
        fixed = _fixed(reservations)
        rows = order[(size[order] > 0) & ~fixed[order]]
        _grow(reservations, rows, gpu_type, size, _lasting(reservations, left, window_ms), gain)


def in_use(reservations: ReservationBook, gpu_type: Ints, size: Ints, rows: Ints) -> Ints:
    """Milli-GPUs by type that these rows shall have (what may not be interrupted is outside the capacity)."""
    rows = rows[(size[rows] > 0) & ~reservations.jobs.whole[rows]]
    amounts = size[rows] * reservations.jobs.each[rows]
    return np.bincount(gpu_type[rows], weights=amounts, minlength=len(reservations.capacity)).astype(np.int64)


def _fixed(reservations: ReservationBook) -> npt.NDArray[np.bool_]:
    phase = reservations.view.jobs.phase
    return reservations.jobs.whole | (
        (phase != PhaseCode.RUNNING) & (phase != PhaseCode.RESERVED) & (phase != PhaseCode.PENDING)
    )


def _lasting(reservations: ReservationBook, left: Ints, window_ms: float) -> Ints:
    """What of this room lasts for the window."""
    p = reservations.profile
    least = [p.lowest_free(k, reservations.now + window_ms) for k in range(len(left))]
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


def _start(jobs: rs.JobArrays, waiting: Ints, gpu_type: Ints, size: Ints, left: Ints) -> bool:
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
        gpu_type[row] = best
        size[row] = int(jobs.sizes[row, 0])
        left[best] -= int(least)
    return some_wait


def _grow(reservations: ReservationBook, rows: Ints, gpu_type: Ints, size: Ints, left: Ints, gain: float) -> None:
    """Give idle GPUs to elastic jobs, the smallest first, when it pays for the resize."""
    jobs = reservations.jobs
    for row in rows[np.argsort(size[rows], kind="stable")].tolist():
        levels = int(jobs.levels[row])
        if levels < 2 or jobs.work[row] <= 0:
            continue
        k, now_size = int(gpu_type[row]), int(size[row])
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

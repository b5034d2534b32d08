"""Reservations of GPUs over time: a profile of what is free per type, and the filling of jobs into it.

Compiled (`reservations.pxd`). A profile is a step function per accelerator type: `free[k, i]` milli-GPUs from
`times[k, i]` until the next break (the last step lasts for ever). A reservation is at most `MAX_SEGMENTS` pieces (from,
to, workers) on one type (`layout`). Breaks are exact integer milliseconds, not slots, so feasibility is tested without
rounding loss.

Filling follows ElasticFlow's minimum satisfactory share (ASPLOS'23, section 4.1): the smallest level j such that
running at min(j, free(t)) until the deadline covers the remaining work; with the cost of every start and resize taken
off the productive time.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from trainmaster.core.int_list import IntList, new_floats
from trainmaster.core.sorting import sort_by
from trainmaster.policies.deadline.reservation_layout import (
    CLASS,
    COUNT,
    DUE,
    FINISH,
    FIRST,
    FOREVER,
    GPU_TYPE,
    MAX_SEGMENTS,
    PAD_MS,
    PIECES,
    SLIP_MS,
    WIDTH,
)

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

LEVELS_MAX = 64


class JobArrays:
    """What is known of the jobs; rows are those of the snapshot. Compiled code reads the same arrays by `_name`.

    work: steps left. base (rows, types): steps per second at the reference size; 0 where it cannot run. sizes, speeds
    (rows, levels): rising numbers of workers it may have, and speed there relative to the reference size. each:
    milli-GPUs of one worker. held, held_kind: workers it has now, and their type. ran: it has run before, so that a
    start is a restart. pending_ms: not productive for so long yet, if it stays as it is. whole: may not be interrupted.
    """

    def __init__(
        self,
        work: Floats,
        base: Floats,
        sizes: Floats,
        speeds: Floats,
        levels: Ints,
        each: Ints,
        held: Ints,
        held_kind: Ints,
        ran: Bools,
        pending_ms: Floats,
        whole: Bools,
        restart_ms: float,
        resize_ms: float,
    ) -> None:
        self.work, self.base, self.sizes, self.speeds = work, base, sizes, speeds
        self.levels, self.each, self.held, self.held_kind = levels, each, held, held_kind
        self.ran, self.pending_ms, self.whole = ran, pending_ms, whole
        self.restart_ms, self.resize_ms = restart_ms, resize_ms
        # Copies, since a snapshot's arrays are read-only.
        self._work, self._pending_ms = np.array(work), np.array(pending_ms)
        self._base, self._sizes, self._speeds = (np.array(part, order="C") for part in (base, sizes, speeds))
        self._levels, self._each, self._held, self._held_kind = (
            np.array(part, np.int64) for part in (levels, each, held, held_kind)
        )
        self._ran, self._whole = (np.array(part, np.uint8) for part in (ran, whole))

    def replace(self, **changes: Any) -> JobArrays:
        """The same jobs with some of the arrays changed."""
        return JobArrays(**{name: changes.get(name, getattr(self, name)) for name in _JOB_ARRAYS})


_JOB_ARRAYS = (
    "work", "base", "sizes", "speeds", "levels", "each", "held", "held_kind", "ran", "pending_ms", "whole",
    "restart_ms", "resize_ms",
)  # fmt: skip


class Profile:
    """What is free: `free[k, i]` milli-GPUs of type k from `times[k, i]` until the next of its `n[k]` breaks.

    Made of a capacity less the reservations of at least `lowest_class`; with room for `room` more breaks.
    """

    def __init__(self, now: float, capacity: Ints, certs: Floats, each: Ints, lowest_class: int, room: int) -> None:
        self.capacity = capacity
        booked = (certs[:, CLASS] >= lowest_class) & (certs[:, CLASS] > 0)
        counts = np.bincount(
            certs[booked, GPU_TYPE].astype(np.int64), weights=certs[booked, COUNT], minlength=len(capacity)
        ).astype(np.int64)
        width = 2 * int(counts.max(initial=0)) + room + 4
        self.times = np.empty((len(capacity), width))
        self.free = np.empty((len(capacity), width), np.int64)
        self.n = np.zeros(len(capacity), np.int64)
        self._times, self._free, self._n, self._capacity = self.times, self.free, self.n, capacity
        self._until, self._trial, self._best = new_floats(LEVELS_MAX), new_floats(WIDTH), new_floats(WIDTH)
        self.gpu_ms = 0.0
        rows = np.flatnonzero(booked)
        at, delta = new_floats(width), np.zeros(width, np.int64)
        self._enter(now, certs, np.array(each, np.int64), rows, at, delta)

    def _enter(self, now: float, certs: Floats, each: Ints, rows: Ints, at: Floats, delta: Ints) -> None:
        order, spare = IntList(len(at)), IntList(len(at))
        for k in range(len(self._n)):
            order.clear()
            for j in range(len(rows)):
                row = rows[j]
                if int(certs[row, GPU_TYPE]) != k:
                    continue
                for s in range(int(certs[row, COUNT])):
                    a, b = certs[row, FIRST + 3 * s], certs[row, FIRST + 3 * s + 1]
                    amount = int(certs[row, FIRST + 3 * s + 2]) * each[row]
                    if b <= now or amount == 0:
                        continue
                    m = order.n
                    at[m], delta[m] = max(a, now), -amount
                    at[m + 1], delta[m + 1] = b, amount
                    order.append(m)
                    order.append(m + 1)
            sort_by(order, at, spare)
            self._times[k, 0] = now
            self._free[k, 0] = self._capacity[k]
            last = 0
            for j in range(order.n):
                i = order.values[j]
                if at[i] > self._times[k, last]:
                    last += 1
                    self._times[k, last] = at[i]
                    self._free[k, last] = self._free[k, last - 1]
                self._free[k, last] += delta[i]
            self._n[k] = last + 1

    def saved(self) -> tuple[Floats, Ints, Ints]:
        return self.times.copy(), self.free.copy(), self.n.copy()

    def restore(self, saved: tuple[Floats, Ints, Ints]) -> None:
        self.times[:], self.free[:], self.n[:] = saved

    def _break_at(self, k: int, at: float) -> int:
        """Index of the step that begins at this time; made if there is none. -1: no room left."""
        low, high = 0, self._n[k]
        while low < high:  # first index with a time beyond `at`
            middle = (low + high) // 2
            if self._times[k, middle] <= at:
                low = middle + 1
            else:
                high = middle
        index = low - 1
        if index >= 0 and self._times[k, index] == at:
            return index
        if self._n[k] + 1 > self._times.shape[1]:
            return -1
        for i in range(self._n[k], low, -1):
            self._times[k, i] = self._times[k, i - 1]
            self._free[k, i] = self._free[k, i - 1]
        self._times[k, low] = at
        self._free[k, low] = self._free[k, max(index, 0)]
        self._n[k] += 1
        return low

    def occupy(self, cert: Floats, each: int, sign: int) -> bool:
        """Take (sign 1) a reservation out of the profile, or give it back (-1). False: too many breaks."""
        k = int(cert[GPU_TYPE])
        if self._n[k] + 2 * int(cert[COUNT]) > self._times.shape[1]:
            return False
        for s in range(int(cert[COUNT])):
            a, b = max(cert[FIRST + 3 * s], self._times[k, 0]), cert[FIRST + 3 * s + 1]
            amount = sign * int(cert[FIRST + 3 * s + 2]) * each
            if b <= a or amount == 0:
                continue
            first = self._break_at(k, a)
            last = self._break_at(k, b)
            for i in range(first, last):
                self._free[k, i] -= amount
        return True

    def _lasts(self, k: int, i: int, need: float) -> float:
        """Until when at least `need` is free, from step i on."""
        i += 1
        while i < self._n[k] and self._free[k, i] >= need:
            i += 1
        return self._times[k, i] if i < self._n[k] else FOREVER

    def lowest_free(self, k: int, until: float) -> int:
        """The least that is free on a type from now until then."""
        low = self._free[k, 0]
        for i in range(1, self._n[k]):
            if self._times[k, i] >= until:
                break
            low = min(low, self._free[k, i])
        return low

    def free_area(self, k: int, until: float) -> float:
        """Free milli-GPU milliseconds of a type from now until then."""
        area = 0.0
        for i in range(self._n[k]):
            if self._times[k, i] >= until:
                break
            end = min(self._times[k, i + 1], until) if i + 1 < self._n[k] else until
            area += self._free[k, i] * (end - self._times[k, i])
        return area

    def fill(self, jobs: JobArrays, row: int, k: int, level: int, due: float, cert: Floats) -> float:
        """Fill a job at up to `level` on type k into what is free. Returns the finish, -1 when it is after `due`;
        `gpu_ms` is then GPU milliseconds x 1000.

        Starts and growths only use room that lasts for a fair part of the job, so that a reservation has few
        pieces. Writes them into `cert`.
        """
        rate_ref = jobs._base[row, k]
        each = jobs._each[row]
        work = jobs._work[row]
        here = jobs._held_kind[row] == k and jobs._held[row] > 0
        size = jobs._held[row] if here else 0
        at = -1  # level of the present size
        for c in range(jobs._levels[row]):
            if jobs._sizes[row, c] == size:
                at = c
        ran = jobs._ran[row]
        pending = jobs._pending_ms[row] if here else 0.0
        least_ms = work * 1000.0 / (rate_ref * jobs._speeds[row, level]) / PIECES
        until = self._until  # room for a level ends here
        for c in range(level + 1):
            until[c] = -1.0
        done = 0.0
        pieces = 0
        gpu_ms = 0.0
        least = jobs._sizes[row, 0] * each
        for i in range(self._n[k]):
            a = self._times[k, i]
            if a >= due:
                return -1.0
            avail = self._free[k, i]
            if size == 0 and avail < least:  # most steps of a full profile
                continue
            b = self._times[k, i + 1] if i + 1 < self._n[k] else FOREVER
            was = size
            if size > 0 and (at < 0 or at > level or size * each > avail):
                # Must shrink or stop: the largest level that fits now.
                at = level
                while at >= 0 and jobs._sizes[row, at] * each > avail:
                    at -= 1
                size = int(jobs._sizes[row, at]) if at >= 0 else 0
            for c in range(level, at, -1):
                need = jobs._sizes[row, c] * each
                if need > avail:
                    continue
                if until[c] <= a:
                    until[c] = self._lasts(k, i, need)
                span = min(until[c] - a, (work - done) * 1000.0 / (rate_ref * jobs._speeds[row, c]))
                if size > 0:
                    # Growing must last and pay for its resize.
                    worth = span >= least_ms or until[c] >= FOREVER
                    worth = worth and jobs._speeds[row, c] * (span - jobs.resize_ms) > jobs._speeds[row, at] * span
                else:
                    cost = jobs.restart_ms if ran else 0.0
                    worth = until[c] - a - cost >= min(least_ms, span) and until[c] - a > cost
                if worth:
                    size, at = int(jobs._sizes[row, c]), c
                    break
            if size != was:
                if size == 0:
                    pending = 0.0
                    if jobs._whole[row]:
                        if here:
                            return -1.0
                        pieces, done, gpu_ms, ran = 0, 0.0, 0.0, jobs._ran[row]
                elif was > 0:
                    pending = max(pending, jobs.resize_ms)
                else:
                    pending = jobs.restart_ms if ran else 0.0
                ran = ran or size > 0
            if size == 0:
                continue
            rate = rate_ref * jobs._speeds[row, at]
            begin = a + pending
            left_ms = math.ceil((work - done) * 1000.0 / rate)
            if not (pieces > 0 and cert[FIRST + 3 * pieces - 2] == a and cert[FIRST + 3 * pieces - 1] == size):
                if pieces == MAX_SEGMENTS:
                    return -1.0
                cert[FIRST + 3 * pieces] = a
                cert[FIRST + 3 * pieces + 2] = size
                pieces += 1
            if begin + left_ms <= b:
                finish = begin + left_ms
                gpu_ms += (finish - a) * size * each
                cert[FIRST + 3 * pieces - 2] = finish + PAD_MS
                cert[GPU_TYPE], cert[COUNT], cert[DUE], cert[FINISH] = k, pieces, due, finish
                if finish + SLIP_MS * (pieces - 1) > due:
                    return -1.0
                self.gpu_ms = gpu_ms
                return finish
            cert[FIRST + 3 * pieces - 2] = b
            gpu_ms += (b - a) * size * each
            if begin < b:
                done += rate * (b - begin) / 1000.0
                pending = 0.0
            else:
                pending = begin - b
        return -1.0

    def reserve(self, jobs: JobArrays, row: int, due: float, cls: int, cert: Floats) -> bool:
        """Reserve the smallest sufficient size, on the type of which the job takes the smallest share.

        Writes `cert` and takes it out of the profile; False (and nothing changed) when no type and size will do.
        """
        now = self._times[0, 0]
        trial = self._trial
        _clear(trial)
        best = -1
        best_share = best_finish = 0.0
        for k in range(len(self._n)):
            if jobs._base[row, k] <= 0.0 or self._capacity[k] <= 0:
                continue
            for level in range(jobs._levels[row]):
                if jobs._work[row] * 1000.0 / (jobs._base[row, k] * jobs._speeds[row, level]) > due - now + 1.0:
                    continue
                finish = self.fill(jobs, row, k, level, due, trial)
                if finish < 0.0:
                    continue
                share = self.gpu_ms / self._capacity[k]
                if (
                    best < 0
                    or share < best_share * (1.0 - 1e-9)
                    or (share <= best_share * (1.0 + 1e-9) and finish < best_finish)
                ):
                    best, best_share, best_finish = k, share, finish
                    _copy(trial, cert)
                break
        if best < 0:
            return False
        cert[CLASS] = cls
        return self.occupy(cert, jobs._each[row], 1)

    def soonest(self, jobs: JobArrays, row: int, cert: Floats) -> float:
        """The reservation with the earliest finish over all types and sizes; not taken. -1: none at all."""
        trial = self._trial
        _clear(trial)
        best = -1.0
        for k in range(len(self._n)):
            if jobs._base[row, k] <= 0.0 or self._capacity[k] <= 0:
                continue
            for level in range(jobs._levels[row]):
                finish = self.fill(jobs, row, k, level, FOREVER, trial)
                if finish >= 0.0 and (best < 0.0 or finish < best):
                    best = finish
                    _copy(trial, cert)
        return best

    def reserve_in_order(self, jobs: JobArrays, rows: Ints, due: Floats, cls: int, certs: Floats) -> int:
        """Reserve for these rows one after the other; returns how many succeeded before the first failure."""
        for i in range(len(rows)):
            row: int = rows[i]
            if not self.reserve(jobs, row, due[row], cls, certs[row]):
                return i
        return len(rows)

    def pull_forward(self, jobs: JobArrays, rows: Ints, certs: Floats, least_gain: float, only_waiting: bool) -> int:
        """Let reserved jobs use what would stand idle now: start sooner, or grow, when that pays.

        A change must start now and bring the finish forward by the fraction `least_gain` of the time left and
        by twice its cost, which is the hysteresis against going back and forth.
        """
        now = self._times[0, 0]
        trial, best = self._trial, self._best
        _clear(trial)
        _clear(best)
        cost = max(jobs.resize_ms, jobs.restart_ms)
        changed = 0
        for j in range(len(rows)):
            row: int = rows[j]
            cert = certs[row]
            k = int(cert[GPU_TYPE])
            starts_now = cert[COUNT] > 0 and cert[FIRST] <= now
            if only_waiting == starts_now:
                continue
            size = int(cert[FIRST + 2]) if starts_now else 0
            top = jobs._levels[row] - 1
            if starts_now and size >= jobs._sizes[row, top]:
                continue
            if self._free[k, 0] < jobs._each[row] * (1 if starts_now else jobs._sizes[row, 0]):
                continue
            if not self.occupy(cert, jobs._each[row], -1):
                continue
            old = cert[FINISH]
            best_finish = old
            lowest = 0
            if only_waiting:  # sooner, at no greater size than planned
                planned = 0.0
                for s in range(int(cert[COUNT])):
                    planned = max(planned, cert[FIRST + 3 * s + 2])
                while top > 0 and jobs._sizes[row, top] > planned:
                    top -= 1
                lowest = top
            for level in range(top, lowest - 1, -1):
                finish = self.fill(jobs, row, k, level, cert[DUE], trial)
                if finish < 0.0 or trial[FIRST] > now or finish >= best_finish:
                    continue
                if old - finish >= max(least_gain * (old - now), 2.0 * cost) and trial[COUNT] <= cert[COUNT] + 1:
                    best_finish = finish
                    _copy(trial, best)
            if best_finish < old:
                best[CLASS] = cert[CLASS]
                _copy(best, cert)
                changed += 1
            self.occupy(cert, jobs._each[row], 1)
        return changed


def _clear(cert: Floats) -> None:
    for j in range(WIDTH):
        cert[j] = 0.0


def _copy(source: Floats, target: Floats) -> None:
    for j in range(WIDTH):
        target[j] = source[j]


def follow(now: float, jobs: JobArrays, certs: Floats, finish: Floats) -> None:
    """Move reservations on to now: drop what is past, recompute each finish as it stands (-1: not enough)."""
    for row in range(certs.shape[0]):
        finish[row] = -1.0
        if certs[row, CLASS] == 0.0:
            continue
        k = int(certs[row, GPU_TYPE])
        count = int(certs[row, COUNT])
        drop = 0
        while drop < count and certs[row, FIRST + 3 * drop + 1] <= now:
            drop += 1
        if drop:
            for s in range(count - drop):
                for j in range(3):
                    certs[row, FIRST + 3 * s + j] = certs[row, FIRST + 3 * (s + drop) + j]
            count -= drop
            certs[row, COUNT] = count
        here = jobs._held_kind[row] == k and jobs._held[row] > 0
        current = jobs._held[row] if here else 0
        ran = jobs._ran[row]
        pending = jobs._pending_ms[row] if here else 0.0
        left = jobs._work[row]
        end = now
        for s in range(count):
            a, b = max(certs[row, FIRST + 3 * s], now), certs[row, FIRST + 3 * s + 1]
            size = int(certs[row, FIRST + 3 * s + 2])
            if a > end:
                current, pending = 0, 0.0
            if size != current:
                restart = jobs.restart_ms if ran else 0.0
                pending = max(pending, jobs.resize_ms) if current > 0 else restart
            ran, current, end = True, size, b
            speed = 0.0
            for c in range(jobs._levels[row]):
                if jobs._sizes[row, c] == size:
                    speed = jobs._speeds[row, c]
            rate = jobs._base[row, k] * speed
            if rate <= 0.0:
                break
            need_ms = math.ceil(left * 1000.0 / rate)
            if a + pending + need_ms <= b:
                finish[row] = a + pending + need_ms
                certs[row, FINISH] = finish[row]
                certs[row, FIRST + 3 * s + 1] = min(b, finish[row] + PAD_MS)
                certs[row, COUNT] = s + 1
                break
            if a + pending < b:
                left -= rate * (b - a - pending) / 1000.0
                pending = 0.0
            else:
                pending = a + pending - b


def present(now: float, certs: Floats, gpu_type: Ints, size: Ints) -> None:
    """Type and size that each reservation asks for at this moment."""
    for row in range(certs.shape[0]):
        gpu_type[row], size[row] = -1, 0
        if certs[row, CLASS] > 0.0:
            for s in range(int(certs[row, COUNT])):
                if certs[row, FIRST + 3 * s] <= now < certs[row, FIRST + 3 * s + 1]:
                    gpu_type[row], size[row] = int(certs[row, GPU_TYPE]), int(certs[row, FIRST + 3 * s + 2])


def next_break(now: float, certs: Floats) -> float:
    """The first moment after now at which a reservation begins, changes or ends."""
    first = FOREVER
    for row in range(certs.shape[0]):
        if certs[row, CLASS] > 0.0:
            for s in range(int(certs[row, COUNT])):
                for j in range(2):
                    at = certs[row, FIRST + 3 * s + j]
                    if now < at < first:
                        first = at
    return first

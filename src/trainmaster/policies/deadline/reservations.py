"""Reservations of GPUs over time: a profile of what is free per type, and the filling of jobs into it.

A profile is a step function per accelerator type: `free[k, i]` milli-GPUs from `times[k, i]` until the next
break (the last step lasts for ever). A reservation is at most `MAX_SEGMENTS` pieces (from, to, workers) on
one type. Breaks are exact integer milliseconds, not slots, so feasibility is tested without rounding loss.

Filling follows ElasticFlow's minimum satisfactory share (ASPLOS'23, section 4.1): the smallest level j such
that running at min(j, free(t)) until the deadline covers the remaining work; with the cost of every start
and resize taken off the productive time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MAX_SEGMENTS = 8
CLASS, KIND, COUNT, DUE, FINISH, FIRST = 0, 1, 2, 3, 4, 5
"""Columns of a reservation row: class (0 none, 1 soft, 2 promised), type, count, due, finish, pieces."""
WIDTH = FIRST + 3 * MAX_SEGMENTS
NONE, SOFT, PROMISED = 0, 1, 2
PAD_MS = 3
"""Held beyond the planned finish, so that rounding to milliseconds never cuts a job short."""
PIECES = 6.0
"""A start or growth must last for this part (1/6) of the job's run time, or until its end."""
SLIP_MS = 2
"""Allowed for each piece after the first when a finish is compared with a deadline (rounding again)."""
FOREVER = float(2**52)


class JobArrays(NamedTuple):
    """What the kernels know of the jobs; rows are those of the snapshot."""

    work: Floats
    """Steps left."""
    base: Floats
    """(rows, types): steps per second at the reference size; 0 where it cannot run."""
    sizes: Floats
    """(rows, levels): rising numbers of workers it may have."""
    speeds: Floats
    """(rows, levels): speed at those sizes relative to the reference size."""
    levels: Ints
    each: Ints
    """Milli-GPUs of one worker."""
    held: Ints
    """Workers it has now."""
    held_kind: Ints
    ran: Bools
    """Whether it has run before, so that a start is a restart."""
    pending_ms: Floats
    """Not productive for so long yet, if it stays as it is."""
    whole: Bools
    """May not be interrupted."""
    restart_ms: float
    resize_ms: float


@njit(cache=True)
def build_profile(now, capacity, certs, each, lowest_class, room):
    """Free capacity after the reservations of at least this class; with room for `room` more breaks."""
    n_types = capacity.size
    n_events = np.zeros(n_types, np.int64)
    for row in range(certs.shape[0]):
        if certs[row, CLASS] >= lowest_class and certs[row, CLASS] > 0:
            n_events[int(certs[row, KIND])] += 2 * int(certs[row, COUNT])
    width = n_events.max() + room + 4
    times = np.empty((n_types, width))
    free = np.empty((n_types, width), np.int64)
    n = np.zeros(n_types, np.int64)
    for k in range(n_types):
        at = np.empty(n_events[k])
        delta = np.empty(n_events[k], np.int64)
        m = 0
        for row in range(certs.shape[0]):
            if certs[row, CLASS] >= lowest_class and certs[row, CLASS] > 0 and int(certs[row, KIND]) == k:
                for s in range(int(certs[row, COUNT])):
                    a, b = certs[row, FIRST + 3 * s], certs[row, FIRST + 3 * s + 1]
                    amount = int(certs[row, FIRST + 3 * s + 2]) * each[row]
                    if b <= now or amount == 0:
                        continue
                    at[m], delta[m] = max(a, now), -amount
                    at[m + 1], delta[m + 1] = b, amount
                    m += 2
        order = np.argsort(at[:m], kind="mergesort")
        times[k, 0], free[k, 0] = now, capacity[k]
        last = 0
        for i in order:
            if at[i] > times[k, last]:
                last += 1
                times[k, last], free[k, last] = at[i], free[k, last - 1]
            free[k, last] += delta[i]
        n[k] = last + 1
    return times, free, n


@njit(cache=True)
def _break_at(times, free, n, k, at):
    """Index of the step that begins at this time; made if there is none. -1: no room left."""
    low, high = 0, n[k]
    while low < high:  # first index with a time beyond `at`
        middle = (low + high) // 2
        if times[k, middle] <= at:
            low = middle + 1
        else:
            high = middle
    index = low - 1
    if index >= 0 and times[k, index] == at:
        return index
    if n[k] + 1 > times.shape[1]:
        return -1
    for i in range(n[k], low, -1):
        times[k, i], free[k, i] = times[k, i - 1], free[k, i - 1]
    times[k, low] = at
    free[k, low] = free[k, max(index, 0)]
    n[k] += 1
    return low


@njit(cache=True)
def occupy(times, free, n, cert, each, sign):
    """Take (sign 1) a reservation out of the free profile, or give it back (-1). False: too many breaks."""
    k = int(cert[KIND])
    if n[k] + 2 * int(cert[COUNT]) > times.shape[1]:
        return False
    for s in range(int(cert[COUNT])):
        a, b = max(cert[FIRST + 3 * s], times[k, 0]), cert[FIRST + 3 * s + 1]
        amount = sign * int(cert[FIRST + 3 * s + 2]) * each
        if b <= a or amount == 0:
            continue
        first = _break_at(times, free, n, k, a)
        last = _break_at(times, free, n, k, b)
        for i in range(first, last):
            free[k, i] -= amount
    return True


@njit(cache=True)
def _lasts(times, free, n, k, i, need):
    """Until when at least `need` is free, from step i on."""
    i += 1
    while i < n[k] and free[k, i] >= need:
        i += 1
    return times[k, i] if i < n[k] else FOREVER


@njit(cache=True)
def fill(times, free, n, jobs, row, k, level, due, cert):
    """Fill a job at up to `level` on type k into what is free. Returns (finish, GPU milliseconds x 1000).

    Starts and growths only use room that lasts for a fair part of the job, so that a reservation has few
    pieces. Writes them into `cert`; finish is -1 when it would be after `due`.
    """
    rate_ref = jobs.base[row, k]
    each = jobs.each[row]
    work = jobs.work[row]
    here = jobs.held_kind[row] == k and jobs.held[row] > 0
    size = jobs.held[row] if here else 0
    at = -1  # level of the present size
    for c in range(jobs.levels[row]):
        if jobs.sizes[row, c] == size:
            at = c
    ran = jobs.ran[row]
    pending = jobs.pending_ms[row] if here else 0.0
    least_ms = work * 1000.0 / (rate_ref * jobs.speeds[row, level]) / PIECES
    until = np.full(level + 1, -1.0)  # room for this level ends here
    done = 0.0
    pieces = 0
    gpu_ms = 0.0
    least = jobs.sizes[row, 0] * each
    for i in range(n[k]):
        a = times[k, i]
        if a >= due:
            return -1.0, 0.0
        avail = free[k, i]
        if size == 0 and avail < least:  # most steps of a full profile
            continue
        b = times[k, i + 1] if i + 1 < n[k] else FOREVER
        was = size
        if size > 0 and (at < 0 or at > level or size * each > avail):
            # Must shrink or stop: the largest level that fits now.
            at = level
            while at >= 0 and jobs.sizes[row, at] * each > avail:
                at -= 1
            size = int(jobs.sizes[row, at]) if at >= 0 else 0
        for c in range(level, at, -1):
            need = jobs.sizes[row, c] * each
            if need > avail:
                continue
            if until[c] <= a:
                until[c] = _lasts(times, free, n, k, i, need)
            span = min(until[c] - a, (work - done) * 1000.0 / (rate_ref * jobs.speeds[row, c]))
            if size > 0:
                # Growing must last and pay for its resize.
                worth = span >= least_ms or until[c] >= FOREVER
                worth = worth and jobs.speeds[row, c] * (span - jobs.resize_ms) > jobs.speeds[row, at] * span
            else:
                cost = jobs.restart_ms if ran else 0.0
                worth = until[c] - a - cost >= min(least_ms, span) and until[c] - a > cost
            if worth:
                size, at = int(jobs.sizes[row, c]), c
                break
        if size != was:
            if size == 0:
                pending = 0.0
                if jobs.whole[row]:
                    if here:
                        return -1.0, 0.0
                    pieces, done, gpu_ms, ran = 0, 0.0, 0.0, jobs.ran[row]
            elif was > 0:
                pending = max(pending, jobs.resize_ms)
            else:
                pending = jobs.restart_ms if ran else 0.0
            ran = ran or size > 0
        if size == 0:
            continue
        rate = rate_ref * jobs.speeds[row, at]
        begin = a + pending
        left_ms = np.ceil((work - done) * 1000.0 / rate)
        if not (pieces > 0 and cert[FIRST + 3 * pieces - 2] == a and cert[FIRST + 3 * pieces - 1] == size):
            if pieces == MAX_SEGMENTS:
                return -1.0, 0.0
            cert[FIRST + 3 * pieces] = a
            cert[FIRST + 3 * pieces + 2] = size
            pieces += 1
        if begin + left_ms <= b:
            finish = begin + left_ms
            gpu_ms += (finish - a) * size * each
            cert[FIRST + 3 * pieces - 2] = finish + PAD_MS
            cert[KIND], cert[COUNT], cert[DUE], cert[FINISH] = k, pieces, due, finish
            if finish + SLIP_MS * (pieces - 1) > due:
                return -1.0, 0.0
            return finish, gpu_ms
        cert[FIRST + 3 * pieces - 2] = b
        gpu_ms += (b - a) * size * each
        if begin < b:
            done += rate * (b - begin) / 1000.0
            pending = 0.0
        else:
            pending = begin - b
    return -1.0, 0.0


@njit(cache=True)
def reserve(times, free, n, jobs, row, due, capacity, cls, cert):
    """Reserve the smallest sufficient size, on the type of which the job takes the smallest share.

    Writes `cert` and takes it out of the profile; False (and nothing changed) when no type and size will do.
    """
    now = times[0, 0]
    trial = np.zeros(WIDTH)
    best = -1
    best_share = best_finish = 0.0
    for k in range(capacity.size):
        if jobs.base[row, k] <= 0.0 or capacity[k] <= 0:
            continue
        for level in range(jobs.levels[row]):
            if jobs.work[row] * 1000.0 / (jobs.base[row, k] * jobs.speeds[row, level]) > due - now + 1.0:
                continue
            finish, gpu_ms = fill(times, free, n, jobs, row, k, level, due, trial)
            if finish < 0.0:
                continue
            share = gpu_ms / capacity[k]
            if (
                best < 0
                or share < best_share * (1.0 - 1e-9)
                or (share <= best_share * (1.0 + 1e-9) and finish < best_finish)
            ):
                best, best_share, best_finish = k, share, finish
                cert[:] = trial
            break
    if best < 0:
        return False
    cert[CLASS] = cls
    return occupy(times, free, n, cert, jobs.each[row], 1)


@njit(cache=True)
def soonest(times, free, n, jobs, row, capacity, cert):
    """The reservation with the earliest finish over all types and sizes; not taken. -1: none at all."""
    trial = np.zeros(WIDTH)
    best = -1.0
    for k in range(capacity.size):
        if jobs.base[row, k] <= 0.0 or capacity[k] <= 0:
            continue
        for level in range(jobs.levels[row]):
            finish, _ = fill(times, free, n, jobs, row, k, level, FOREVER, trial)
            if finish >= 0.0 and (best < 0.0 or finish < best):
                best = finish
                cert[:] = trial
    return best


@njit(cache=True)
def reserve_in_order(times, free, n, jobs, rows, due, capacity, cls, certs):
    """Reserve for these rows one after the other; returns how many succeeded before the first failure."""
    for i in range(rows.size):
        row = rows[i]
        if not reserve(times, free, n, jobs, row, due[row], capacity, cls, certs[row]):
            return i
    return rows.size


@njit(cache=True)
def follow(now, jobs, certs, finish):
    """Move reservations on to now: drop what is past, recompute each finish as it stands (-1: not enough)."""
    for row in range(certs.shape[0]):
        finish[row] = -1.0
        if certs[row, CLASS] == 0.0:
            continue
        k = int(certs[row, KIND])
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
        here = jobs.held_kind[row] == k and jobs.held[row] > 0
        current = jobs.held[row] if here else 0
        ran = jobs.ran[row]
        pending = jobs.pending_ms[row] if here else 0.0
        left = jobs.work[row]
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
            for c in range(jobs.levels[row]):
                if jobs.sizes[row, c] == size:
                    speed = jobs.speeds[row, c]
            rate = jobs.base[row, k] * speed
            if rate <= 0.0:
                break
            need_ms = np.ceil(left * 1000.0 / rate)
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


@njit(cache=True)
def hasten(times, free, n, jobs, rows, certs, least_gain, only_waiting):
    """Let reserved jobs use what would stand idle now: start sooner, or grow, when that pays.

    A change must start now and bring the finish forward by the fraction `least_gain` of the time left and
    by twice its cost, which is the hysteresis against going back and forth.
    """
    now = times[0, 0]
    trial = np.zeros(WIDTH)
    best = np.zeros(WIDTH)
    cost = max(jobs.resize_ms, jobs.restart_ms)
    changed = 0
    for row in rows:
        cert = certs[row]
        k = int(cert[KIND])
        starts_now = cert[COUNT] > 0 and cert[FIRST] <= now
        if only_waiting == starts_now:
            continue
        size = int(cert[FIRST + 2]) if starts_now else 0
        top = jobs.levels[row] - 1
        if starts_now and size >= jobs.sizes[row, top]:
            continue
        if free[k, 0] < jobs.each[row] * (1 if starts_now else jobs.sizes[row, 0]):
            continue
        if not occupy(times, free, n, cert, jobs.each[row], -1):
            continue
        old = cert[FINISH]
        best_finish = old
        lowest = 0
        if only_waiting:  # sooner, at no greater size than planned
            planned = 0.0
            for s in range(int(cert[COUNT])):
                planned = max(planned, cert[FIRST + 3 * s + 2])
            while top > 0 and jobs.sizes[row, top] > planned:
                top -= 1
            lowest = top
        for level in range(top, lowest - 1, -1):
            finish, _ = fill(times, free, n, jobs, row, k, level, cert[DUE], trial)
            if finish < 0.0 or trial[FIRST] > now or finish >= best_finish:
                continue
            if old - finish >= max(least_gain * (old - now), 2.0 * cost) and trial[COUNT] <= cert[COUNT] + 1:
                best_finish = finish
                best[:] = trial
        if best_finish < old:
            best[CLASS] = cert[CLASS]
            cert[:] = best
            changed += 1
        occupy(times, free, n, cert, jobs.each[row], 1)
    return changed


@njit(cache=True)
def present(now, certs, kind, size):
    """Type and size that each reservation asks for at this moment."""
    for row in range(certs.shape[0]):
        kind[row], size[row] = -1, 0
        if certs[row, CLASS] > 0.0:
            for s in range(int(certs[row, COUNT])):
                if certs[row, FIRST + 3 * s] <= now < certs[row, FIRST + 3 * s + 1]:
                    kind[row], size[row] = int(certs[row, KIND]), int(certs[row, FIRST + 3 * s + 2])


@njit(cache=True)
def next_break(now, certs):
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

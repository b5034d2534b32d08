"""Compiled passes over the job columns, for what every decision needs. Slots index the columns."""

from __future__ import annotations

import numpy as np
from numba import njit

# Phases as the kernels know them (checked against `Phase` by a test).
PENDING, RESERVED, RUNNING, STOPPING = 0, 1, 3, 5
MS_PER_S = 1000.0


@njit(cache=True)
def ready_rows(slots, phase, not_before, arrival, preemptible, now_ms, with_running):
    """Rows that may be started now and, if asked, those that may be preempted; in order of arrival."""
    out = np.empty(slots.size, np.int64)
    n = 0
    ordered = True
    last = np.int64(-1)
    for row in range(slots.size):
        slot = slots[row]
        p = phase[slot]
        take = p == PENDING and not_before[slot] <= now_ms
        if with_running:
            take = take or p == RESERVED or (p == RUNNING and preemptible[slot] > 0)
        if take:
            out[n] = row
            n += 1
            ordered = ordered and arrival[slot] >= last
            last = arrival[slot]
    rows = out[:n]
    if not ordered:
        rows = rows[np.argsort(arrival[slots[rows]], kind="mergesort")]
    return rows


@njit(cache=True)
def work_done_now(slots, phase, work_done, work_total, rate, as_of_ms, productive_ms, now_ms):
    """Work at `now_ms`: what was last known plus the estimated rate since, never beyond the total."""
    out = np.empty(slots.size)
    for row in range(slots.size):
        slot = slots[row]
        done = work_done[slot]
        if RUNNING <= phase[slot] <= STOPPING:
            since = max(as_of_ms[slot], productive_ms[slot])
            if now_ms > since:
                done += rate[slot] * (now_ms - since) / MS_PER_S
                if done > work_total[slot]:
                    done = work_total[slot]
        out[row] = done
    return out


@njit(cache=True)
def remaining_seconds(slots, phase, work_done, work_total, rate, as_of_ms, productive_ms, now_ms, allowed, throughput):
    """Run time left at the asked size on the fastest acceptable type; infinite where unknown."""
    done = work_done_now(slots, phase, work_done, work_total, rate, as_of_ms, productive_ms, now_ms)
    out = np.empty(slots.size)
    for row in range(slots.size):
        slot = slots[row]
        best = 0.0
        for kind in range(allowed.shape[1]):
            if allowed[slot, kind] and throughput[slot, kind] > best:
                best = throughput[slot, kind]
        left = work_total[slot] - done[row]
        out[row] = left / best if best > 0.0 and left == left else np.inf
    return out


@njit(cache=True)
def service_now(slots, phase, service, as_of_ms, held_gpu_milli, now_ms):
    """GPU-seconds attained until `now_ms`."""
    out = np.empty(slots.size)
    for row in range(slots.size):
        slot = slots[row]
        attained = service[slot]
        if RUNNING <= phase[slot] <= STOPPING:
            attained += held_gpu_milli[slot] / 1000.0 * (now_ms - as_of_ms[slot]) / MS_PER_S
        out[row] = attained
    return out


@njit(cache=True)
def choose_preemptively(
    rows, slots, held_type, workers, held_gpu_milli, ask_gpu_milli, allowed, throughput,
    type_of, up, device_milli,
):  # fmt: skip
    """Down the list, every job that fits by count in what is left of its type shall run.

    A job that runs is measured by what it holds and keeps its type. Returns (rows to start, the types that they are
    counted on, rows to stop), both in the order of the list; nothing is stopped when nothing is started.
    """
    n_types = allowed.shape[1]
    available = np.zeros(n_types, np.int64)
    for node in range(type_of.size):
        if up[node]:
            for device in range(device_milli.shape[1]):
                available[type_of[node]] += device_milli[node, device]
    for k in range(rows.size):
        slot = slots[rows[k]]
        if workers[slot] > 0 and held_type[slot] >= 0:
            available[held_type[slot]] += held_gpu_milli[slot]
    start = np.empty(rows.size, np.int64)
    kinds = np.empty(rows.size, np.int64)
    stop = np.empty(rows.size, np.int64)
    n_start = n_stop = 0
    for k in range(rows.size):
        slot = slots[rows[k]]
        if workers[slot] > 0:
            kind = held_type[slot]
            need = held_gpu_milli[slot]
            if kind < 0 or need == 0:
                continue
            if need <= available[kind]:
                available[kind] -= need
            else:
                stop[n_stop] = rows[k]
                n_stop += 1
            continue
        need = ask_gpu_milli[slot]
        best = -1
        for kind in range(n_types):
            if (
                allowed[slot, kind]
                and need <= available[kind]
                and (best < 0 or throughput[slot, kind] > throughput[slot, best])
            ):
                best = kind
        if best >= 0:
            available[best] -= need
            start[n_start], kinds[n_start] = rows[k], best
            n_start += 1
    if n_start == 0:
        n_stop = 0
    return start[:n_start], kinds[:n_start], stop[:n_stop]


@njit(cache=True)
def close_reasons(why, slots, phase, not_before, now_ms, changed, first, default, backoff):
    """Every waiting job has a reason, no other job has one. `changed` rows wait where `first` is negative."""
    stated = why[changed]
    for row in range(slots.size):
        slot = slots[row]
        if phase[slot] != PENDING:
            why[row] = 0
        elif not_before[slot] > now_ms:
            why[row] = backoff
        elif why[row] == 0:
            why[row] = default
    for k in range(changed.size):
        row = changed[k]
        if first[k] >= 0:
            why[row] = 0
        else:
            why[row] = stated[k] if stated[k] != 0 else default


@njit(cache=True)
def drop(values, used, value):
    """Remove a value from the first `used` ones, which keep their order."""
    at = 0
    while values[at] != value:
        at += 1
    for k in range(at, used - 1):
        values[k] = values[k + 1]


@njit(cache=True)
def note_reasons(slots, why, blocker, reasons, blockers):
    """Write why each row waits, and for whom (rows in `blocker`, which may be empty; slots in `blockers`)."""
    for row in range(slots.size):
        slot = slots[row]
        reasons[slot] = why[row]
        blockers[slot] = slots[blocker[row]] if blocker.size > 0 and blocker[row] >= 0 else -1


@njit(cache=True)
def first_silent(why, slots, phase, changed, first):
    """The first row that waits without a reason, -1 if none. `changed` rows wait where `first` is negative."""
    for k in range(changed.size):
        if first[k] < 0 and why[changed[k]] == 0:
            return changed[k]
    for row in range(slots.size):
        if phase[slots[row]] == PENDING and why[row] == 0:
            for k in range(changed.size):
                if changed[k] == row:
                    break
            else:
                return row
    return -1

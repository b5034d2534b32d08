"""The round mechanism as compiled passes over the job columns, for rounds in which nobody shares devices.

The same rules as in `rounds` and `policy`, row by row in place of column by column, with the same arithmetic in the
same order: a test runs both and compares. `slots` lists the rows of the snapshot; `share`, `received` and what else
the mechanism remembers is by row, everything else by slot.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from trainmaster.model.units import GPU_MILLI, NEVER_MS
from trainmaster.policies.gavel.rounds import NEVER_RUN

PENDING, RESERVED, RUNNING, LOST, PAUSED = (
    0,
    1,
    3,
    6,
    7,
)  # phases as the kernels know them (checked against `Phase` by a test)
MS_PER_S = 1000.0
BY_TYPE, SHUFFLED, ONLY_POSITIVE = 1, 2, 4
"""How entries queue, as the original has it: one type after the other, in a new order each time, and only those with a
share. 0: one queue over all types."""


@njit(cache=True)
def work_done_now(slots, phase, work_done, work_total, rate, as_of_ms, productive_ms, now_ms):
    """Work at `now_ms`: what was last known plus the estimated rate since, never beyond the total."""
    out = np.empty(slots.size)
    for row in range(slots.size):
        slot = slots[row]
        done = work_done[slot]
        if RUNNING <= phase[slot] <= 5:
            since = max(as_of_ms[slot], productive_ms[slot])
            if now_ms > since:
                done += rate[slot] * (now_ms - since) / MS_PER_S
                if done > work_total[slot]:
                    done = work_total[slot]
        out[row] = done
    return out


@njit(cache=True)
def _changeable(slot, phase, preemptible, not_before_ms, ask_gpu_milli, now_ms):
    """Whether the allocation of a job may be changed now."""
    p = phase[slot]
    if ask_gpu_milli[slot] <= 0:
        return False
    if p == PENDING:
        return not_before_ms[slot] <= now_ms
    return p == RESERVED or (p == RUNNING and preemptible[slot] > 0)


@njit(cache=True)
def survey(
    slots, share, known, now_ms, phase, workers, held_gpu_milli, worker_gpu_milli, ask_gpu_milli, preemptible,
    not_before_ms,
):  # fmt: skip
    """(somebody holds devices, somebody has less of them than asked for, jobs never seen before, jobs the shares were
    computed for, a job that may be changed has a share)."""
    holding = halved = to_run = False
    new = present = 0
    for row in range(slots.size):
        s = slots[row]
        holding = holding or (workers[s] > 0 and phase[s] != LOST)
        halved = halved or held_gpu_milli[s] < workers[s] * worker_gpu_milli[s]
        new += int(known[row] == 0.0)
        present += int(known[row] == 1.0)
        if not to_run and _changeable(s, phase, preemptible, not_before_ms, ask_gpu_milli, now_ms):
            for kind in range(share.shape[1]):
                to_run = to_run or share[row, kind] > 0.0
    return holding, halved, new, present, to_run


@njit(cache=True)
def _speeds(slots, allowed, throughput, throughput_spread, ask_gpu_milli, type_of, gpus, counting):
    """What a job makes of each type: on one node, or spread where the gang is larger than any node of the type."""
    n_types = allowed.shape[1]
    largest = np.zeros(n_types)
    for node in range(type_of.size):
        largest[type_of[node]] = max(largest[type_of[node]], float(gpus[node]))
    speeds = np.zeros((slots.size, n_types))
    for row in range(slots.size):
        s = slots[row]
        for kind in range(n_types):
            if allowed[s, kind]:
                apart = not counting and ask_gpu_milli[s] / GPU_MILLI > largest[kind]
                speeds[row, kind] = throughput_spread[s, kind] if apart else throughput[s, kind]
    return speeds


@njit(cache=True)
def _arrival_order(slots, arrival):
    rows = np.arange(slots.size)
    for row in range(1, slots.size):
        if arrival[slots[row]] < arrival[slots[row - 1]]:
            return rows[np.argsort(arrival[slots], kind="mergesort")]
    return rows


@njit(cache=True)
def competitors(
    slots, now_ms, counting, arrival, phase, ask_gpu_milli, submit_ms, deadline_ms, as_of_ms, productive_ms,
    work_done, work_total, rate, allowed, throughput, throughput_spread, type_of, gpus,
):  # fmt: skip
    """What the solvers are told of the jobs that want GPUs (not paused, not lost with their node), in order of arrival:
    (rows, speeds, GPUs asked for, steps left, seconds since submission, seconds until the deadline or NaN); and the
    steps left of every row (NaN: unknown). Work that is unknown counts as that of the longest job."""
    done = work_done_now(slots, phase, work_done, work_total, rate, as_of_ms, productive_ms, now_ms)
    remaining = np.empty(slots.size)
    for row in range(slots.size):
        remaining[row] = work_total[slots[row]] - done[row]
    by_arrival = _arrival_order(slots, arrival)
    rows = np.empty(slots.size, np.int64)
    n = 0
    longest = -np.inf
    for k in range(slots.size):
        row = by_arrival[k]
        s = slots[row]
        if phase[s] != PAUSED and phase[s] != LOST and ask_gpu_milli[s] > 0:
            rows[n] = row
            n += 1
            if np.isfinite(remaining[row]):
                longest = max(longest, remaining[row])
    if longest == -np.inf:
        longest = 1.0
    rows = rows[:n]
    speeds = _speeds(slots[rows], allowed, throughput, throughput_spread, ask_gpu_milli, type_of, gpus, counting)
    asked, left, elapsed_s, slo_s = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    for k in range(n):
        s = slots[rows[k]]
        asked[k] = ask_gpu_milli[s] / GPU_MILLI
        left[k] = max(remaining[rows[k]] if np.isfinite(remaining[rows[k]]) else longest, 1e-9)
        elapsed_s[k] = (now_ms - submit_ms[s]) / MS_PER_S
        slo_s[k] = (deadline_ms[s] - now_ms) / MS_PER_S if deadline_ms[s] < NEVER_MS else np.nan
    return rows, speeds, asked, left, elapsed_s, slo_s, remaining


@njit(cache=True)
def _before(a, b, first, second, third):
    """Whether entry a comes strictly before b: larger first key, then second, then third."""
    if first[a] != first[b]:
        return first[a] > first[b]
    if second[a] != second[b]:
        return second[a] > second[b]
    return third[a] > third[b]


@njit(cache=True)
def _sorted_entries(entries, first, second, third):
    """Stable merge sort of flat indices, best first."""
    source, target = entries, np.empty_like(entries)
    width = 1
    while width < entries.size:
        for low in range(0, entries.size, 2 * width):
            middle, high = min(low + width, entries.size), min(low + 2 * width, entries.size)
            left, right = low, middle
            for k in range(low, high):
                if left < middle and (right >= high or not _before(source[right], source[left], first, second, third)):
                    target[k] = source[left]
                    left += 1
                else:
                    target[k] = source[right]
                    right += 1
        source, target = target, source
        width *= 2
    return source


@njit(cache=True)
def types_in_turn(total_speeds, queueing, type_order, now_ms):
    """The order in which types are looked at: faster ones first, or as given, or shuffled by the time (Fisher and
    Yates with Lehmer's generator)."""
    if not queueing & BY_TYPE:
        return np.argsort(-total_speeds, kind="mergesort")
    order = type_order.copy()
    if queueing & SHUFFLED:
        state = now_ms % 2147483646 + 1
        for _ in range(4):
            state = state * 48271 % 2147483647
        for last in range(order.size - 1, 0, -1):
            state = state * 48271 % 2147483647
            other = state * (last + 1) // 2147483647
            kept = order[last]
            order[last] = order[other]
            order[other] = kept
    return order


@njit(cache=True)
def choose(
    slots, share, received_s, deficit_s, known, worker_s, now_ms, inside, queueing, type_order, patience_s, counting,
    arrival, phase, preemptible, not_before_ms, ask_gpu_milli, workers, held_type, held_gpu_milli, waiting_since_ms,
    allowed, throughput, throughput_spread, type_of, up, gpus, device_milli,
):  # fmt: skip
    """Who shall run on what until the round is over. Returns (type by row or -1, which rows were looked at, rows to
    stop, rows to start with their types; both in order of arrival; speeds; rows in order of arrival). Where each type
    has a queue of its own, jobs that the shares do not know yet take room and do not run, as in the original."""
    n, n_types = share.shape
    speeds = _speeds(slots, allowed, throughput, throughput_spread, ask_gpu_milli, type_of, gpus, counting)
    by_arrival = _arrival_order(slots, arrival)
    rows, holds = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    held_gpus = np.zeros(n_types)
    for row in range(n):
        s = slots[row]
        holds[row] = workers[s] > 0 and phase[s] != LOST
        rows[row] = _changeable(s, phase, preemptible, not_before_ms, ask_gpu_milli, now_ms)
        if inside and holds[row]:
            rows[row] = False
        if rows[row] and holds[row] and held_type[s] >= 0:
            held_gpus[held_type[s]] += held_gpu_milli[s] / GPU_MILLI
    free = np.zeros(n_types)
    for node in range(type_of.size):
        if up[node]:
            milli = 0
            for device in range(device_milli.shape[1]):
                milli += device_milli[node, device]
            free[type_of[node]] += milli / GPU_MILLI
    free += held_gpus

    # Priority: the share due over the share received; who has waited too long goes first.
    priority = np.zeros((n, n_types))
    late = np.zeros(n, np.bool_)
    waited_s = np.zeros(n)
    any_late = False
    if patience_s > 0.0:
        for row in range(n):
            s = slots[row]
            if phase[s] == PENDING:
                waited_s[row] = (now_ms - waiting_since_ms[s]) / MS_PER_S
            late[row] = waited_s[row] >= patience_s
            any_late = any_late or late[row]
    for row in range(n):
        for kind in range(n_types):
            due = share[row, kind]
            if speeds[row, kind] <= 0.0:
                continue
            if due > 0.0:
                fraction = received_s[row, kind] / max(worker_s[kind], 1e-12) if worker_s[kind] > 0.0 else 0.0
                priority[row, kind] = due / fraction if fraction > 0.0 else due * NEVER_RUN
            if any_late and late[row]:
                priority[row, kind] = 1e15 * waited_s[row] + (due if due > 0.0 else 1e-6)

    total = np.zeros(n_types)
    for row in range(n):
        total += speeds[row]
    turns = types_in_turn(total, queueing, type_order, now_ms)
    entries = np.empty(n * n_types, np.int64)
    n_entries = 0
    first_of = np.zeros(n_types + 1, np.int64)
    for t in range(n_types):
        kind = turns[t]
        first_of[t] = n_entries
        for k in range(n):
            row = by_arrival[k]
            if rows[row] and speeds[row, kind] > 0.0 and not (queueing & ONLY_POSITIVE and priority[row, kind] <= 0.0):
                entries[n_entries] = row * n_types + kind
                n_entries += 1
    first_of[n_types] = n_entries
    if queueing & BY_TYPE:
        ordered = np.empty(n_entries, np.int64)
        for t in range(n_types):
            low, high = first_of[t], first_of[t + 1]
            ordered[low:high] = _sorted_entries(
                entries[low:high].copy(), priority.ravel(), deficit_s.ravel(), share.ravel()
            )
    else:
        ordered = _sorted_entries(entries[:n_entries], priority.ravel(), deficit_s.ravel(), share.ravel())
    chosen = np.full(n, -1, np.int64)
    for k in range(n_entries):
        row, kind = ordered[k] // n_types, ordered[k] % n_types
        need = ask_gpu_milli[slots[row]] / GPU_MILLI
        if chosen[row] < 0 and need <= free[kind]:
            chosen[row] = kind
            free[kind] -= need
    if queueing & BY_TYPE:
        for row in range(n):
            if known[row] < 1.0:
                chosen[row] = -1

    stop, start, kinds = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    n_stop = n_start = 0
    for k in range(n):
        row = by_arrival[k]
        stays = holds[row] and chosen[row] == held_type[slots[row]]
        if not rows[row] or stays:
            continue
        if holds[row]:
            stop[n_stop] = row
            n_stop += 1
        if chosen[row] >= 0:
            start[n_start], kinds[n_start] = row, chosen[row]
            n_start += 1
    return chosen, rows, stop[:n_stop], start[:n_start], kinds[:n_start], speeds, by_arrival


@njit(cache=True)
def give_time(
    slots, chosen, rows, speeds, by_arrival, share, received_s, worker_s, left_s, now_ms,
    phase, workers, held_type, as_of_ms, productive_ms, work_done, work_total, rate,
):  # fmt: skip
    """Count what the chosen jobs will have had when the round is over: whole steps that fit in it, or until their
    end (into `received_s` by row and `worker_s` by type). Returns (the longest such slice or -1 when nobody runs,
    whether a job waits, whether a job that runs has a claim to a faster type)."""
    n, n_types = share.shape
    done = work_done_now(slots, phase, work_done, work_total, rate, as_of_ms, productive_ms, now_ms)
    given_s = np.zeros(n_types)
    longest_s = -1.0
    for k in range(n):
        row = by_arrival[k]
        kind = chosen[row]
        if kind < 0:
            continue
        speed = speeds[row, kind]
        steps = np.floor(speed * left_s)
        if steps < 1.0:
            steps = speed * left_s
        remaining = work_total[slots[row]] - done[row]
        if remaining < steps:
            steps = remaining
        slice_s = steps / (speed if speed > 0.0 else 1.0)
        received_s[row, kind] += slice_s
        given_s[kind] += slice_s
        longest_s = max(longest_s, slice_s)
    worker_s += given_s
    waiting = could_move = False
    for row in range(n):
        s = slots[row]
        if rows[row]:
            waiting = waiting or chosen[row] < 0
            kind = chosen[row]
        else:
            waiting = waiting or phase[s] == PENDING
            kind = held_type[s] if workers[s] > 0 and phase[s] != LOST else -1
        if kind >= 0:
            for other in range(n_types):
                faster = speeds[row, other] > speeds[row, kind] * 1.001
                could_move = could_move or (faster and share[row, other] > 1e-6)
    return longest_s, waiting, could_move

"""Compiled passes of the slot simulator: begin a slot, grant one action, gather features, choose, end a slot.

Every array has the episode as its first axis and, for jobs, the job in order of arrival as its second. Time is in
integer milliseconds from the beginning of the trace.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from trainmaster.learn.speed_learning import learn_speeds
from trainmaster.policies.dl2.features import (
    global_features,
    log_time_statistics,
    size_features,
    slot_features,
    step_time,
)
from trainmaster.policies.dl2.waiting_order import discounted_area

WORKER, SERVER, BOTH, VOID = 0, 1, 2, -1


@njit(cache=True)
def begin_slot(b, s, floor):
    """Admit what has arrived, give everyone one worker and one server (while they last: see `_least_sizes`), and
    write the features of the first decision. Returns False when the trace is over."""
    now = s.slot[b] * s.slot_ms[b]
    n = 0
    next_arrival = -1
    for j in range(s.n_jobs[b]):
        s.held[b, j] = s.workers[b, j] > 0
        s.workers[b, j] = 0
        s.servers[b, j] = 0
        if s.finish_ms[b, j] >= 0:
            continue
        if s.submit_ms[b, j] <= now:
            s.rows[b, n] = j
            n += 1
        elif next_arrival < 0 or s.submit_ms[b, j] < next_arrival:
            next_arrival = s.submit_ms[b, j]
    if n == 0:
        if next_arrival < 0:
            s.n_rows[b] = 0
            return False
        s.slot[b] = (next_arrival + s.slot_ms[b] - 1) // s.slot_ms[b]
        return begin_slot_again(b, s, floor)
    s.n_rows[b] = n
    _open_slot(b, s, floor)
    return True


@njit(cache=True)
def begin_slot_again(b, s, floor):
    now = s.slot[b] * s.slot_ms[b]
    n = 0
    for j in range(s.n_jobs[b]):
        if s.finish_ms[b, j] < 0 and s.submit_ms[b, j] <= now:
            s.rows[b, n] = j
            n += 1
    s.n_rows[b] = n
    _open_slot(b, s, floor)
    return True


@njit(cache=True)
def _open_slot(b, s, floor):
    n = s.n_rows[b]
    if s.learns[b]:
        learn_speeds(b, s)
    s.free_gpu[b] = s.gpus[b]
    s.free_cpu[b] = s.cpus[b]
    least_p = min(1, s.servers_max[b])
    if floor:
        _least_sizes(b, s, least_p)
    cost_w = 1.0 / s.gpus[b]
    cost_p = _server_cost(b, s)
    slot_s = s.slot_ms[b] / 1000.0
    log_time = np.empty(n)
    for i in range(n):
        j = s.rows[b, i]
        time = s.left[b, j] * step_time(s.believed[b, j], 1, least_p) / slot_s
        log_time[i] = np.log(max(time, 1e-6))
    mean, spread, shorter = log_time_statistics(log_time, n)
    s.mean_log[b] = mean
    s.spread_log[b] = spread
    now = s.slot[b] * s.slot_ms[b]
    for i in range(n):
        j = s.rows[b, i]
        age = (now - s.submit_ms[b, j]) / s.slot_ms[b]
        done = 1.0 - s.left[b, j] / s.work[b, j]
        slot_features(s.features[b, j], log_time[i], age, done, cost_w, cost_p, mean, shorter[i])
        _resized(b, j, s)


@njit(cache=True)
def _least_sizes(b, s, least_p):
    """One worker and one server each: whoever ran keeps them, those who wait follow in the order of the policy
    (`policies.dl2.waiting_order`) when there is not room for all."""
    n = s.n_rows[b]
    room = np.int64(s.gpus[b])
    if least_p > 0:
        room = min(room, np.int64(s.cpus[b] // s.server_cpus[b]))
    turn = np.arange(n)
    if n > room:
        now = s.slot[b] * s.slot_ms[b]
        key = np.empty(n)
        for i in range(n):
            j = s.rows[b, i]
            time_s = s.left[b, j] * step_time(s.believed[b, j], 1, least_p)
            waited_s = (now - s.submit_ms[b, j]) / 1000.0
            key[i] = -1.0 if s.held[b, j] else discounted_area(time_s, 1.0, waited_s)
        turn = np.argsort(key, kind="mergesort")
    for i in turn[:room]:
        j = s.rows[b, i]
        s.workers[b, j] = 1
        s.servers[b, j] = least_p
        s.free_gpu[b] -= 1
        s.free_cpu[b] -= least_p * s.server_cpus[b]


@njit(cache=True)
def _server_cost(b, s):
    """Share of the cluster; of jobs without servers the policy says that of a worker."""
    return s.server_cpus[b] / s.cpus[b] if s.servers_max[b] > 0 else 1.0 / s.gpus[b]


@njit(cache=True)
def _resized(b, j, s):
    slot_s = s.slot_ms[b] / 1000.0
    size_features(
        s.features[b, j], s.believed[b, j], s.left[b, j] / slot_s, s.workers[b, j], s.servers[b, j],
        s.workers_max[b], s.servers_max[b], 1.0 / s.gpus[b], _server_cost(b, s),
    )  # fmt: skip


@njit(cache=True)
def legal(b, j, action, s, floor):
    """Whether one more worker, server or both can be given to a job now."""
    w, p = s.workers[b, j], s.servers[b, j]
    if floor and w == 0:
        return False  # the floor did not reach it: there is no room
    if s.servers_max[b] == 0:  # "both" gives a worker alone to jobs without servers, as in the policy
        return action == BOTH and w < s.workers_max[b] and s.free_gpu[b] >= 1
    if action != SERVER and (w >= s.workers_max[b] or s.free_gpu[b] < 1):
        return False
    return not (action != WORKER and (p >= s.servers_max[b] or s.free_cpu[b] < s.server_cpus[b]))


@njit(cache=True)
def any_legal(b, s, floor):
    for i in range(s.n_rows[b]):
        for action in range(3):
            if legal(b, s.rows[b, i], action, s, floor):
                return True
    return False


@njit(cache=True)
def grant(b, j, action, s):
    if action != SERVER:
        s.workers[b, j] += 1
        s.free_gpu[b] -= 1
    if action != WORKER and s.servers_max[b] > 0:
        s.servers[b, j] += 1
        s.free_cpu[b] -= s.server_cpus[b]
    _resized(b, j, s)


@njit(cache=True)
def end_slot(b, s):
    """Let the slot pass: progress at the true speeds. Returns (jobs-in-system time, progress), both in slots."""
    now = s.slot[b] * s.slot_ms[b]
    present = 0.0
    progress = 0.0
    for i in range(s.n_rows[b]):
        j = s.rows[b, i]
        w, p = s.workers[b, j], s.servers[b, j]
        ran_ms = s.slot_ms[b]
        done = 0.0
        if w > 0 and (p > 0 or s.servers_max[b] == 0):
            rate = s.factor[b, j] / step_time(s.curve[b, j], w, p)
            done = rate * s.slot_ms[b] / 1000.0
            left_ms = np.ceil(s.left[b, j] * 1000.0 / rate)
            if left_ms <= s.slot_ms[b]:
                done = s.left[b, j]
                ran_ms = np.int64(left_ms)
                s.finish_ms[b, j] = now + ran_ms
                s.left[b, j] = 0.0
            else:
                s.left[b, j] -= done
                s.ran[b, j, 0], s.ran[b, j, 1] = w, p
        present += ran_ms / s.slot_ms[b]
        s.trained[b, j] = done / s.work[b, j]
        progress += s.trained[b, j]
    s.slot[b] += 1
    return present, progress


@njit(cache=True)
def write_globals(b, s, out):
    n = s.n_rows[b]
    least = max(n / s.gpus[b], n * _server_cost(b, s))
    free_gpu, free_cpu = s.free_gpu[b] / s.gpus[b], s.free_cpu[b] / s.cpus[b]
    global_features(out, free_gpu, free_cpu, n, s.mean_log[b], s.spread_log[b], least)


@njit(cache=True)
def gather(episodes, s, floor, rows, allowed, starts, globals_, job):
    """Features of the episodes' present decisions, one below the other; returns how many rows."""
    n = 0
    for k in range(episodes.size):
        b = episodes[k]
        starts[k] = n
        for i in range(s.n_rows[b]):
            j = s.rows[b, i]
            rows[n] = s.features[b, j]
            job[n] = j
            for action in range(3):
                allowed[n, action] = legal(b, j, action, s, floor)
            n += 1
        write_globals(b, s, globals_[k])
    return n


@njit(cache=True)
def choose(scores, void, starts, n_rows, allowed, uniform, greedy, row_out, action_out, log_p):
    """Sample from the masked softmax of each decision by inversion; or (`greedy`) stop if that is likelier than all
    actions together, else take the likeliest of them. Stopping is always allowed. `row_out` is -1 for it."""
    for k in range(starts.size):
        first = starts[k]
        last = starts[k + 1] if k + 1 < starts.size else n_rows
        best = -np.inf
        best_row, best_action = -1, VOID
        for i in range(first, last):
            for action in range(3):
                if allowed[i, action] and scores[i, action] > best:
                    best = scores[i, action]
                    best_row, best_action = i, action
        top = max(best, void[k])
        total = np.exp(void[k] - top)
        for i in range(first, last):
            for action in range(3):
                if allowed[i, action]:
                    total += np.exp(scores[i, action] - top)
        if greedy:
            if np.exp(void[k] - top) > 0.5 * total:
                best_row, best_action = -1, VOID
        else:
            target = uniform[k] * total
            seen = np.exp(void[k] - top)
            best_row, best_action = -1, VOID
            if seen <= target:
                for i in range(first, last):
                    for action in range(3):
                        if allowed[i, action] and seen <= target:
                            seen += np.exp(scores[i, action] - top)
                            best_row, best_action = i, action
        row_out[k] = best_row
        action_out[k] = best_action
        chosen = void[k] if best_row < 0 else scores[best_row, best_action]
        log_p[k] = chosen - top - np.log(total)


@njit(cache=True)
def apply_choices(episodes, row, action, job, s, floor, ended, present, progress, over):
    """Carry out one choice per episode. A slot ends when the choice is to stop or nothing more is possible; the
    next one begins at once."""
    for k in range(episodes.size):
        b = episodes[k]
        ended[k] = False
        over[k] = False
        if row[k] >= 0:
            grant(b, job[row[k]], action[k], s)
            if any_legal(b, s, floor):
                continue
        ended[k] = True
        present[k], progress[k] = end_slot(b, s)
        while True:
            if not begin_slot(b, s, floor):
                over[k] = True
                break
            if any_legal(b, s, floor):
                break
            more, done = end_slot(b, s)
            present[k] += more
            progress[k] += done

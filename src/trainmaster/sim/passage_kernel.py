"""From event to event in one compiled call, for worlds in which starts and stops take no time.

What happens here is what `trainmaster.sim.run`, the engine and `trainmaster.sim.instant` do step by step: ends and
arrivals that are due, a decision, its verification, and what stops and starts leave behind. The passes are theirs
(`check_changes`, `order_commands`, `exchange_gangs`, `write_turnover`); only the calls between them are compiled.
Whatever is out of the ordinary ends the passage *before* the decision in question, and the engine makes it.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np
from numba import njit

from trainmaster.engine.plan_check import AT_ONCE, AT_ONCE_THEN_LOOK, check_changes
from trainmaster.engine.turnover import order_commands, write_turnover
from trainmaster.model.gangs import HEAD, KIND, PART, add_gang
from trainmaster.model.kernels import drop, first_silent, note_reasons
from trainmaster.model.rules import queue_pass
from trainmaster.model.table import FLOAT_COLUMNS, INT_COLUMNS
from trainmaster.model.units import NEVER_MS
from trainmaster.policies.gavel.round_rule import round_pass
from trainmaster.sim.instant import REFUSED, exchange_gangs, soonest

# Phases as the kernels know them (checked against `Phase` by a test).
RUNNING, STOPPING, FINISHED = 3, 5, 8
MS_PER_S = 1000.0
MAX_IDLE_WAKES = 100_000
"""A run in which the policy asks so often to be woken without anything happening is stuck."""

PAUSED, DECIDE, SOLVE, REFILL, GROW, WIDEN, OVER, STUCK = range(8)
"""Why a passage ends: so many decisions were made; the engine is to decide, for what comes is out of the ordinary or
because shares are due; no arrivals are known any more; no slot is free; a gang is too long for its row; all jobs have
ended; nothing will ever happen."""
_GO, _LOOK = 8, 9

COUNTERS = (
    "now_ms", "version", "seq", "decisions", "events", "used", "free", "live", "order", "next", "ended", "idle",
    "wake_ms", "arrivals", "end_ms", "late",
)  # fmt: skip
"""What changes as a whole number; see `World.counters`."""
(
    NOW, VERSION, SEQ, DECISIONS, EVENTS, USED, FREE, LIVE, ORDER, NEXT, ENDED, IDLE, WAKE, ARRIVALS, END, LATE
) = range(len(COUNTERS))  # fmt: skip

World = namedtuple(
    "World",
    (
        "counters", "lost_gpu_s",  # one number, in GPU-seconds
        "ints", "floats", "allowed", "throughput", "spread", "gangs", "rows", "free", "prices",  # the engine's columns
        "seq_of", "index_of", "touched",  # by slot: last command, index among the arrivals or -1, gang written
        "device_milli", "whole", "cpu_free", "mem_free",  # planned and physical ledger, which are equal here
        "type_of", "up", "gpus", "rack_of",  # the cluster
        "work", "total", "rate", "as_of_ms", "finish_ms", "order", "generation", "live", "speed",  # what really runs
        "submit_ms", "new_ints", "new_floats", "new_throughput", "new_spread", "new_allowed", "new_speed",  # arrivals
        "ended_ints", "ended_floats", "late",  # output: jobs that ended; launches without an answer
    ),
)  # fmt: skip
ENDED_INTS = ("index", "slot", "ended_ms", "first_start_ms", "preemptions", "attempts")
ENDED_FLOATS = ("service_gpu_s", "run_s", "work_done", "cost")


def _ints(*names: str) -> tuple[int, ...]:
    return tuple(INT_COLUMNS.index(name) for name in names)


(
    _SUBMIT_MS, _ARRIVAL, _WORKERS_MIN, _WORKERS_MAX, _SERVERS_MIN, _SERVERS_MAX, _WORKERS_REF, _SERVERS_REF,
    _DEVICES_EACH, _SHARE_MILLI, _WORKER_CPU, _WORKER_MEM, _SERVER_CPU, _SERVER_MEM, _PREEMPTIBLE, _PHASE,
    _GENERATION, _ATTEMPTS, _PREEMPTIONS, _HELD_TYPE, _WORKERS, _SERVERS, _NODES_HELD, _FIRST_START_MS, _AS_OF_MS,
    _PRODUCTIVE_MS, _WAITING_SINCE_MS, _REASON, _BLOCKER, _AFTER_STOP, _HELD_GPU_MILLI,
) = _ints(
    "submit_ms", "arrival", "workers_min", "workers_max", "servers_min", "servers_max", "workers_ref", "servers_ref",
    "devices_each", "share_milli", "worker_cpu_milli", "worker_mem_mib", "server_cpu_milli", "server_mem_mib",
    "preemptible", "phase", "generation", "attempts", "preemptions", "held_type", "workers", "servers", "nodes_held",
    "first_start_ms", "as_of_ms", "productive_ms", "waiting_since_ms", "reason", "blocker", "after_stop",
    "held_gpu_milli",
)  # fmt: skip
_WORK_TOTAL, _WORK_DONE, _WORK_SAVED, _RATE, _SERVICE, _RUN_S, _COST = (
    FLOAT_COLUMNS.index(name)
    for name in ("work_total", "work_done", "work_saved", "rate", "service_gpu_s", "run_s", "cost")
)


@njit(cache=True)
def _settle(w, s, now_ms):
    """As `JobColumns.settle`."""
    ints, floats = w.ints, w.floats
    as_of = ints[_AS_OF_MS, s]
    if as_of == now_ms:
        return
    ints[_AS_OF_MS, s] = now_ms
    if not RUNNING <= ints[_PHASE, s] <= STOPPING:
        return
    since = max(as_of, ints[_PRODUCTIVE_MS, s])
    if now_ms > since:
        done = floats[_WORK_DONE, s] + floats[_RATE, s] * (now_ms - since) / MS_PER_S
        total = floats[_WORK_TOTAL, s]
        floats[_WORK_DONE, s] = min(done, total) if total == total else done
    held_s = (now_ms - as_of) / MS_PER_S
    service = held_s * ints[_HELD_GPU_MILLI, s] / 1000.0
    floats[_SERVICE, s] += service
    kind = ints[_HELD_TYPE, s]
    if kind >= 0:
        floats[_COST, s] += service / 3600.0 * w.prices[kind]
    floats[_RUN_S, s] += held_s


@njit(cache=True)
def _finish(w, s, now_ms):
    """A job has done its work: the engine's last word on it, and its devices, row and slot come free."""
    c, ints, floats = w.counters, w.ints, w.floats
    _settle(w, s, now_ms)
    floats[_WORK_DONE, s] = floats[_WORK_TOTAL, s]
    ints[_PHASE, s] = FINISHED
    add_gang(
        w.gangs[s], 0, 1, ints[_WORKER_CPU, s], ints[_WORKER_MEM, s], ints[_SERVER_CPU, s], ints[_SERVER_MEM, s],
        w.device_milli, w.whole, w.cpu_free, w.mem_free,
    )  # fmt: skip
    e = c[ENDED]
    w.ended_ints[e, 0], w.ended_ints[e, 1], w.ended_ints[e, 2] = w.index_of[s], s, now_ms
    w.ended_ints[e, 3] = ints[_FIRST_START_MS, s]
    w.ended_ints[e, 4], w.ended_ints[e, 5] = ints[_PREEMPTIONS, s], ints[_ATTEMPTS, s]
    w.ended_floats[e, 0], w.ended_floats[e, 1] = floats[_SERVICE, s], floats[_RUN_S, s]
    w.ended_floats[e, 2], w.ended_floats[e, 3] = floats[_WORK_DONE, s], floats[_COST, s]
    c[ENDED] += 1
    drop(w.rows, c[USED], s)
    c[USED] -= 1
    w.gangs[s, 0] = 0
    w.touched[s] = 1
    w.index_of[s] = -1
    w.free[c[FREE]] = s
    c[FREE] += 1


@njit(cache=True)
def _arrive(w, k, now_ms):
    """The k-th of the jobs to come enters the columns."""
    c, ints = w.counters, w.ints
    c[FREE] -= 1
    s = w.free[c[FREE]]
    ints[:, s] = w.new_ints[k]
    ints[_ARRIVAL, s] = c[ARRIVALS]
    ints[_AS_OF_MS, s] = ints[_PRODUCTIVE_MS, s] = ints[_WAITING_SINCE_MS, s] = now_ms
    w.floats[:, s] = w.new_floats[k]
    w.throughput[s], w.spread[s], w.allowed[s] = w.new_throughput[k], w.new_spread[k], w.new_allowed[k]
    w.speed[s] = w.new_speed[k]
    w.total[s] = w.new_floats[k, _WORK_TOTAL]
    w.work[s] = 0.0
    w.generation[s] = 0
    w.gangs[s, 0] = 0
    w.touched[s] = 1
    w.index_of[s] = k
    w.rows[c[USED]] = s
    c[USED] += 1
    c[ARRIVALS] += 1


@njit(cache=True)
def _take_events(w, more, n_left):
    """Go to the next moment at which something happens and let it happen."""
    c = w.counters
    n_new = w.submit_ms.size
    if c[ENDED] >= n_left:
        return OVER
    if c[NEXT] == n_new and more:
        return REFILL
    next_ms = min(c[END], c[WAKE])
    if c[NEXT] < n_new:
        next_ms = min(next_ms, w.submit_ms[c[NEXT]])
    if next_ms >= NEVER_MS // 4:
        return STUCK
    now_ms = max(c[NOW], next_ms)
    until = c[NEXT]
    while until < n_new and w.submit_ms[until] <= now_ms:
        until += 1
    if until - c[NEXT] > c[FREE]:
        return GROW
    events = until - c[NEXT]
    if c[END] <= now_ms:
        due = np.empty(c[LIVE], np.int64)
        n_due = kept = 0
        for k in range(c[LIVE]):
            s = w.live[k]
            if w.finish_ms[s] > now_ms:
                w.live[kept] = s
                kept += 1
                continue
            at = n_due  # in the order in which their ends were foreseen
            while at > 0 and w.order[due[at - 1]] > w.order[s]:
                due[at] = due[at - 1]
                at -= 1
            due[at] = s
            n_due += 1
        c[LIVE] = kept
        c[END] = soonest(w.live, kept, w.finish_ms)
        for k in range(n_due):
            _finish(w, due[k], now_ms)
        events += n_due
    for k in range(c[NEXT], until):
        _arrive(w, k, now_ms)
    c[NEXT] = until
    c[NOW] = now_ms
    c[VERSION] += 1
    c[EVENTS] += events
    c[IDLE] = 0 if events else c[IDLE] + 1
    return STUCK if c[IDLE] > MAX_IDLE_WAKES else _GO


@njit(cache=True)
def _carry_out(w, slots, changed, first, flat, why, blocker, counting, restart_cost_ms):
    """Verify a plan and do what it says. Unless `_GO` or `_LOOK` is returned, nothing has happened."""
    c, ints, floats = w.counters, w.ints, w.floats
    phase = ints[_PHASE]
    if first_silent(why, slots, phase, changed, first) >= 0:
        return DECIDE
    if changed.size == 0:
        note_reasons(slots, why, blocker, ints[_REASON], ints[_BLOCKER])
        c[DECISIONS] += 1
        c[VERSION] += 1
        return _GO
    if c[LATE] > 0:  # launches wait for their answer: this goes by commands
        return DECIDE
    given = slots[changed]
    device_milli, whole = w.device_milli.copy(), w.whole.copy()
    cpu_free, mem_free = w.cpu_free.copy(), w.mem_free.copy()
    verdict = check_changes(
        given, first, flat, w.gangs, phase, ints[_WORKERS_MIN], ints[_WORKERS_MAX], ints[_SERVERS_MIN],
        ints[_SERVERS_MAX], ints[_WORKERS_REF], ints[_SERVERS_REF], ints[_DEVICES_EACH], ints[_SHARE_MILLI],
        ints[_PREEMPTIBLE], ints[_WORKER_CPU], ints[_WORKER_MEM], ints[_SERVER_CPU], ints[_SERVER_MEM], w.allowed,
        w.type_of, w.up, w.gpus, counting, device_milli, whole, cpu_free, mem_free,
    )  # fmt: skip
    if verdict < AT_ONCE:
        return DECIDE
    stops, launches, early, width = order_commands(
        given, first, flat, phase, ints[_WORKER_CPU], ints[_WORKER_MEM], ints[_SERVER_CPU], ints[_SERVER_MEM],
        w.device_milli, w.whole, w.cpu_free, w.mem_free,
    )  # fmt: skip
    if width > w.gangs.shape[1]:
        return WIDEN
    answered = early if verdict == AT_ONCE_THEN_LOOK else launches.size
    n_live, order, lost_gpu_s, end_ms, saved, work_at_start, productive_ms = exchange_gangs(
        c[NOW], restart_cost_ms, given[stops], given[launches], first[launches], flat, ints[_GENERATION],
        w.generation, w.work, w.total, w.rate, w.as_of_ms, w.finish_ms, w.order, w.live, c[LIVE], w.speed, c[ORDER],
        w.lost_gpu_s[0],
    )  # fmt: skip
    if n_live == REFUSED:
        return DECIDE
    c[LIVE], c[ORDER], c[END] = n_live, order, end_ms
    w.lost_gpu_s[0] = lost_gpu_s
    note_reasons(slots, why, blocker, ints[_REASON], ints[_BLOCKER])
    write_turnover(
        given, first, flat, w.gangs, launches, answered, stops, saved, work_at_start, productive_ms, c[NOW],
        phase, ints[_GENERATION], ints[_ATTEMPTS], ints[_PREEMPTIONS], ints[_HELD_TYPE], ints[_WORKERS],
        ints[_SERVERS], ints[_NODES_HELD], ints[_HELD_GPU_MILLI], ints[_AS_OF_MS], ints[_PRODUCTIVE_MS],
        ints[_FIRST_START_MS], ints[_WAITING_SINCE_MS], ints[_REASON], ints[_AFTER_STOP], floats[_WORK_DONE],
        floats[_WORK_SAVED], floats[_RATE], floats[_SERVICE], floats[_RUN_S], floats[_COST], w.prices, w.throughput,
        w.spread, device_milli, whole, cpu_free, mem_free, w.device_milli, w.whole, w.cpu_free, w.mem_free,
    )  # fmt: skip
    c[DECISIONS] += 1
    c[SEQ] += stops.size
    for k in range(given.size):
        w.touched[given[k]] = 1
    for k in range(launches.size):
        c[SEQ] += 1
        w.seq_of[given[launches[k]]] = c[SEQ]
    if verdict == AT_ONCE_THEN_LOOK:
        for k in range(early, launches.size):
            w.late[c[LATE]] = given[launches[k]]
            c[LATE] += 1
        c[VERSION] += 1
        return _LOOK
    c[VERSION] += 2 + int(early < launches.size)
    return _GO


@njit(cache=True)
def _answer_late(w):
    """The answers to launches that had to wait for stops, as `reports.started` takes them."""
    c, ints, floats = w.counters, w.ints, w.floats
    for k in range(c[LATE]):
        s = w.late[k]
        floats[_WORK_DONE, s] = floats[_WORK_SAVED, s] = w.work[s]
        ints[_PRODUCTIVE_MS, s] = w.as_of_ms[s]
        ints[_AS_OF_MS, s] = c[NOW]
        if ints[_FIRST_START_MS, s] < 0:
            ints[_FIRST_START_MS, s] = c[NOW]
        ints[_PHASE, s] = RUNNING
        hosts = 0
        for part in range(w.gangs[s, 0]):
            hosts += int(w.gangs[s, HEAD + PART * part + 1] > 0)
        kind = w.gangs[s, KIND]
        floats[_RATE, s] = w.spread[s, kind] if hosts > 1 else w.throughput[s, kind]
    if c[LATE] > 0:
        c[VERSION] += 1
        c[EVENTS] += c[LATE]
        c[LATE] = 0


@njit(cache=True)
def _left_to_engine(w, code):
    """The decision is not made here: the engine's step counts itself."""
    w.counters[VERSION] -= 1
    return code


@njit(cache=True)
def queue_passage(
    by_remaining, preemptive, strict, default, strategy, counting, restart_cost_ms, more, n_left, max_decisions,
    counters, lost_gpu_s, ints, floats, allowed, throughput, spread, gangs, rows, free, prices, seq_of, index_of,
    touched, device_milli, whole, cpu_free, mem_free, type_of, up, gpus, rack_of, work, total, rate, as_of_ms,
    finish_ms, order, generation, live, speed, submit_ms, new_ints, new_floats, new_throughput, new_spread,
    new_allowed, new_speed, ended_ints, ended_floats, late,
):  # fmt: skip
    """Follow a `QueueRule` from event to event; says why it ends."""
    w = World(
        counters, lost_gpu_s, ints, floats, allowed, throughput, spread, gangs, rows, free, prices, seq_of, index_of,
        touched, device_milli, whole, cpu_free, mem_free, type_of, up, gpus, rack_of, work, total, rate, as_of_ms,
        finish_ms, order, generation, live, speed, submit_ms, new_ints, new_floats, new_throughput, new_spread,
        new_allowed, new_speed, ended_ints, ended_floats, late,
    )  # fmt: skip
    while counters[DECISIONS] < max_decisions:
        code = _take_events(w, more, n_left)
        if code != _GO:
            return code
        while counters[USED] > 0:
            slots = rows[: counters[USED]]
            made, changed, first, flat, why, blocker = queue_pass(
                slots, counters[NOW], by_remaining, preemptive, strict, default, strategy, ints, floats, allowed,
                throughput, gangs, type_of, up, rack_of, device_milli, whole, cpu_free, mem_free,
            )  # fmt: skip
            if not made:
                return _left_to_engine(w, DECIDE)
            code = _carry_out(w, slots, changed, first, flat, why, blocker, counting, restart_cost_ms)
            if code == _GO:
                break
            if code != _LOOK:
                return _left_to_engine(w, code)
            counters[VERSION] += 1
        _answer_late(w)
    return PAUSED


@njit(cache=True)
def round_passage(
    renewed, original, time_dependent, queueing, type_order, patience_s, round_ms, default, next_round, n_computed,
    nodes_then, reset_ms, last_reset_ms, round_end_ms, worker_s, share, received_s, deficit_s, known, strategy,
    counting, restart_cost_ms, more, n_left, max_decisions,
    counters, lost_gpu_s, ints, floats, allowed, throughput, spread, gangs, rows, free, prices, seq_of, index_of,
    touched, device_milli, whole, cpu_free, mem_free, type_of, up, gpus, rack_of, work, total, rate, as_of_ms,
    finish_ms, order, generation, live, speed, submit_ms, new_ints, new_floats, new_throughput, new_spread,
    new_allowed, new_speed, ended_ints, ended_floats, late,
):  # fmt: skip
    """Follow a `RoundRule` from event to event, until shares are due to be computed anew; `renewed`: that is why it
    ended the last time, and they are. What the mechanism remembers by job is by slot here. Returns why it ends and
    when the present round does."""
    w = World(
        counters, lost_gpu_s, ints, floats, allowed, throughput, spread, gangs, rows, free, prices, seq_of, index_of,
        touched, device_milli, whole, cpu_free, mem_free, type_of, up, gpus, rack_of, work, total, rate, as_of_ms,
        finish_ms, order, generation, live, speed, submit_ms, new_ints, new_floats, new_throughput, new_spread,
        new_allowed, new_speed, ended_ints, ended_floats, late,
    )  # fmt: skip
    while counters[DECISIONS] < max_decisions:
        before = counters[ARRIVALS]
        if renewed:
            renewed = False
            counters[VERSION] += 1
        else:
            code = _take_events(w, more, n_left)
            if code != _GO:
                return code, round_end_ms
        for k in range(counters[ARRIVALS] - before):  # a new job remembers nothing
            s = rows[counters[USED] - 1 - k]
            share[s], received_s[s], deficit_s[s] = 0.0, 0.0, 0.0
            known[s] = 0.0
        wake_ms = counters[WAKE]
        while counters[USED] > 0:
            slots = rows[: counters[USED]]
            mine, mine_known, mine_worker_s = received_s[slots], known[slots], worker_s.copy()
            settled, changed, first, flat, why, wake_ms, end_ms = round_pass(
                slots, counters[NOW], original, time_dependent, queueing, type_order, patience_s, round_ms, default,
                next_round, n_computed, nodes_then, reset_ms, last_reset_ms, round_end_ms, mine_worker_s,
                share[slots], mine, deficit_s[slots], mine_known, strategy, counting, ints, floats, allowed,
                throughput, spread, gangs, type_of, up, gpus, rack_of, device_milli, whole, cpu_free, mem_free,
            )  # fmt: skip
            if not settled:
                return _left_to_engine(w, SOLVE), round_end_ms
            code = _carry_out(w, slots, changed, first, flat, why, np.empty(0, np.int64), counting, restart_cost_ms)
            if code != _GO and code != _LOOK:
                return _left_to_engine(w, code), round_end_ms
            for row in range(slots.size):
                received_s[slots[row]] = mine[row]
                known[slots[row]] = mine_known[row]
            worker_s[:] = mine_worker_s
            round_end_ms = end_ms
            counters[WAKE] = wake_ms if wake_ms > counters[NOW] else NEVER_MS
            if code == _GO:
                break
            counters[VERSION] += 1
        if counters[USED] == 0:
            counters[WAKE] = NEVER_MS
        _answer_late(w)
    return PAUSED, round_end_ms

"""Decisions that are a rule over the job columns, as compiled passes.

A policy that is nothing but such a rule says so (`rule`), and a loop that needs no Python between two decisions may
follow it (`trainmaster.sim.passage`). The policy's `decide` says the same by a draft; a test runs both and compares.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from trainmaster.model.gangs import KIND
from trainmaster.model.kernels import choose_preemptively, close_reasons, ready_rows, remaining_seconds
from trainmaster.model.ledger import give_slots, take_fitting_slots
from trainmaster.model.placement import place_in_order
from trainmaster.model.reasons import Why
from trainmaster.model.table import FLOAT_COLUMNS, INT_COLUMNS

_BACKOFF, _BEHIND, _SHAPE = int(Why.BACKOFF), int(Why.BEHIND), int(Why.SHAPE)
(
    _ARRIVAL, _PHASE, _PREEMPTIBLE, _NOT_BEFORE_MS, _AS_OF_MS, _PRODUCTIVE_MS, _HELD_TYPE, _WORKERS, _HELD_GPU_MILLI,
    _ASK_GPU_MILLI, _WORKERS_ASK, _SERVERS_ASK, _DEVICES_EACH, _SHARE_MILLI, _WORKER_CPU, _WORKER_MEM, _SERVER_CPU,
    _SERVER_MEM, _WORKER_GPU_MILLI,
) = (
    INT_COLUMNS.index(name)
    for name in (
        "arrival", "phase", "preemptible", "not_before_ms", "as_of_ms", "productive_ms", "held_type", "workers",
        "held_gpu_milli", "ask_gpu_milli", "workers_ask", "servers_ask", "devices_each", "share_milli",
        "worker_cpu_milli", "worker_mem_mib", "server_cpu_milli", "server_mem_mib", "worker_gpu_milli",
    )
)  # fmt: skip
_WORK_DONE, _WORK_TOTAL, _RATE = (FLOAT_COLUMNS.index(name) for name in ("work_done", "work_total", "rate"))


@dataclass(frozen=True)
class QueueRule:
    """Down a list of jobs, what fits runs. Nothing is remembered and nobody asks to be woken."""

    by_remaining_time: bool
    """In place of the order of arrival."""
    preemptive: bool
    """Jobs that run are in the list too."""
    strict: bool
    """Who does not fit holds up all behind it."""
    default: Why
    """Why a job waits of which nothing else is known."""


@njit(cache=True)
def place_list(list_slots, wanted_types, strict, strategy, ints, allowed, throughput, type_of, up, rack_of,
               device_milli, whole, cpu_free, mem_free):  # fmt: skip
    """`place_in_order` at the size that the jobs ask for."""
    return place_in_order(
        list_slots, wanted_types, strict, strategy, ints[_WORKERS_ASK], ints[_SERVERS_ASK], ints[_DEVICES_EACH],
        ints[_SHARE_MILLI], ints[_WORKER_CPU], ints[_WORKER_MEM], ints[_SERVER_CPU], ints[_SERVER_MEM],
        ints[_WORKER_GPU_MILLI], allowed, throughput, type_of, up, rack_of, device_milli, whole, cpu_free, mem_free,
    )  # fmt: skip


@njit(cache=True)
def in_plan_order(stopped, given, first):
    """Rows of a plan's changes and where their gangs begin (-1: stop), as `Changes.in_order` lists them."""
    order = np.argsort(given, kind="mergesort")
    rows = np.empty(stopped.size + given.size, np.int64)
    begins = np.empty(rows.size, np.int64)
    rows[: stopped.size] = np.sort(stopped)
    begins[: stopped.size] = -1
    for k in range(given.size):
        rows[stopped.size + k] = given[order[k]]
        begins[stopped.size + k] = first[order[k]]
    return rows, begins


@njit(cache=True)
def queue_pass(
    slots, now_ms, by_remaining, preemptive, strict, default, strategy, ints, floats, allowed, throughput, gangs,
    type_of, up, rack_of, device_milli, whole, cpu_free, mem_free,
):  # fmt: skip
    """The plan of a `QueueRule`: (whether it was made, rows that it changes, where their gangs begin or -1, the gangs,
    why each row waits, for whom or an empty array). It is not made when jobs shall be stopped for others that do not
    fit where they were counted: who may stay then is for `Draft.run_in_order` to say."""
    phase = ints[_PHASE]
    rows = ready_rows(slots, phase, ints[_NOT_BEFORE_MS], ints[_ARRIVAL], ints[_PREEMPTIBLE], now_ms, preemptive)
    if by_remaining:
        left_s = remaining_seconds(
            slots, phase, floats[_WORK_DONE], floats[_WORK_TOTAL], floats[_RATE], ints[_AS_OF_MS],
            ints[_PRODUCTIVE_MS], now_ms, allowed, throughput,
        )  # fmt: skip
        rows = rows[np.argsort(left_s[rows], kind="mergesort")]
    why = np.zeros(slots.size, np.int8)
    blocker = np.empty(0, np.int64)
    stopped = np.empty(0, np.int64)
    any_type = np.empty(0, np.int64)
    start, kinds = rows, any_type
    if preemptive:
        start, kinds, stopped = choose_preemptively(
            rows, slots, ints[_HELD_TYPE], ints[_WORKERS], ints[_HELD_GPU_MILLI], ints[_ASK_GPU_MILLI], allowed,
            throughput, type_of, up, device_milli,
        )  # fmt: skip
    device_milli, whole, cpu_free, mem_free = device_milli.copy(), whole.copy(), cpu_free.copy(), mem_free.copy()
    if stopped.size:
        give_slots(
            slots[stopped], gangs, ints[_WORKER_CPU], ints[_WORKER_MEM], ints[_SERVER_CPU], ints[_SERVER_MEM],
            device_milli, whole, cpu_free, mem_free,
        )  # fmt: skip
    placed, first, _, failure, flat = place_list(
        slots[start], any_type, strict, strategy, ints, allowed, throughput, type_of, up, rack_of, device_milli,
        whole, cpu_free, mem_free,
    )  # fmt: skip
    given = start[placed]
    if stopped.size:
        as_counted = given.size == start.size
        for k in range(given.size):
            as_counted = as_counted and flat[first[k] + KIND] == kinds[placed[k]]
        if not as_counted:
            return False, any_type, any_type, flat, why, blocker
        kept = take_fitting_slots(
            slots[stopped], gangs, ints[_WORKER_CPU], ints[_WORKER_MEM], ints[_SERVER_CPU], ints[_SERVER_MEM],
            device_milli, whole, cpu_free, mem_free,
        )  # fmt: skip
        stopped = stopped[~kept]
    if failure >= 0 and preemptive:
        why[start] = _SHAPE
        why[given] = 0
    elif failure >= 0 and strict:
        blocker = np.full(slots.size, -1, np.int64)
        for k in range(failure + 1, rows.size):
            why[rows[k]] = _BEHIND
            blocker[rows[k]] = rows[failure]
    changed, begins = in_plan_order(stopped, given, first)
    close_reasons(why, slots, phase, ints[_NOT_BEFORE_MS], now_ms, changed, begins, default, _BACKOFF)
    return True, changed, begins, flat, why, blocker

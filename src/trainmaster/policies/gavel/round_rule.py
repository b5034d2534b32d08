"""A round of the mechanism as one compiled pass, for as long as the shares hold (see `trainmaster.model.rules`).

The same steps as in `policy`, for rounds in which nobody shares devices: who is new, who runs on what, where, and what
time each will have had. When shares are due to be computed anew it says so and does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import njit

from trainmaster.model.kernels import close_reasons
from trainmaster.model.ledger import give_slots
from trainmaster.model.reasons import Why
from trainmaster.model.rules import in_plan_order, place_list
from trainmaster.model.table import FLOAT_COLUMNS, INT_COLUMNS
from trainmaster.model.units import NEVER_MS
from trainmaster.policies.gavel.round_pass import choose, give_time, survey

MS_PER_S = 1000.0
PUBLISHED_ORDER = ("v100", "p100", "k80")
_BACKOFF = int(Why.BACKOFF)
(
    _ARRIVAL, _PHASE, _PREEMPTIBLE, _NOT_BEFORE_MS, _AS_OF_MS, _PRODUCTIVE_MS, _HELD_TYPE, _WORKERS, _HELD_GPU_MILLI,
    _ASK_GPU_MILLI, _WAITING_SINCE_MS, _WORKER_CPU, _WORKER_MEM, _SERVER_CPU, _SERVER_MEM, _WORKER_GPU_MILLI,
) = (
    INT_COLUMNS.index(name)
    for name in (
        "arrival", "phase", "preemptible", "not_before_ms", "as_of_ms", "productive_ms", "held_type", "workers",
        "held_gpu_milli", "ask_gpu_milli", "waiting_since_ms", "worker_cpu_milli", "worker_mem_mib",
        "server_cpu_milli", "server_mem_mib", "worker_gpu_milli",
    )
)  # fmt: skip
_WORK_DONE, _WORK_TOTAL, _RATE = (FLOAT_COLUMNS.index(name) for name in ("work_done", "work_total", "rate"))


@dataclass(frozen=True)
class RoundRule:
    """Rounds by shares that the memo holds; the options of the mechanism."""

    original: bool
    time_dependent: bool
    """Shares are computed anew with time, even if the jobs stay the same."""
    queueing: int
    """How entries queue (see `round_pass`)."""
    patience_s: float
    reset_ms: int
    default_round_ms: int


def type_order(types: Sequence[str]) -> npt.NDArray[np.int64]:
    """Where each type has a queue of its own: the order of the original, then by name."""
    rank = {name: k for k, name in enumerate(PUBLISHED_ORDER)}
    return np.array(sorted(range(len(types)), key=lambda j: (rank.get(types[j].lower(), len(rank)), types[j])))


@njit(cache=True)
def shares_are_due(
    original, time_dependent, stale, to_run, now_ms, last_reset_ms, reset_ms
):  # fmt: skip
    """Shares are computed anew when jobs, nodes or speeds changed, at least `reset_ms` apart; sooner when the present
    shares leave nothing to run, and (unless `original`) for policies whose shares change with time."""
    if not original and time_dependent:
        return stale or now_ms - last_reset_ms >= reset_ms
    return stale and (now_ms - last_reset_ms >= reset_ms or last_reset_ms == 0 or not to_run)


@njit(cache=True)
def round_pass(
    slots, now_ms, original, time_dependent, queueing, type_order, patience_s, round_ms, default, next_round,
    computed_jobs, nodes_then, reset_ms, last_reset_ms, round_end_ms, worker_s, share, received_s, deficit_s, known,
    strategy, counting, ints, floats, allowed, throughput, spread, gangs, type_of, up, gpus, rack_of, device_milli,
    whole, cpu_free, mem_free,
):  # fmt: skip
    """One decision: (whether it was made, rows that it changes, where their gangs begin or -1, the gangs, why each row
    waits, when to wake, when the round ends). Writes into `worker_s`, `received_s` and `known`, the last two by row."""
    phase = ints[_PHASE]
    none = np.empty(0, np.int64)
    why = np.zeros(slots.size, np.int8)
    holding, halved, n_new, present, to_run = survey(
        slots, share, known, now_ms, phase, ints[_WORKERS], ints[_HELD_GPU_MILLI], ints[_WORKER_GPU_MILLI],
        ints[_ASK_GPU_MILLI], ints[_PREEMPTIBLE], ints[_NOT_BEFORE_MS],
    )  # fmt: skip
    if halved:
        return False, none, none, none, why, round_end_ms, round_end_ms
    inside = holding and now_ms < round_end_ms
    if inside and original:
        close_reasons(why, slots, phase, ints[_NOT_BEFORE_MS], now_ms, none, none, next_round, _BACKOFF)
        return True, none, none, none, why, round_end_ms, round_end_ms
    nodes_up = 0
    for node in range(up.size):
        nodes_up += int(up[node])
    stale = present < slots.size or present != computed_jobs or nodes_up != nodes_then
    if not inside:
        if shares_are_due(original, time_dependent, stale, to_run, now_ms, last_reset_ms, reset_ms):
            return False, none, none, none, why, round_end_ms, round_end_ms
        round_end_ms = now_ms + round_ms
    if n_new:
        half_s = round_ms / MS_PER_S / 2.0
        for row in range(slots.size):
            if known[row] == 0.0:
                received_s[row] = half_s
                known[row] = 0.5
        worker_s += n_new * half_s
    left_s = (round_end_ms - now_ms) / MS_PER_S
    chosen, rows, stop, start, kinds, speeds, by_arrival = choose(
        slots, share, received_s, deficit_s, known, worker_s, now_ms, inside, queueing, type_order, patience_s,
        counting, ints[_ARRIVAL], phase, ints[_PREEMPTIBLE], ints[_NOT_BEFORE_MS], ints[_ASK_GPU_MILLI], ints[_WORKERS],
        ints[_HELD_TYPE], ints[_HELD_GPU_MILLI], ints[_WAITING_SINCE_MS], allowed, throughput, spread, type_of, up,
        gpus, device_milli,
    )  # fmt: skip
    changed, begins, flat = none, none, none
    if stop.size or start.size:
        device_milli, whole, cpu_free, mem_free = device_milli.copy(), whole.copy(), cpu_free.copy(), mem_free.copy()
        give_slots(
            slots[stop], gangs, ints[_WORKER_CPU], ints[_WORKER_MEM], ints[_SERVER_CPU], ints[_SERVER_MEM],
            device_milli, whole, cpu_free, mem_free,
        )  # fmt: skip
        placed, first, shortage, _, flat = place_list(
            slots[start], kinds, False, strategy, ints, allowed, throughput, type_of, up, rack_of, device_milli,
            whole, cpu_free, mem_free,
        )  # fmt: skip
        for k in range(start.size):
            why[start[k]] = shortage[k]
            if shortage[k] > 0:
                chosen[start[k]] = -1
        leaves = np.zeros(slots.size, np.bool_)
        leaves[stop] = True
        leaves[start[placed]] = False
        changed, begins = in_plan_order(np.flatnonzero(leaves), start[placed], first)
    longest_s, waiting, could_move = give_time(
        slots, chosen, rows, speeds, by_arrival, share, received_s, worker_s, left_s, now_ms, phase, ints[_WORKERS],
        ints[_HELD_TYPE], ints[_AS_OF_MS], ints[_PRODUCTIVE_MS], floats[_WORK_DONE], floats[_WORK_TOTAL], floats[_RATE],
    )  # fmt: skip
    if original and longest_s >= 0.0:
        round_end_ms = now_ms + np.int64(np.ceil(longest_s * MS_PER_S)) + 1
    wake_ms = round_end_ms
    if not original and not (waiting or could_move):
        wake_ms = np.int64(NEVER_MS)
    close_reasons(why, slots, phase, ints[_NOT_BEFORE_MS], now_ms, changed, begins, default, _BACKOFF)
    return True, changed, begins, flat, why, wake_ms, round_end_ms

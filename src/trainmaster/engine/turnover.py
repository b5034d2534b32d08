"""A plan carried out at once, by columns, with a backend that answers within the call.

With a backend that stops and starts without delay, a plan becomes stops, their answers, launches and their answers,
all at the same moment; three steps of the engine and an event for each. Where nothing can come in between
(`Verified.at_once`, no command unanswered, nothing reserved) the outcome is known beforehand: here it is written in
one pass. Where the policy is asked again in between (`Verified.look_again`), launches that had to wait for a stop stay
unanswered until then. Everything else takes the way of commands and events, and a test runs both and compares.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from trainmaster.engine.ports import Immediate
from trainmaster.engine.state import State
from trainmaster.engine.verify import Verified
from trainmaster.model.command import Launch
from trainmaster.model.gangs import HEAD, KIND, PART, SHARE, add_gang, gang_fits, gang_length, gang_totals
from trainmaster.model.reasons import Why

PENDING, LAUNCHING, RUNNING = 0, 2, 3  # phases as the kernels know them (checked against `Phase` by a test)
MS_PER_S = 1000.0
_CAPACITY = int(Why.CAPACITY)


def is_quiet(state: State) -> bool:
    """Whether every live incarnation runs, as planned, and nobody waits for an answer, for devices or for a quota."""
    return not (state.outstanding or state.reserved or state.doubts or state.changed or state.quotas)


def turn_over(state: State, verified: Verified, backend: Immediate) -> bool:
    """Carry a plan out if it can be done at once. False: nothing has happened."""
    columns, ints, floats = state.columns, state.columns.ints, state.columns.floats
    slots, first, flat, ledger = verified.slots, verified.first, verified.flat, verified.ledger
    stops, launches, early, width = order_commands(
        slots, first, flat, ints["phase"], ints["worker_cpu_milli"], ints["worker_mem_mib"],
        ints["server_cpu_milli"], ints["server_mem_mib"], *state.physical.arrays,
    )  # fmt: skip
    first_seq = state.seq + len(stops) + 1
    last_seq = first_seq + len(launches) - 1
    answered = early if verified.look_again else len(launches)
    answers = backend.exchange(
        state.now_ms, last_seq, columns.specs, slots[stops], slots[launches], first[launches], flat,
        ints["generation"], answered,
    )  # fmt: skip
    if answers is None:
        return False
    gangs = columns.allocations.rows(width)
    write_turnover(
        slots, first, flat, gangs, launches, answered, stops, *answers, state.now_ms,
        ints["phase"], ints["generation"], ints["attempts"], ints["preemptions"], ints["held_type"], ints["workers"],
        ints["servers"], ints["nodes_held"], ints["held_gpu_milli"], ints["as_of_ms"], ints["productive_ms"],
        ints["first_start_ms"], ints["waiting_since_ms"], ints["reason"], ints["after_stop"], floats["work_done"],
        floats["work_saved"], floats["rate"], floats["service_gpu_s"], floats["run_s"], floats["cost"],
        columns.prices, columns.throughput, columns.throughput_spread, *ledger.arrays, *state.physical.arrays,
    )  # fmt: skip
    changed = slots.tolist()
    columns.allocations.written(changed)
    launched = slots[launches].tolist()
    if len(stops):
        state.held.forget(changed)
    state.held.as_planned(launched)
    state.last_seq.update(zip(launched, range(first_seq, last_seq + 1), strict=True))
    if len(stops):
        for slot in slots[first < 0].tolist():
            del state.last_seq[slot]
    state.seq = last_seq
    state.planned = ledger
    if verified.look_again:
        state.look_again = True
        for slot, seq in zip(launched[early:], range(first_seq + early, last_seq + 1), strict=True):
            spec, allocation = columns.spec(slot), columns.allocations[slot]
            assert allocation is not None
            command = Launch(spec.id, int(ints["generation"][slot]), seq, allocation, spec)
            state.outstanding[slot] = (command, state.now_ms)
    else:
        # As many steps as the way of events takes: one for the answers, one for launches that had to wait for stops.
        columns.version += 1 + int(early < len(launches))
    return True


@njit(cache=True)
def order_commands(
    slots, first, flat, phase, cpu_each, mem_each, server_cpu, server_mem, device_milli, whole, cpu_free, mem_free
):  # fmt: skip
    """Positions of the stops and of the launches, in the order of their commands, and how many launches need not
    wait for a stop: those come first, then the other new jobs, then those that move. Last, the length of the longest
    gang. The ledger is the physical one."""
    longest = 0
    for k in range(slots.size):
        if first[k] >= 0:
            longest = max(longest, gang_length(flat, first[k]))
    stops, launches = np.empty(slots.size, np.int64), np.empty(slots.size, np.int64)
    device_milli, whole = device_milli.copy(), whole.copy()
    cpu_free, mem_free = cpu_free.copy(), mem_free.copy()
    waiting = np.empty(slots.size, np.int64)
    n_stops = n_launches = n_waiting = 0
    for k in range(slots.size):
        if phase[slots[k]] == RUNNING:
            stops[n_stops] = k
            n_stops += 1
    for k in range(slots.size):
        s = slots[k]
        if phase[s] != PENDING:
            continue
        if n_stops == 0 or gang_fits(
            flat, first[k], cpu_each[s], mem_each[s], server_cpu[s], server_mem[s], device_milli, cpu_free, mem_free
        ):  # fmt: skip
            if n_stops > 0:
                add_gang(
                    flat, first[k], -1, cpu_each[s], mem_each[s], server_cpu[s], server_mem[s], device_milli, whole,
                    cpu_free, mem_free,
                )  # fmt: skip
            launches[n_launches] = k
            n_launches += 1
        else:
            waiting[n_waiting] = k
            n_waiting += 1
    early = n_launches
    for i in range(n_waiting):
        launches[n_launches] = waiting[i]
        n_launches += 1
    for i in range(n_stops):
        if first[stops[i]] >= 0:
            launches[n_launches] = stops[i]
            n_launches += 1
    return stops[:n_stops], launches[:n_launches], early, longest


@njit(cache=True)
def write_turnover(
    slots, first, flat, gangs, launches, answered, stops, saved, work_at_start, productive, now_ms,
    phase, generation, attempts, preemptions, held_type, workers, servers, nodes_held, held_gpu_milli, as_of_ms,
    productive_ms, first_start_ms, waiting_since_ms, reason, after_stop, work_done, work_saved, rate, service_gpu_s,
    run_s, cost, prices, throughput, throughput_spread, device_milli, whole, cpu_free, mem_free, physical_device_milli,
    physical_whole, physical_cpu_free, physical_mem_free,
):  # fmt: skip
    """Write what stops, their answers, launches and the answers to the first `answered` of them leave behind. All
    that is planned runs, so what is physically free is what the plan leaves free."""
    physical_device_milli[:] = device_milli
    physical_whole[:] = whole
    physical_cpu_free[:] = cpu_free
    physical_mem_free[:] = mem_free
    for i in range(stops.size):
        s = slots[stops[i]]
        if as_of_ms[s] != now_ms:  # as `JobColumns.settle`; its work is told by the backend
            held_s = (now_ms - as_of_ms[s]) / MS_PER_S
            service = held_s * held_gpu_milli[s] / 1000.0
            service_gpu_s[s] += service
            cost[s] += service / 3600.0 * prices[held_type[s]]
            run_s[s] += held_s
        as_of_ms[s] = now_ms
        preemptions[s] += 1
        after_stop[s] = PENDING
        work_done[s] = work_saved[s] = max(saved[i], 0.0)
        if first[stops[i]] < 0:
            phase[s] = PENDING
            waiting_since_ms[s] = now_ms
            reason[s] = _CAPACITY
            gangs[s, 0] = 0
            held_type[s] = -1
            workers[s] = servers[s] = nodes_held[s] = held_gpu_milli[s] = 0
    for i in range(launches.size):
        s, at = slots[launches[i]], first[launches[i]]
        length = gang_length(flat, at)
        for k in range(length):
            gangs[s, k] = flat[at + k]
        n_workers, n_servers, devices = gang_totals(flat, at)
        kind = flat[at + KIND]
        held_type[s] = kind
        workers[s], servers[s], nodes_held[s] = n_workers, n_servers, flat[at]
        held_gpu_milli[s] = devices * flat[at + SHARE]
        generation[s] += 1
        attempts[s] += 1
        as_of_ms[s] = now_ms
        if i >= answered:
            phase[s] = LAUNCHING
            continue
        if first_start_ms[s] < 0:
            first_start_ms[s] = now_ms
        phase[s] = RUNNING
        work_done[s] = work_saved[s] = work_at_start[i]
        productive_ms[s] = productive[i]
        hosts = 0
        for part in range(flat[at]):
            hosts += int(flat[at + HEAD + PART * part + 1] > 0)
        rate[s] = throughput_spread[s, kind] if hosts > 1 else throughput[s, kind]

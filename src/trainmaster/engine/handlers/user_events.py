"""What users want: submit, cancel, pause, resume, another range of sizes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from trainmaster.core.codes import USER_CANCELLED, USER_PAUSED, USER_RESIZED
from trainmaster.core.engine.engine_core import drop_allocation, move, resize, stop, unreserve, wanted
from trainmaster.core.state.job_arrays import log_phase
from trainmaster.engine import learned_speeds
from trainmaster.engine.deciding import admission_gate, elastic_fill
from trainmaster.engine.lifecycle import LIVE, Trigger
from trainmaster.engine.state import State
from trainmaster.model import event as ev
from trainmaster.model.allocation import fewer_workers
from trainmaster.model.capacity.packed_allocation import packed_list
from trainmaster.model.job import NO_DEMAND, SERVER_DEMAND, JobId, PhaseCode

if TYPE_CHECKING:
    from trainmaster.engine.engine import Engine


def submitted(state: State, event: ev.JobSubmitted) -> None:
    """Enter a job. An id that was ever accepted is not accepted again: a repeated request does nothing."""
    spec = event.spec
    if spec.id in state.known:
        return
    state.known.add(spec.id)
    here, spread = state.estimator.profile(spec, state.cluster.types)
    job_index = state.columns.add(spec, state.now_ms, here, spread)
    learned_speeds.believe(state, job_index)
    state.columns.ints["reasoned"][job_index] = state.decisions
    state.n_waiting += 1
    state.changed = True
    if spec.after or state.quotas:
        admission_gate.arrived(state, job_index, spec)


def cancelled(state: State, event: ev.JobCancelled) -> None:
    _end_by_user(state, event.job_id, PhaseCode.CANCELLED, Trigger.CANCEL)


def paused(state: State, event: ev.JobPaused) -> None:
    _end_by_user(state, event.job_id, PhaseCode.PAUSED, Trigger.PAUSE)


def _end_by_user(state: State, job_id: JobId, after: int, trigger: Trigger) -> None:
    job_index = state.columns.job_index_of.get(job_id)
    if job_index is None:
        return
    phase = int(state.columns.ints["phase"][job_index])
    if phase == after or (phase in LIVE and wanted(state, job_index) == PhaseCode.CANCELLED):
        return  # already so, or already being cancelled, which nothing takes back
    state.changed = state.gate_changed = True
    drop_allocation(state, job_index)
    if phase in LIVE:
        stop(state, job_index, after, USER_CANCELLED if after == PhaseCode.CANCELLED else USER_PAUSED)
        return
    if phase == PhaseCode.RESERVED:
        unreserve(state, job_index)
    move(state, job_index, trigger)


def resumed(state: State, event: ev.JobResumed) -> None:
    job_index = state.columns.job_index_of.get(event.job_id)
    if job_index is None:
        return
    ints = state.columns.ints
    phase = int(ints["phase"][job_index])
    if phase == PhaseCode.PAUSED:
        move(state, job_index, Trigger.RESUME)
        state.changed = state.gate_changed = True
    elif phase in LIVE and wanted(state, job_index) == PhaseCode.PAUSED:
        ints["after_stop"][job_index] = PhaseCode.PENDING


def size_range_changed(state: Engine, event: ev.JobRangeChanged) -> None:
    """Take the new range. A running elastic gang shrinks in place, and grows where there is room; any other gang
    that is outside the range gives its devices back and waits for new ones."""
    job_index = state.columns.job_index_of.get(event.job_id)
    if job_index is None:
        return
    low, high = event.workers_min, event.workers_max
    if not 1 <= low <= high:
        state.notes.append(f"range {low}..{high} for job {event.job_id} refused: expected 1 <= min <= max")
        return
    columns, ints = state.columns, state.columns.ints
    if event.servers is not None:
        _set_servers(state, job_index, *event.servers)
    old = columns.spec(job_index)
    was_elastic = old.elastic or old.workers_ref != old.workers_max  # or it was, before its user changed its size
    spec = columns.specs[job_index] = replace(columns.spec(job_index), workers_min=low, workers_max=high)
    if spec.entity in state.quotas:
        state.caps.setdefault(
            job_index, int(ints["workers_max"][job_index])
        )  # growth waits for the review of the quota
    admission_gate.apply_cap(state, job_index)
    learned_speeds.believe(state, job_index)  # of the sizes that it may have now
    state.changed = state.gate_changed = True
    allocation = columns.allocations[job_index]
    if allocation is None or low <= allocation.workers <= ints["workers_max"][job_index]:
        return
    phase = int(ints["phase"][job_index])
    most = int(ints["workers_max"][job_index])
    if phase == PhaseCode.RUNNING and (was_elastic or spec.elastic):
        other = (
            fewer_workers(allocation, most, spec.worker.devices)
            if allocation.workers > most
            else elastic_fill.grown(state.snapshot(), job_index, low)
        )
        if other is not None:
            state.planned.give(allocation, spec.worker, spec.server)
            state.planned.take(other, spec.worker, spec.server)
            resize(state, job_index, packed_list(other), 0)
            return
    drop_allocation(state, job_index)
    if phase == PhaseCode.RESERVED:
        unreserve(state, job_index)
        move(state, job_index, Trigger.UNRESERVE)
    elif phase in LIVE and wanted(state, job_index) in (PhaseCode.PENDING, PhaseCode.RESERVED):
        if phase != PhaseCode.STOPPING:
            ints["preemptions"][job_index] += 1
        stop(state, job_index, PhaseCode.PENDING, USER_RESIZED)


def _set_servers(state: State, job_index: int, low: int, high: int) -> None:
    ints, spec = state.columns.ints, state.columns.spec(job_index)
    if int(ints["phase"][job_index]) not in (PhaseCode.PENDING, PhaseCode.PAUSED) or not 0 <= low <= high:
        state.notes.append(f"servers {low}..{high} for job {spec.id} refused: it runs, or the range is invalid")
        return
    server = SERVER_DEMAND if high and not spec.servers_max and spec.server == NO_DEMAND else spec.server
    spec = replace(spec, servers_min=low, servers_max=high, server=server)
    state.columns.specs[job_index] = spec
    ints["servers_min"][job_index], ints["servers_max"][job_index] = low, high
    ints["server_cpu_milli"][job_index], ints["server_mem_mib"][job_index] = server.cpu_milli, server.mem_mib


def terms_changed(state: State, event: ev.JobTermsChanged) -> None:
    """Take other wishes. What runs goes on; the policy sees them at its next decision, which is now due."""
    job_index = state.columns.job_index_of.get(event.job_id)
    if job_index is None:
        return
    columns = state.columns
    names = ("deadline_ms", "deadline_kind", "weight", "priority", "preemptible")
    given = {name: getattr(event, name) for name in names if getattr(event, name) is not None}
    if not given.get("weight", 1.0) > 0:
        state.notes.append(f"weight {event.weight} for job {event.job_id} refused: expected a positive number")
        return
    if event.work_total is not None:
        given["work_total"] = event.work_total
        columns.floats["work_total"][job_index] = event.work_total
    if event.time_s is not None:
        given["time_s"] = None if event.time_s == math.inf else event.time_s
    if event.noted is not None:
        given["payload"] = {**columns.spec(job_index).payload, **event.noted}
    columns.specs[job_index] = replace(columns.spec(job_index), **given)
    for name in ("deadline_ms", "deadline_kind", "priority", "preemptible"):
        if name in given:
            columns.ints[name][job_index] = int(given[name])
    if "weight" in given:
        columns.floats["weight"][job_index] = given["weight"]
    log_phase(columns, job_index)
    state.changed = True


def policy_changed(state: State, _: ev.PolicyChanged) -> None:
    state.memo_values = {}
    state.memo_columns = set()
    state.columns.memo.clear()
    state.changed = True


def woken(_state: State, _: ev.Woken) -> None:
    """Nothing to do: the step itself looks at what is due."""

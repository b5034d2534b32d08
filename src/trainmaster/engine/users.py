"""What users want: submit, cancel, pause, resume, another range of sizes."""

from __future__ import annotations

from dataclasses import replace

from trainmaster.core.codes import USER_CANCELLED, USER_PAUSED, USER_RESIZED
from trainmaster.core.engine_core import drop_allocation, move, resize, stop, unreserve, wanted
from trainmaster.engine import holds
from trainmaster.engine.lifecycle import LIVE, T, Trigger
from trainmaster.engine.state import State
from trainmaster.model import event as ev
from trainmaster.model.allocation import fewer_workers
from trainmaster.model.gangs import gang_list
from trainmaster.model.job import JobId, P


def submitted(state: State, event: ev.JobSubmitted) -> None:
    """Enter a job. An id that was ever accepted is not accepted again: a repeated request does nothing."""
    spec = event.spec
    if spec.id in state.known:
        return
    state.known.add(spec.id)
    here, spread = state.estimator.profile(spec, state.cluster.types)
    slot = state.columns.add(spec, state.now_ms, here, spread)
    state.columns.ints["reasoned"][slot] = state.decisions
    state.n_waiting += 1
    state.changed = True
    if spec.after or state.quotas:
        holds.arrived(state, slot, spec)


def cancelled(state: State, event: ev.JobCancelled) -> None:
    _end_by_user(state, event.job_id, P.CANCELLED, T.CANCEL)


def paused(state: State, event: ev.JobPaused) -> None:
    _end_by_user(state, event.job_id, P.PAUSED, T.PAUSE)


def _end_by_user(state: State, job_id: JobId, after: int, trigger: Trigger) -> None:
    slot = state.columns.slot_of.get(job_id)
    if slot is None:
        return
    phase = int(state.columns.ints["phase"][slot])
    if phase == after or (phase in LIVE and wanted(state, slot) == P.CANCELLED):
        return  # already so, or already being cancelled, which nothing takes back
    state.changed = state.holds_changed = True
    drop_allocation(state, slot)
    if phase in LIVE:
        stop(state, slot, after, USER_CANCELLED if after == P.CANCELLED else USER_PAUSED)
        return
    if phase == P.RESERVED:
        unreserve(state, slot)
    move(state, slot, trigger)


def resumed(state: State, event: ev.JobResumed) -> None:
    slot = state.columns.slot_of.get(event.job_id)
    if slot is None:
        return
    ints = state.columns.ints
    phase = int(ints["phase"][slot])
    if phase == P.PAUSED:
        move(state, slot, T.RESUME)
        state.changed = state.holds_changed = True
    elif phase in LIVE and wanted(state, slot) == P.PAUSED:
        ints["after_stop"][slot] = P.PENDING


def range_changed(state: State, event: ev.JobRangeChanged) -> None:
    """Take the new range. A running elastic gang that is too large shrinks in place; any other gang that is outside
    the range gives its devices back and waits for new ones."""
    slot = state.columns.slot_of.get(event.job_id)
    if slot is None:
        return
    low, high = event.workers_min, event.workers_max
    if not 1 <= low <= high:
        state.notes.append(f"range {low}..{high} for job {event.job_id} refused: expected 1 <= min <= max")
        return
    columns, ints = state.columns, state.columns.ints
    was_elastic = columns.spec(slot).elastic
    spec = columns.specs[slot] = replace(columns.spec(slot), workers_min=low, workers_max=high)
    if spec.entity in state.quotas:
        state.caps.setdefault(slot, int(ints["workers_max"][slot]))  # growth waits for the review of the quota
    holds.apply_cap(state, slot)
    state.changed = state.holds_changed = True
    allocation = columns.allocations[slot]
    if allocation is None or low <= allocation.workers <= ints["workers_max"][slot]:
        return
    phase = int(ints["phase"][slot])
    most = int(ints["workers_max"][slot])
    if phase == P.RUNNING and (was_elastic or spec.elastic) and allocation.workers > most:
        smaller = fewer_workers(allocation, most, spec.worker.devices)
        state.planned.give(allocation, spec.worker, spec.server)
        state.planned.take(smaller, spec.worker, spec.server)
        resize(state, slot, gang_list(smaller), 0)
        return
    drop_allocation(state, slot)
    if phase == P.RESERVED:
        unreserve(state, slot)
        move(state, slot, T.UNRESERVE)
    elif phase in LIVE and wanted(state, slot) in (P.PENDING, P.RESERVED):
        if phase != P.STOPPING:
            ints["preemptions"][slot] += 1
        stop(state, slot, P.PENDING, USER_RESIZED)


def terms_changed(state: State, event: ev.JobTermsChanged) -> None:
    """Take other wishes. What runs goes on; the policy sees them at its next decision, which is now due."""
    slot = state.columns.slot_of.get(event.job_id)
    if slot is None:
        return
    columns = state.columns
    names = ("deadline_ms", "deadline_kind", "weight", "priority")
    given = {name: getattr(event, name) for name in names if getattr(event, name) is not None}
    if not given.get("weight", 1.0) > 0:
        state.notes.append(f"weight {event.weight} for job {event.job_id} refused: expected a positive number")
        return
    columns.specs[slot] = replace(columns.spec(slot), **given)
    for name in ("deadline_ms", "deadline_kind", "priority"):
        if name in given:
            columns.ints[name][slot] = int(given[name])
    if "weight" in given:
        columns.floats["weight"][slot] = given["weight"]
    state.changed = True


def policy_changed(state: State, _: ev.PolicyChanged) -> None:
    state.memo_values = {}
    state.memo_columns = set()
    state.columns.memo.clear()
    state.changed = True


def woken(_state: State, _: ev.Woken) -> None:
    """Nothing to do: the step itself looks at what is due."""

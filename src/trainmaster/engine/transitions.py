"""The life of a job, one step at a time: moves by the table, the fence, and what an end means."""

from __future__ import annotations

from trainmaster.engine.lifecycle import LIVE, T, Trigger, next_phase
from trainmaster.engine.records import Ended
from trainmaster.engine.state import State
from trainmaster.model.allocation import Allocation
from trainmaster.model.job import TERMINAL, JobId, P, Phase
from trainmaster.model.reasons import Why
from trainmaster.model.units import NEVER_MS

_CAPACITY = int(Why.CAPACITY)
MAX_DOUBLINGS = 6


def move(state: State, slot: int, trigger: Trigger) -> None:
    columns = state.columns
    ints = columns.ints
    phase = next_phase(int(ints["phase"][slot]), trigger)
    columns.settle(slot, state.now_ms)
    ints["phase"][slot] = phase
    if phase in TERMINAL:
        _bury(state, slot, phase)
    elif phase == P.PENDING:
        ints["waiting_since_ms"][slot] = state.now_ms
        ints["reason"][slot] = _CAPACITY


def _bury(state: State, slot: int, phase: int) -> None:
    columns = state.columns
    spec = columns.spec(slot)
    release_held(state, slot)
    if columns.ints["workers"][slot] > 0:
        state.planned.give_slot(slot, columns.allocations.rows(), columns.ints)
    if slot in state.reserved:
        state.reserved.remove(slot)
    state.details.pop(slot, None)
    ints, floats = columns.ints, columns.floats
    state.ended.append(
        Ended(
            spec=spec,
            phase=Phase(phase),
            ended_ms=state.now_ms,
            first_start_ms=int(ints["first_start_ms"][slot]),
            service_gpu_s=float(floats["service_gpu_s"][slot]),
            run_s=float(floats["run_s"][slot]),
            work_done=float(floats["work_done"][slot]),
            preemptions=int(ints["preemptions"][slot]),
            attempts=int(ints["attempts"][slot]),
            cost=float(floats["cost"][slot]),
            rejection=state.rejections.pop(slot, None),
        )
    )
    state.ended_as[spec.id] = phase
    if state.waits_for or state.quotas or state.held_back:
        for book in (state.held_back, state.waits_for, state.caps):
            book.pop(slot, None)
        state.holds_changed = True
    columns.remove(slot)
    state.changed = True


def set_allocation(state: State, slot: int, allocation: Allocation | None) -> None:
    """Write what the plan gives a job. The planned ledger is the caller's affair."""
    state.columns.settle(slot, state.now_ms)
    ints = state.columns.ints
    state.held.before_replanning(slot)
    state.columns.allocations[slot] = allocation
    ints["held_type"][slot] = -1 if allocation is None else allocation.accelerator
    ints["workers"][slot] = 0 if allocation is None else allocation.workers
    ints["servers"][slot] = 0 if allocation is None else allocation.servers
    ints["nodes_held"][slot] = 0 if allocation is None else len(allocation.parts)
    ints["held_gpu_milli"][slot] = 0 if allocation is None else allocation.gpu_milli


def drop_allocation(state: State, slot: int) -> None:
    """Give planned devices back (the job will wait, or is over)."""
    allocation = state.columns.allocations[slot]
    if allocation is not None:
        spec = state.columns.spec(slot)
        state.planned.give(allocation, spec.worker, spec.server)
        set_allocation(state, slot, None)


def release_held(state: State, slot: int) -> None:
    """No process of the job is left: its devices are physically free."""
    if slot in state.held:
        columns = state.columns
        if state.held.is_as_planned(slot):
            state.physical.give_slot(slot, columns.allocations.rows(), columns.ints)
        else:
            spec = columns.spec(slot)
            state.physical.give(state.held[slot], spec.worker, spec.server)
        del state.held[slot]
        state.last_seq.pop(slot, None)
        if state.doubts:
            state.doubts.pop(slot, None)
        if state.ended_on:
            state.ended_on.pop(slot, None)
    state.outstanding.pop(slot, None)


def current(state: State, job_id: JobId, generation: int) -> int | None:
    """The slot that a report speaks of, or None when it is not about a live incarnation: the fence."""
    slot = state.columns.slot_of.get(job_id)
    if slot is None or state.columns.ints["generation"][slot] != generation:
        return None
    return slot if int(state.columns.ints["phase"][slot]) in LIVE else None


def gone(state: State, slot: int, work_saved: float) -> None:
    """The present incarnation has certainly ended without finishing: go where the job was to go."""
    columns, ints = state.columns, state.columns.ints
    columns.settle(slot, state.now_ms)
    columns.floats["work_done"][slot] = columns.floats["work_saved"][slot] = max(work_saved, 0.0)
    after = wanted(state, slot)
    release_held(state, slot)
    ints["after_stop"][slot] = P.PENDING
    allocation = columns.allocations[slot]
    if after == P.RESERVED and allocation is not None and all(state.up[part.node] for part in allocation.parts):
        move(state, slot, T.MOVE)
        state.reserved.append(slot)
        return
    drop_allocation(state, slot)
    if state.quotas:
        state.holds_changed = True
    if after == P.CANCELLED:
        move(state, slot, T.CANCEL)
    elif after == P.PAUSED:
        move(state, slot, T.PAUSE)
    else:
        move(state, slot, T.REQUEUE)
        if ints["worker_gpu_milli"][slot] == 0 or state.planned.device_milli.any():
            state.changed = True  # there may be room for it elsewhere


def wanted(state: State, slot: int) -> int:
    """The phase a live job shall have when its present incarnation is over."""
    ints = state.columns.ints
    return int(ints["after_stop"][slot]) if int(ints["phase"][slot]) in (P.STOPPING, P.LOST) else P.PENDING


def failed(state: State, slot: int, work_saved: float) -> None:
    """The incarnation ended by its own fault: try again after a pause, or give up."""
    ints = state.columns.ints
    ints["failures"][slot] += 1
    failures = int(ints["failures"][slot])
    if failures >= state.columns.spec(slot).max_attempts and wanted(state, slot) not in (
        P.CANCELLED,
        P.PAUSED,
    ):
        state.columns.settle(slot, state.now_ms)
        release_held(state, slot)
        move(state, slot, T.GIVE_UP)
        return
    retry_later(state, slot, work_saved, state.settings.backoff_ms * 2 ** min(failures - 1, MAX_DOUBLINGS))


def retry_later(state: State, slot: int, work_saved: float, pause_ms: int) -> None:
    """The incarnation is over; the next one waits for a while (unless the user wants something else)."""
    ints = state.columns.ints
    job_id = state.columns.spec(slot).id
    if wanted(state, slot) == P.RESERVED:
        ints["after_stop"][slot] = P.PENDING
    gone(state, slot, work_saved)
    if state.columns.slot_of.get(job_id) == slot and int(ints["phase"][slot]) == P.PENDING:
        ints["not_before_ms"][slot] = state.now_ms + pause_ms
        state.next_backoff_ms = min(state.next_backoff_ms, int(ints["not_before_ms"][slot]))
        state.changed = True


def end_backoffs(state: State) -> None:
    until = state.columns.ints["not_before_ms"][state.columns.rows]
    later = until[until > state.now_ms]
    state.next_backoff_ms = int(later.min()) if len(later) else NEVER_MS
    state.changed = True

"""What is held back before any policy sees it: jobs that wait for other jobs, and jobs over a team's quota.

A job that is held back is pending like any other, but absent from snapshots. Dependencies: it is released when
all jobs it names have finished, and rejected when one of them ended otherwise. Quotas: a team's jobs are
released in order of arrival while the GPUs that released jobs may come to use stay within its quota; an elastic
job counts with its largest size, cut down to what is left. Released jobs stay released (a policy may have
promised them something), except while they wait and the quota has been lowered.
"""

from __future__ import annotations

from typing import Any

from trainmaster.core.engine_core import move
from trainmaster.core.job_arrays import log_phase
from trainmaster.engine.lifecycle import T
from trainmaster.engine.state import State
from trainmaster.model import event as ev
from trainmaster.model.job import JobId, JobSpec, P, Phase
from trainmaster.model.plan import Rejection
from trainmaster.model.reasons import Why
from trainmaster.model.units import GPU_MILLI


def arrived(state: State, slot: int, spec: JobSpec) -> None:
    """Hold a new job back if it must wait for others; its team's quota is looked at by `review`."""
    open_ends = {job_id for job_id in spec.after if state.ended_as.get(job_id) != P.FINISHED}
    if open_ends:
        state.waits_for[slot] = open_ends
        state.held_back[slot] = Why.DEPENDENCY
    elif spec.entity in state.quotas:
        state.held_back[slot] = Why.QUOTA
    state.holds_changed = True


def entity_changed(state: State, event: ev.EntityChanged) -> None:
    if event.weight == 1.0:
        state.entity_weights.pop(event.entity, None)
    else:
        state.entity_weights[event.entity] = event.weight
    if event.quota_milli is None:
        state.quotas.pop(event.entity, None)
    else:
        state.quotas[event.entity] = event.quota_milli
    state.has_quotas = bool(state.quotas)
    state.holds_changed = True
    state.changed = True


def review(state: State) -> None:
    """Release or hold back, reject what waits in vain. Runs before a decision, when something changed."""
    state.holds_changed = False
    if state.waits_for:
        _review_dependencies(state)
    if state.quotas or state.held_back or state.caps:
        _review_quotas(state)


def _review_dependencies(state: State) -> None:
    columns = state.columns
    again = True
    while again:  # a rejection may be what another job waits for
        again = False
        for slot in state.by_arrival(state.waits_for):
            waits_for = state.waits_for[slot]
            waits_for -= {job_id for job_id in waits_for if state.ended_as.get(job_id) == P.FINISHED}
            in_vain = sorted(job_id for job_id in waits_for if job_id not in columns.slot_of)
            if in_vain and int(columns.ints["phase"][slot]) == P.PENDING:
                job_id = in_vain[0]
                how = Phase(state.ended_as[job_id]).name.lower() if job_id in state.ended_as else "unknown"
                state.rejections[slot] = Rejection(Why.DEPENDENCY, {"after": job_id, "which_is": how})
                move(state, slot, T.REJECT)
                again = True
                break
            if not waits_for:
                del state.waits_for[slot]
                _release(state, slot)
                if columns.spec(slot).entity in state.quotas:
                    state.held_back[slot] = Why.QUOTA


def _review_quotas(state: State) -> None:
    columns = state.columns
    teams: dict[str, list[int]] = {entity: [] for entity in sorted(state.quotas)}
    for slot in columns.rows.tolist():
        entity = columns.spec(slot).entity
        if entity in teams:
            teams[entity].append(slot)
        elif state.held_back.get(slot) == Why.QUOTA:
            _release(state, slot)  # the quota was taken away
        elif slot in state.caps:
            _uncap(state, slot)
            state.changed = True
    for entity, slots in teams.items():
        _review_team(state, slots, state.quotas[entity])


def _review_team(state: State, slots: list[int], quota_milli: int) -> None:
    """`slots` in order of arrival."""
    ints = state.columns.ints
    slots = [slot for slot in slots if slot not in state.waits_for]
    used_milli = 0
    for slot in slots:
        if slot not in state.held_back and int(ints["phase"][slot]) != P.PAUSED:
            used_milli += _most_milli(state, slot)
    for slot in reversed(slots):
        if used_milli <= quota_milli:
            break
        if slot not in state.held_back and int(ints["phase"][slot]) == P.PENDING:
            used_milli -= _most_milli(state, slot)
            _hold(state, slot)
    for slot in slots:
        if slot not in state.held_back and int(ints["phase"][slot]) == P.PAUSED:
            _hold(state, slot)  # it holds nothing, and queues again when it is resumed
        if slot not in state.held_back or int(ints["phase"][slot]) != P.PENDING:
            continue
        each = max(int(ints["worker_gpu_milli"][slot]), 0)
        spec = state.columns.spec(slot)
        least = spec.workers_min * each
        if least > quota_milli:
            continue  # it never fits: it must not keep the others waiting
        if used_milli + least > quota_milli:
            break
        _release(state, slot)
        if each:
            room = (quota_milli - used_milli) // each
            if room < spec.workers_max:
                _cap(state, slot, room)
        used_milli += _most_milli(state, slot)
    for slot in slots:
        each = int(ints["worker_gpu_milli"][slot])
        if slot in state.caps and each and quota_milli - used_milli >= each:
            before_milli = _most_milli(state, slot)
            _cap(state, slot, state.caps[slot] + (quota_milli - used_milli) // each)
            used_milli += _most_milli(state, slot) - before_milli


def _most_milli(state: State, slot: int) -> int:
    """What it may come to use, or still uses: processes of a job that was cut down may live on for a while."""
    ints = state.columns.ints
    held = state.columns.held[slot]
    most = int(ints["workers_max"][slot]) * int(ints["worker_gpu_milli"][slot])
    return max(most, int(ints["held_gpu_milli"][slot]), 0 if held is None else held.gpu_milli)


def _hold(state: State, slot: int) -> None:
    _uncap(state, slot)
    state.held_back[slot] = Why.QUOTA
    state.changed = True


def _release(state: State, slot: int) -> None:
    if state.held_back.pop(slot, None) is not None:
        state.columns.ints["waiting_since_ms"][slot] = state.now_ms
    _uncap(state, slot)
    state.changed = True


def _cap(state: State, slot: int, workers: int) -> None:
    state.caps[slot] = min(workers, state.columns.spec(slot).workers_max)
    apply_cap(state, slot)
    state.changed = True


def _uncap(state: State, slot: int) -> None:
    if state.caps.pop(slot, None) is not None:
        apply_cap(state, slot)


def apply_cap(state: State, slot: int) -> None:
    """Write the range that the job has now: its own, cut down to what its team's quota leaves."""
    spec, ints = state.columns.spec(slot), state.columns.ints
    most = max(min(spec.workers_max, state.caps.get(slot, spec.workers_max)), spec.workers_min)
    ask = min(max(spec.workers_ref, spec.workers_min), most)
    ints["workers_min"][slot], ints["workers_max"][slot] = spec.workers_min, most
    ints["workers_ask"][slot], ints["ask_gpu_milli"][slot] = ask, ask * spec.worker.gpu_milli
    log_phase(state.columns, slot)
    ints["elastic"][slot] = int(spec.elastic)


def details(state: State, slot: int) -> dict[str, Any]:
    """The figures behind a job that is held back."""
    spec = state.columns.spec(slot)
    if slot in state.waits_for:
        return {"after": ", ".join(sorted(state.waits_for[slot], key=_by_number))}
    quota_milli = state.quotas.get(spec.entity, 0)
    return {"entity": spec.entity, "quota_gpus": quota_milli / GPU_MILLI}


def _by_number(job_id: JobId) -> tuple[int, str]:
    return (len(job_id), job_id)

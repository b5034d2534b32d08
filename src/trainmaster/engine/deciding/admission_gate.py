"""What is kept from policies before any policy sees it: jobs that wait for other jobs, for nodes that could take them,
and jobs over a team's quota.

A job that is kept from policies is pending like any other, but absent from snapshots. Dependencies: it is released when
all jobs it names have finished, and rejected when one of them ended otherwise. Nodes: a backend whose nodes come and go
says which jobs none of them could ever take; these wait alone, and nobody waits behind them. Quotas: a team's jobs are
released in order of arrival while the GPUs that released jobs may come to use stay within its quota; an elastic
job counts with its largest size, cut down to what is left. Released jobs stay released (a policy may have
promised them something), except while they wait and the quota has been lowered.
"""

from __future__ import annotations

from typing import Any

from trainmaster.core.engine.engine_core import move
from trainmaster.core.state.job_arrays import log_phase
from trainmaster.engine.lifecycle import Trigger
from trainmaster.engine.state import State
from trainmaster.model import event as ev
from trainmaster.model.job import JobId, JobSpec, Phase, PhaseCode
from trainmaster.model.plan import Rejection
from trainmaster.model.reasons import Why
from trainmaster.model.units import GPU_MILLI


def arrived(state: State, job_index: int, spec: JobSpec) -> None:
    """Hold a new job back if it must wait for others; its team's quota is looked at by `review`."""
    open_ends = {job_id for job_id in spec.after if state.ended_as.get(job_id) != PhaseCode.FINISHED}
    if open_ends:
        state.waits_for[job_index] = open_ends
        state.gated[job_index] = Why.DEPENDENCY
    elif spec.entity in state.quotas:
        state.gated[job_index] = Why.QUOTA
    state.gate_changed = True


def room_changed(state: State, event: ev.JobRoomChanged) -> None:
    """A job fits, or no longer fits, the nodes that there are."""
    job_index = state.columns.job_index_of.get(event.job_id)
    if job_index is None:
        return
    if event.lacks:
        state.no_room[job_index] = event.lacks
        return
    state.no_room.pop(job_index, None)
    if state.gated.get(job_index) == Why.NO_NODE:
        _release(state, job_index)
    state.gate_changed = True


def hold_back_without_room(state: State) -> None:
    """Those that wait are no business of policies; what runs goes on."""
    for job_index in state.by_arrival(state.no_room):
        waits = int(state.columns.ints["phase"][job_index]) == PhaseCode.PENDING and job_index not in state.waits_for
        if waits and state.gated.get(job_index) != Why.NO_NODE:
            _close_gate(state, job_index, Why.NO_NODE)
            state.gate_changed = True


def entity_changed(state: State, event: ev.EntityChanged) -> None:
    _set(state.entity_weights, event.entity, None if event.weight == 1.0 else event.weight)
    _set(state.quotas, event.entity, event.quota_milli)
    _set(state.entity_policies, event.entity, event.policy)
    state.has_quotas = bool(state.quotas)
    state.gate_changed = True
    state.changed = True


def _set(values: dict[str, Any], entity: str, value: Any) -> None:
    if value is None:
        values.pop(entity, None)
    else:
        values[entity] = value


def review(state: State) -> None:
    """Release or hold back, reject what waits in vain. Runs before a decision, when something changed."""
    state.gate_changed = False
    if state.waits_for:
        _review_dependencies(state)
    if state.quotas or state.gated or state.caps:
        _review_quotas(state)


def _review_dependencies(state: State) -> None:
    columns = state.columns
    again = True
    while again:  # a rejection may be what another job waits for
        again = False
        for job_index in state.by_arrival(state.waits_for):
            waits_for = state.waits_for[job_index]
            waits_for -= {job_id for job_id in waits_for if state.ended_as.get(job_id) == PhaseCode.FINISHED}
            in_vain = sorted(job_id for job_id in waits_for if job_id not in columns.job_index_of)
            if in_vain and int(columns.ints["phase"][job_index]) == PhaseCode.PENDING:
                job_id = in_vain[0]
                how = Phase(state.ended_as[job_id]).name.lower() if job_id in state.ended_as else "unknown"
                state.rejections[job_index] = Rejection(Why.DEPENDENCY, {"after": job_id, "which_is": how})
                move(state, job_index, Trigger.REJECT)
                again = True
                break
            if not waits_for:
                del state.waits_for[job_index]
                _release(state, job_index)
                if state.no_room:
                    hold_back_without_room(state)


def _release(state: State, job_index: int) -> None:
    """What it waited for is there; its team's quota is still to be looked at."""
    _open_gate(state, job_index)
    if state.columns.spec(job_index).entity in state.quotas:
        state.gated[job_index] = Why.QUOTA


def _review_quotas(state: State) -> None:
    columns = state.columns
    teams: dict[str, list[int]] = {entity: [] for entity in sorted(state.quotas)}
    for job_index in columns.rows.tolist():
        entity = columns.spec(job_index).entity
        if entity in teams:
            teams[entity].append(job_index)
        elif state.gated.get(job_index) == Why.QUOTA:
            _open_gate(state, job_index)  # the quota was taken away
        elif job_index in state.caps:
            _uncap(state, job_index)
            state.changed = True
    for entity, job_indices in teams.items():
        _review_team(state, job_indices, state.quotas[entity])


def _review_team(state: State, job_indices: list[int], quota_milli: int) -> None:
    """`job_indices` in order of arrival."""
    ints = state.columns.ints
    apart = (Why.DEPENDENCY, Why.NO_NODE)
    job_indices = [job_index for job_index in job_indices if state.gated.get(job_index) not in apart]
    used_milli = 0
    for job_index in job_indices:
        if job_index not in state.gated and int(ints["phase"][job_index]) != PhaseCode.PAUSED:
            used_milli += _most_milli(state, job_index)
    for job_index in reversed(job_indices):
        if used_milli <= quota_milli:
            break
        if job_index not in state.gated and int(ints["phase"][job_index]) == PhaseCode.PENDING:
            used_milli -= _most_milli(state, job_index)
            _close_gate(state, job_index)
    for job_index in job_indices:
        if job_index not in state.gated and int(ints["phase"][job_index]) == PhaseCode.PAUSED:
            _close_gate(state, job_index)  # it holds nothing, and queues again when it is resumed
        if job_index not in state.gated or int(ints["phase"][job_index]) != PhaseCode.PENDING:
            continue
        each = max(int(ints["worker_gpu_milli"][job_index]), 0)
        spec = state.columns.spec(job_index)
        least = spec.workers_min * each
        if least > quota_milli:
            continue  # it never fits: it must not keep the others waiting
        if used_milli + least > quota_milli:
            break
        _open_gate(state, job_index)
        if each:
            room = (quota_milli - used_milli) // each
            if room < spec.workers_max:
                _cap(state, job_index, room)
        used_milli += _most_milli(state, job_index)
    for job_index in job_indices:
        each = int(ints["worker_gpu_milli"][job_index])
        if job_index in state.caps and each and quota_milli - used_milli >= each:
            before_milli = _most_milli(state, job_index)
            _cap(state, job_index, state.caps[job_index] + (quota_milli - used_milli) // each)
            used_milli += _most_milli(state, job_index) - before_milli


def _most_milli(state: State, job_index: int) -> int:
    """What it may come to use, or still uses: processes of a job that was cut down may live on for a while."""
    ints = state.columns.ints
    held = state.columns.held[job_index]
    most = int(ints["workers_max"][job_index]) * int(ints["worker_gpu_milli"][job_index])
    return max(most, int(ints["held_gpu_milli"][job_index]), 0 if held is None else held.gpu_milli)


def _close_gate(state: State, job_index: int, why: Why = Why.QUOTA) -> None:
    _uncap(state, job_index)
    state.gated[job_index] = why
    state.changed = True


def _open_gate(state: State, job_index: int) -> None:
    if state.gated.pop(job_index, None) is not None:
        state.columns.ints["waiting_since_ms"][job_index] = state.now_ms
    _uncap(state, job_index)
    state.changed = True


def _cap(state: State, job_index: int, workers: int) -> None:
    state.caps[job_index] = min(workers, state.columns.spec(job_index).workers_max)
    apply_cap(state, job_index)
    state.changed = True


def _uncap(state: State, job_index: int) -> None:
    if state.caps.pop(job_index, None) is not None:
        apply_cap(state, job_index)


def apply_cap(state: State, job_index: int) -> None:
    """Write the range that the job has now: its own, cut down to what its team's quota leaves."""
    spec, ints = state.columns.spec(job_index), state.columns.ints
    most = max(min(spec.workers_max, state.caps.get(job_index, spec.workers_max)), spec.workers_min)
    ints["workers_min"][job_index], ints["workers_max"][job_index] = spec.workers_min, most
    state.columns.ask_for(job_index, most)
    log_phase(state.columns, job_index)
    ints["elastic"][job_index] = int(spec.elastic)


def details(state: State, job_index: int) -> dict[str, Any]:
    """The figures behind a job that is kept from policies."""
    spec = state.columns.spec(job_index)
    if job_index in state.waits_for:
        return {"after": ", ".join(sorted(state.waits_for[job_index], key=_by_number))}
    if state.gated.get(job_index) == Why.NO_NODE:
        return {"lacks": state.no_room.get(job_index, "")}
    quota_milli = state.quotas.get(spec.entity, 0)
    return {"entity": spec.entity, "quota_gpus": quota_milli / GPU_MILLI}


def _by_number(job_id: JobId) -> tuple[int, str]:
    return (len(job_id), job_id)

"""Attempts that the service ends since they broke a limit of their job: run time, budget, no progress.

A halt counts as a failed attempt. The count is stored; who was halted is not: after a restart the service looks at the
limits again.
"""

from __future__ import annotations

from trainmaster.core.codes import HALTED
from trainmaster.core.engine.engine_core import drop_allocation, move, stop, unreserve, wanted
from trainmaster.engine.lifecycle import LIVE, Trigger
from trainmaster.engine.state import State
from trainmaster.model import event as ev
from trainmaster.model.job import PhaseCode


def halted(state: State, event: ev.JobHalted) -> None:
    """Stop the attempt. What its user has cancelled or paused goes on as its user wanted."""
    job_index = state.columns.job_index_of.get(event.job_id)
    if job_index is None or job_index in state.halted:
        return
    ints = state.columns.ints
    phase = int(ints["phase"][job_index])
    if phase == PhaseCode.PAUSED or wanted(state, job_index) in (PhaseCode.CANCELLED, PhaseCode.PAUSED):
        return
    ints["failures"][job_index] = ints["max_attempts"][job_index] if event.final else ints["failures"][job_index] + 1
    state.halted[job_index] = event.why
    state.changed = state.gate_changed = True
    drop_allocation(state, job_index)
    if phase in LIVE:
        stop(state, job_index, PhaseCode.PENDING, HALTED)
    elif phase == PhaseCode.RESERVED:
        unreserve(state, job_index)
        move(state, job_index, Trigger.UNRESERVE)


def give_up(state: State) -> None:
    """Halted attempts that have ended: the job waits for the next one, or has failed."""
    ints = state.columns.ints
    for job_index in state.by_arrival(state.halted):
        if int(ints["phase"][job_index]) != PhaseCode.PENDING:
            continue
        state.halted.pop(job_index)
        if ints["failures"][job_index] >= ints["max_attempts"][job_index]:
            move(state, job_index, Trigger.GIVE_UP)

"""What backends report about attempts. Every report passes the fence first; what it means is in
`core.engine.engine_core`."""

from __future__ import annotations

import math

from trainmaster.core.engine import engine_core as core
from trainmaster.engine import learned_speeds
from trainmaster.engine.deciding import preemption_notice
from trainmaster.engine.handlers import nodes
from trainmaster.engine.state import State
from trainmaster.model import event as ev


def started(state: State, event: ev.Started) -> None:
    job_index = state.current(event.job_id, event.generation)
    if job_index is not None:
        core.started(state, job_index, event.work_done, event.productive_ms)


def start_failed(state: State, event: ev.StartFailed) -> None:
    job_index = state.current(event.job_id, event.generation)
    if job_index is not None:
        core.start_failed(state, job_index, -1 if event.node is None else event.node)


def resized(state: State, event: ev.Resized) -> None:
    job_index = state.current(event.job_id, event.generation)
    if job_index is not None:
        core.resized(state, job_index, event.seq, event.work_done, event.productive_ms)


def progressed(state: State, event: ev.Progressed) -> None:
    job_index = state.current(event.job_id, event.generation)
    if job_index is None:
        return
    core.progressed(state, job_index, event.work_done, math.nan if event.rate is None else event.rate)
    if event.saved is not None:
        saved = state.columns.floats["work_saved"]
        saved[job_index] = max(saved[job_index], event.saved)
    if event.rate is not None and event.rate >= 0:
        learned_speeds.measured(state, job_index, event)
    if event.loss is not None:
        state.columns.record_loss(job_index, event.work_done, event.loss)


def exited(state: State, event: ev.Exited) -> None:
    job_index = state.current(event.job_id, event.generation)
    if job_index is not None:
        core.exited(state, job_index, event.code, event.work_saved)


def stopped(state: State, event: ev.Stopped) -> None:
    """It ended wherever it could be asked; where not, the node's loss and its lease decide."""
    job_index = state.current(event.job_id, event.generation)
    if job_index is None:
        return
    preemption_notice.stopped(state, job_index, event.work_saved)
    if not event.silent:
        core.stopped(state, job_index, event.work_saved)
        return
    state.columns.floats["work_saved"][job_index] = core.or_saved(state, job_index, event.work_saved)
    nodes.ended_there(state, job_index, [p.node for p in state.holding(job_index).parts if p.node not in event.silent])

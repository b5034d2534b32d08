"""Reconciliation: what a backend sees against what the engine believes; lost reports are made good.

An inventory may be old when it arrives. It is believed about an attempt only as far as the backend had
seen that attempt's last command; and an end, once seen, stays true.
"""

from __future__ import annotations

from trainmaster.core.codes import SUPERSEDED, WORDS
from trainmaster.engine.handlers import backend_reports, nodes
from trainmaster.engine.lifecycle import LIVE
from trainmaster.engine.state import State
from trainmaster.model import event as ev
from trainmaster.model.command import Stop
from trainmaster.model.job import JobId, PhaseCode


def taken(state: State, event: ev.Inventory) -> None:
    """Believe the backend where it can know: what it lists is there, what it should list is not."""
    for node in sorted(event.nodes):
        if not state.up[node]:
            state.set_up(node, True)
            state.changed = True
    listed: set[JobId] = set()
    for entry in event.entries:
        job_index = state.current(entry.job_id, entry.generation)
        if job_index is None:
            _stray(state, entry)
            continue
        listed.add(entry.job_id)
        _reconcile(state, job_index, entry, event)
    last_seq = state.columns.ints["last_seq"]
    for job_index in state.holders():
        if state.columns.spec(job_index).id not in listed and last_seq[job_index] <= event.seen_up_to:
            _absent(state, job_index, event)


def _absent(state: State, job_index: int, event: ev.Inventory) -> None:
    """No node that could be asked knows of it: there it has ended (or never began)."""
    asked = [part.node for part in state.holding(job_index).parts if part.node in event.nodes]
    if asked:
        nodes.ended_there(state, job_index, asked)


def _stray(state: State, entry: ev.Observed) -> None:
    """An attempt that is over for us but still runs: end it."""
    job_index = state.columns.job_index_of.get(entry.job_id)
    if job_index is None and entry.job_id not in state.known:
        return  # not ours
    newer = job_index is not None and entry.generation > state.columns.ints["generation"][job_index]
    if entry.exit_code is None and not entry.stopped and not newer:
        state.seq += 1
        state.commands.add_other(Stop(entry.job_id, entry.generation, state.seq, WORDS[SUPERSEDED]))


def _reconcile(state: State, job_index: int, entry: ev.Observed, event: ev.Inventory) -> None:
    job_id, generation = entry.job_id, entry.generation
    if entry.exit_code is not None:
        backend_reports.exited(state, ev.Exited(job_id, generation, entry.exit_code, entry.work))
        return
    if entry.stopped:
        if entry.work == entry.work:
            state.columns.floats["work_saved"][job_index] = entry.work
        _absent(state, job_index, event)
        return
    phase = int(state.columns.ints["phase"][job_index])
    assert phase in LIVE
    measured = entry.work == entry.work
    work = entry.work if measured else float(state.columns.floats["work_saved"][job_index])
    if phase == PhaseCode.LAUNCHING and not entry.starting:
        backend_reports.started(state, ev.Started(job_id, generation, work, state.now_ms))
    elif phase == PhaseCode.RESIZING:
        ints = state.columns.ints
        seq = ints["pending_seq"].item(job_index)
        if ints["pending_kind"][job_index] and entry.allocation_seq >= seq:
            backend_reports.resized(state, ev.Resized(job_id, generation, seq, work, state.now_ms))
    elif phase == PhaseCode.RUNNING and measured:
        backend_reports.progressed(state, ev.Progressed(job_id, generation, entry.work, state.now_ms))

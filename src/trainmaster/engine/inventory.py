"""Reconciliation: what a backend sees against what the engine believes; lost reports are made good.

An inventory may be old when it arrives. It is believed about an incarnation only as far as the backend had
seen that incarnation's last command; and an end, once seen, stays true.
"""

from __future__ import annotations

from trainmaster.core.codes import SUPERSEDED, WORDS
from trainmaster.engine import nodes, reports
from trainmaster.engine.lifecycle import LIVE
from trainmaster.engine.state import State
from trainmaster.model import event as ev
from trainmaster.model.command import Stop
from trainmaster.model.job import JobId, P


def taken(state: State, event: ev.Inventory) -> None:
    """Believe the backend where it can know: what it lists is there, what it should list is not."""
    for node in sorted(event.nodes):
        if not state.up[node]:
            state.set_up(node, True)
            state.changed = True
    listed: set[JobId] = set()
    for entry in event.entries:
        slot = state.current(entry.job_id, entry.generation)
        if slot is None:
            _stray(state, entry)
            continue
        listed.add(entry.job_id)
        _reconcile(state, slot, entry, event)
    last_seq = state.columns.ints["last_seq"]
    for slot in state.holders():
        if state.columns.spec(slot).id not in listed and last_seq[slot] <= event.seen_up_to:
            _absent(state, slot, event)


def _absent(state: State, slot: int, event: ev.Inventory) -> None:
    """No node that could be asked knows of it: there it has ended (or never began)."""
    asked = [part.node for part in state.holding(slot).parts if part.node in event.nodes]
    if asked:
        nodes.ended_there(state, slot, asked)


def _stray(state: State, entry: ev.Observed) -> None:
    """An incarnation that is over for us but still runs: end it."""
    slot = state.columns.slot_of.get(entry.job_id)
    if slot is None and entry.job_id not in state.known:
        return  # not ours
    newer = slot is not None and entry.generation > state.columns.ints["generation"][slot]
    if entry.exit_code is None and not entry.stopped and not newer:
        state.seq += 1
        state.commands.add_other(Stop(entry.job_id, entry.generation, state.seq, WORDS[SUPERSEDED]))


def _reconcile(state: State, slot: int, entry: ev.Observed, event: ev.Inventory) -> None:
    job_id, generation = entry.job_id, entry.generation
    if entry.exit_code is not None:
        reports.exited(state, ev.Exited(job_id, generation, entry.exit_code, entry.work))
        return
    if entry.stopped:
        if entry.work == entry.work:
            state.columns.floats["work_saved"][slot] = entry.work
        _absent(state, slot, event)
        return
    phase = int(state.columns.ints["phase"][slot])
    assert phase in LIVE
    measured = entry.work == entry.work
    work = entry.work if measured else float(state.columns.floats["work_saved"][slot])
    if phase == P.LAUNCHING and not entry.starting:
        reports.started(state, ev.Started(job_id, generation, work, state.now_ms))
    elif phase == P.RESIZING:
        ints = state.columns.ints
        seq = ints["pending_seq"].item(slot)
        if ints["pending_kind"][slot] and entry.allocation_seq >= seq:
            reports.resized(state, ev.Resized(job_id, generation, seq, work, state.now_ms))
    elif phase == P.RUNNING and measured:
        reports.progressed(state, ev.Progressed(job_id, generation, entry.work, state.now_ms))

"""From decisions to commands: a launch or growth is sent only when its devices are physically free."""

from __future__ import annotations

from trainmaster.engine import transitions
from trainmaster.engine.lifecycle import T
from trainmaster.engine.state import State
from trainmaster.model.allocation import Allocation, only_share_differs
from trainmaster.model.command import Command, Launch, Resize, Stop
from trainmaster.model.job import JobSpec, P
from trainmaster.model.ledger import union
from trainmaster.model.units import NEVER_MS


def send(state: State, slot: int, command: Command) -> None:
    """Issue a command; it is sent again until it is answered."""
    state.commands.append(command)
    state.outstanding[slot] = (command, state.now_ms)
    state.last_seq[slot] = command.seq
    state.next_resend_ms = min(state.next_resend_ms, state.now_ms + state.settings.resend_ms)


def next_seq(state: State) -> int:
    state.seq += 1
    return state.seq


def resend(state: State) -> None:
    """Send again what has waited too long for an answer."""
    due = state.now_ms - state.settings.resend_ms
    state.next_resend_ms = NEVER_MS
    for slot, (command, sent_ms) in sorted(state.outstanding.items(), key=lambda item: item[1][0].seq):
        if sent_ms <= due:
            state.commands.append(command)
            sent_ms = state.now_ms
            state.outstanding[slot] = (command, sent_ms)
        state.next_resend_ms = min(state.next_resend_ms, sent_ms + state.settings.resend_ms)


def carry_out(state: State, slot: int, allocation: Allocation | None) -> None:
    """Turn one verified change into a reservation, resize or stop. The planned ledger is up to date."""
    columns = state.columns
    phase = int(columns.ints["phase"][slot])
    if allocation is None:
        transitions.set_allocation(state, slot, None)
        if phase == P.RESERVED:
            state.reserved.remove(slot)
            transitions.move(state, slot, T.UNRESERVE)
        else:
            columns.ints["preemptions"][slot] += 1
            stop(state, slot, P.PENDING, "preempted")
    elif phase == P.PENDING:
        transitions.set_allocation(state, slot, allocation)
        transitions.move(state, slot, T.RESERVE)
        state.reserved.append(slot)
    elif phase == P.RESERVED:
        transitions.set_allocation(state, slot, allocation)
    elif in_place(columns.spec(slot), columns.allocations[slot], allocation):
        resize(state, slot, allocation)
    else:
        _relocate(state, slot, allocation)


def in_place(spec: JobSpec, old: Allocation | None, new: Allocation) -> bool:
    """Whether a running job can be brought to its new allocation without stopping it."""
    if old is None or old.accelerator != new.accelerator:
        return False
    if old.share_milli != new.share_milli:
        return only_share_differs(old, new)
    if not spec.elastic:
        return False
    before = {(part.node, device) for part in old.parts for device in part.devices}
    return any((part.node, device) in before for part in new.parts for device in part.devices)


def _relocate(state: State, slot: int, allocation: Allocation) -> None:
    state.columns.ints["preemptions"][slot] += 1
    transitions.set_allocation(state, slot, allocation)
    stop(state, slot, P.RESERVED, "moved")


def launch_reserved(state: State) -> None:
    """Send the launches whose devices are physically free, in the order of reservation."""
    columns, ints = state.columns, state.columns.ints
    waiting = []
    for slot in state.reserved:
        allocation = columns.allocations[slot]
        spec = columns.spec(slot)
        assert allocation is not None
        if not fits_physically(state, allocation, spec) or not _reachable(state, allocation):
            waiting.append(slot)
            continue
        state.physical.take(allocation, spec.worker, spec.server)
        state.held[slot] = allocation
        ints["generation"][slot] += 1
        ints["attempts"][slot] += 1
        transitions.move(state, slot, T.LAUNCH)
        send(state, slot, Launch(spec.id, int(ints["generation"][slot]), next_seq(state), allocation, spec))
    state.reserved = waiting


def fits_physically(state: State, allocation: Allocation, spec: JobSpec) -> bool:
    """Whether no process that may still live is in the way."""
    return state.physical.fits(allocation, spec.worker, spec.server)


def _reachable(state: State, allocation: Allocation) -> bool:
    up = state.up
    for part in allocation.parts:  # noqa: SIM110 - the hot path; a generator costs more than the loop
        if not up[part.node]:
            return False
    return True


def resize(state: State, slot: int, allocation: Allocation) -> None:
    """Bring a running gang to this allocation without stopping it. The planned ledger is up to date."""
    spec = state.columns.spec(slot)
    both = union(state.held[slot], allocation)
    state.physical.give(state.held[slot], spec.worker, spec.server)
    if not fits_physically(state, both, spec):
        # The devices it grows onto are still being freed: stay as it is, the next decision tries again.
        state.physical.take(state.held[slot], spec.worker, spec.server)
        present = state.columns.allocations[slot]
        assert present is not None
        state.planned.give(allocation, spec.worker, spec.server)
        if state.planned.fits(present, spec.worker, spec.server):
            state.planned.take(present, spec.worker, spec.server)
            state.changed = True
            return
        # What it was to leave has been given to others in the same plan: it must go, by a restart.
        state.planned.take(allocation, spec.worker, spec.server)
        _relocate(state, slot, allocation)
        return
    state.physical.take(both, spec.worker, spec.server)
    state.held[slot] = both
    transitions.set_allocation(state, slot, allocation)
    transitions.move(state, slot, T.RESIZE)
    generation = int(state.columns.ints["generation"][slot])
    send(state, slot, Resize(spec.id, generation, next_seq(state), allocation))


def stop(state: State, slot: int, after: int, why: str) -> None:
    """Ask a live incarnation to end; `after` is the phase the job shall have then."""
    ints = state.columns.ints
    ints["after_stop"][slot] = after
    state.columns.settle(slot, state.now_ms)
    if int(ints["phase"][slot]) not in (P.STOPPING, P.LOST):
        transitions.move(state, slot, T.STOP)
        send_stop(state, slot, why)


def send_stop(state: State, slot: int, why: str) -> None:
    generation = int(state.columns.ints["generation"][slot])
    send(state, slot, Stop(state.columns.spec(slot).id, generation, next_seq(state), why))

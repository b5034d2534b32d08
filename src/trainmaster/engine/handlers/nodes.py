"""Nodes that come and go, and the leases of what ran on them.

One rule decides when a job may run elsewhere: each member of its attempt has certainly ended. That is
known node by node (`State.ended_on`): the node was asked, its power is off, or the lease has run out.
"""

from __future__ import annotations

from collections.abc import Iterable

from trainmaster.core.codes import NODE_LOST
from trainmaster.core.engine.engine_core import drop_allocation, gone, move, send, unreserve, wanted
from trainmaster.core.state.message_kinds import STOP
from trainmaster.core.state.packed_allocation import is_on
from trainmaster.engine.lifecycle import Trigger
from trainmaster.engine.state import State
from trainmaster.model import event as ev
from trainmaster.model.job import PhaseCode
from trainmaster.model.units import NEVER_MS


def joined(state: State, event: ev.NodeJoined) -> None:
    if not state.up[event.node]:
        state.set_up(event.node, True)
        state.changed = True


def lost(state: State, event: ev.NodeLost) -> None:
    """The node takes no more launches; what ran on it is over, now or when its lease has run out."""
    node = event.node
    if state.up[node]:
        state.set_up(node, False)
        state.changed = True
        _withdraw_plans(state, node)
    columns = state.columns
    for job_index in state.holders():
        if not is_on(columns.physical, job_index * columns.width, node):
            continue
        if columns.ints["last_seq"][job_index] > event.seen_up_to:
            continue
        if node in state.ended_on.get(job_index, ()):
            continue
        if event.confirmed:
            ended_there(state, job_index, [node])
        else:
            _doubt(state, job_index, node, event.last_renewed_ms)


def _withdraw_plans(state: State, node: int) -> None:
    """Reservations and moves onto a node that is gone."""
    columns, reserved = state.columns, state.reserved
    for job_index in [reserved.values[k] for k in range(reserved.n)]:
        if is_on(columns.allocation, job_index * columns.width, node):
            unreserve(state, job_index)
            drop_allocation(state, job_index)
            move(state, job_index, Trigger.UNRESERVE)
    for job_index in state.holders():
        moving = wanted(state, job_index) == PhaseCode.RESERVED
        if moving and is_on(columns.allocation, job_index * columns.width, node):
            drop_allocation(state, job_index)
            columns.ints["after_stop"][job_index] = PhaseCode.PENDING


def _doubt(state: State, job_index: int, node: int, last_renewed_ms: int) -> None:
    """Members may live on there until their lease has certainly run out."""
    end_ms = NEVER_MS
    if state.columns.spec(job_index).leased:
        end_ms = state.settings.lease.certainly_over_ms(min(last_renewed_ms, state.now_ms))
    doubts = state.doubts.setdefault(job_index, {})
    doubts[node] = min(end_ms, doubts.get(node, end_ms))
    _lose(state, job_index)


def ended_there(state: State, job_index: int, nodes: Iterable[int]) -> None:
    """The members of the attempt on these nodes have certainly ended."""
    ended = state.ended_on.setdefault(job_index, set())
    ended.update(nodes)
    doubts = state.doubts.get(job_index)
    if doubts is not None:
        for node in sorted(ended & doubts.keys()):
            del doubts[node]
        if not doubts:
            del state.doubts[job_index]
    if all(part.node in ended for part in state.holding(job_index).parts):
        gone(state, job_index, float(state.columns.floats["work_saved"][job_index]))
    elif ended:
        _lose(state, job_index)
    else:
        del state.ended_on[job_index]


def _lose(state: State, job_index: int) -> None:
    """A gang that is not whole is of no use: the members that can be reached are told to stop."""
    ints = state.columns.ints
    if int(ints["phase"][job_index]) == PhaseCode.LOST:
        return
    # A move becomes a requeue; a wish of the user (pause, cancel) stays.
    after = wanted(state, job_index)
    ints["after_stop"][job_index] = PhaseCode.PENDING if after == PhaseCode.RESERVED else after
    drop_allocation(state, job_index)
    move(state, job_index, Trigger.LOSE)
    state.changed = True
    if ints["pending_kind"][job_index] != STOP:
        send(state, job_index, STOP, NODE_LOST, state.columns.physical, -1)


def expire_leases(state: State) -> None:
    for job_index in state.by_arrival(state.doubts):
        over = [node for node, end_ms in sorted(state.doubts[job_index].items()) if end_ms <= state.now_ms]
        if over:
            ended_there(state, job_index, over)


def next_lease_end_ms(state: State) -> int:
    return min(min(doubts.values()) for doubts in state.doubts.values())

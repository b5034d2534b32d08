"""Nodes that come and go, and the leases of what ran on them.

One rule decides when a job may run elsewhere: each member of its incarnation has certainly ended. That is
known node by node (`State.ended_on`): the node was asked, its power is off, or the lease has run out.
"""

from __future__ import annotations

from collections.abc import Iterable

from trainmaster.core.codes import NODE_LOST
from trainmaster.core.engine_core import drop_allocation, gone, move, send, unreserve, wanted
from trainmaster.core.message_kinds import STOP
from trainmaster.core.packed import is_on
from trainmaster.engine.lifecycle import T
from trainmaster.engine.state import State
from trainmaster.model import event as ev
from trainmaster.model.job import P
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
    for slot in state.holders():
        if not is_on(columns.physical, slot * columns.width, node):
            continue
        if columns.ints["last_seq"][slot] > event.seen_up_to:
            continue
        if node in state.ended_on.get(slot, ()):
            continue
        if event.confirmed:
            ended_there(state, slot, [node])
        else:
            _doubt(state, slot, node, event.last_renewed_ms)


def _withdraw_plans(state: State, node: int) -> None:
    """Reservations and moves onto a node that is gone."""
    columns, reserved = state.columns, state.reserved
    for slot in [reserved.values[k] for k in range(reserved.n)]:
        if is_on(columns.allocation, slot * columns.width, node):
            unreserve(state, slot)
            drop_allocation(state, slot)
            move(state, slot, T.UNRESERVE)
    for slot in state.holders():
        moving = wanted(state, slot) == P.RESERVED
        if moving and is_on(columns.allocation, slot * columns.width, node):
            drop_allocation(state, slot)
            columns.ints["after_stop"][slot] = P.PENDING


def _doubt(state: State, slot: int, node: int, last_renewed_ms: int) -> None:
    """Members may live on there until their lease has certainly run out."""
    end_ms = NEVER_MS
    if state.columns.spec(slot).leased:
        end_ms = state.settings.lease.certainly_over_ms(min(last_renewed_ms, state.now_ms))
    doubts = state.doubts.setdefault(slot, {})
    doubts[node] = min(end_ms, doubts.get(node, end_ms))
    _lose(state, slot)


def ended_there(state: State, slot: int, nodes: Iterable[int]) -> None:
    """The members of the incarnation on these nodes have certainly ended."""
    ended = state.ended_on.setdefault(slot, set())
    ended.update(nodes)
    doubts = state.doubts.get(slot)
    if doubts is not None:
        for node in sorted(ended & doubts.keys()):
            del doubts[node]
        if not doubts:
            del state.doubts[slot]
    if all(part.node in ended for part in state.holding(slot).parts):
        gone(state, slot, float(state.columns.floats["work_saved"][slot]))
    elif ended:
        _lose(state, slot)
    else:
        del state.ended_on[slot]


def _lose(state: State, slot: int) -> None:
    """A gang that is not whole is of no use: the members that can be reached are told to stop."""
    ints = state.columns.ints
    if int(ints["phase"][slot]) == P.LOST:
        return
    # A move becomes a requeue; a wish of the user (pause, cancel) stays.
    after = wanted(state, slot)
    ints["after_stop"][slot] = P.PENDING if after == P.RESERVED else after
    drop_allocation(state, slot)
    move(state, slot, T.LOSE)
    state.changed = True
    if ints["pending_kind"][slot] != STOP:
        send(state, slot, STOP, NODE_LOST, state.columns.physical, -1)


def expire_leases(state: State) -> None:
    for slot in state.by_arrival(state.doubts):
        over = [node for node, end_ms in sorted(state.doubts[slot].items()) if end_ms <= state.now_ms]
        if over:
            ended_there(state, slot, over)


def next_lease_end_ms(state: State) -> int:
    return min(min(doubts.values()) for doubts in state.doubts.values())

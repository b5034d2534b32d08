"""A job's life as a table: which phase follows which, on what. Anything not listed is a fault."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from trainmaster.core.codes import N_TRIGGERS, PHASES, TRIGGERS
from trainmaster.core.engine_core import IllegalTransition
from trainmaster.model.job import P


class Trigger(IntEnum):
    RESERVE = 0
    """The plan gives it devices."""
    UNRESERVE = 1
    """The plan takes them back before the launch was sent."""
    LAUNCH = 2
    STARTED = 3
    RESIZE = 4
    RESIZED = 5
    STOP = 6
    LOSE = 7
    """A node of its gang is gone: the incarnation is over as soon as all its members certainly are."""
    REQUEUE = 8
    """It ended without having finished, and waits again."""
    MOVE = 9
    """It ended in order to be launched elsewhere."""
    FINISH = 10
    GIVE_UP = 11
    REJECT = 12
    CANCEL = 13
    PAUSE = 14
    RESUME = 15


T = Trigger


_ENDS = {T.REQUEUE: P.PENDING, T.FINISH: P.FINISHED, T.GIVE_UP: P.FAILED}
_LIVE = {**_ENDS, T.STOP: P.STOPPING, T.LOSE: P.LOST}

TABLE: dict[int, dict[Trigger, int]] = {
    P.PENDING: {
        T.RESERVE: P.RESERVED,
        T.REJECT: P.REJECTED,
        T.CANCEL: P.CANCELLED,
        T.PAUSE: P.PAUSED,
        T.GIVE_UP: P.FAILED,
    },
    P.RESERVED: {
        T.UNRESERVE: P.PENDING,
        T.LAUNCH: P.LAUNCHING,
        T.CANCEL: P.CANCELLED,
        T.PAUSE: P.PAUSED,
    },
    P.LAUNCHING: {**_LIVE, T.STARTED: P.RUNNING},
    P.RUNNING: {**_LIVE, T.RESIZE: P.RESIZING},
    P.RESIZING: {**_LIVE, T.RESIZED: P.RUNNING},
    P.STOPPING: {**_ENDS, T.MOVE: P.RESERVED, T.PAUSE: P.PAUSED, T.CANCEL: P.CANCELLED, T.LOSE: P.LOST},
    P.LOST: {**_ENDS, T.PAUSE: P.PAUSED, T.CANCEL: P.CANCELLED},
    P.PAUSED: {T.RESUME: P.PENDING, T.CANCEL: P.CANCELLED},
    P.FINISHED: {},
    P.FAILED: {},
    P.CANCELLED: {},
    P.REJECTED: {},
}
LIVE = frozenset({P.LAUNCHING, P.RUNNING, P.RESIZING, P.STOPPING, P.LOST})
"""Phases in which processes of the job may exist."""


NEXT_PHASE = np.full(len(TABLE) * N_TRIGGERS, -1, np.int64)
"""The table as a matrix, phase by phase; -1: not possible."""
for _phase, _moves in TABLE.items():
    for _trigger, _next in _moves.items():
        NEXT_PHASE[_phase * N_TRIGGERS + _trigger] = _next


def next_phase(phase: int, trigger: Trigger) -> int:
    try:
        return TABLE[phase][trigger]
    except KeyError:
        raise IllegalTransition(f"'{TRIGGERS[trigger]}' is not possible in phase {PHASES[phase]}") from None

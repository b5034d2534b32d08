"""A job's life as a table: which phase follows which, on what. Anything not listed is a fault."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from trainmaster.core.codes import N_TRIGGERS, PHASES, TRIGGERS
from trainmaster.core.engine.engine_core import IllegalTransition
from trainmaster.model.job import PhaseCode


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
    """A node of its gang is gone: the attempt is over as soon as all its members certainly are."""
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


_ENDS = {Trigger.REQUEUE: PhaseCode.PENDING, Trigger.FINISH: PhaseCode.FINISHED, Trigger.GIVE_UP: PhaseCode.FAILED}
_LIVE = {**_ENDS, Trigger.STOP: PhaseCode.STOPPING, Trigger.LOSE: PhaseCode.LOST}

TABLE: dict[int, dict[Trigger, int]] = {
    PhaseCode.PENDING: {
        Trigger.RESERVE: PhaseCode.RESERVED,
        Trigger.REJECT: PhaseCode.REJECTED,
        Trigger.CANCEL: PhaseCode.CANCELLED,
        Trigger.PAUSE: PhaseCode.PAUSED,
        Trigger.GIVE_UP: PhaseCode.FAILED,
    },
    PhaseCode.RESERVED: {
        Trigger.UNRESERVE: PhaseCode.PENDING,
        Trigger.LAUNCH: PhaseCode.LAUNCHING,
        Trigger.CANCEL: PhaseCode.CANCELLED,
        Trigger.PAUSE: PhaseCode.PAUSED,
    },
    PhaseCode.LAUNCHING: {**_LIVE, Trigger.STARTED: PhaseCode.RUNNING},
    PhaseCode.RUNNING: {**_LIVE, Trigger.RESIZE: PhaseCode.RESIZING},
    PhaseCode.RESIZING: {**_LIVE, Trigger.RESIZED: PhaseCode.RUNNING},
    PhaseCode.STOPPING: {
        **_ENDS,
        Trigger.MOVE: PhaseCode.RESERVED,
        Trigger.PAUSE: PhaseCode.PAUSED,
        Trigger.CANCEL: PhaseCode.CANCELLED,
        Trigger.LOSE: PhaseCode.LOST,
    },
    PhaseCode.LOST: {**_ENDS, Trigger.PAUSE: PhaseCode.PAUSED, Trigger.CANCEL: PhaseCode.CANCELLED},
    PhaseCode.PAUSED: {Trigger.RESUME: PhaseCode.PENDING, Trigger.CANCEL: PhaseCode.CANCELLED},
    PhaseCode.FINISHED: {},
    PhaseCode.FAILED: {},
    PhaseCode.CANCELLED: {},
    PhaseCode.REJECTED: {},
}
LIVE = frozenset({PhaseCode.LAUNCHING, PhaseCode.RUNNING, PhaseCode.RESIZING, PhaseCode.STOPPING, PhaseCode.LOST})
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

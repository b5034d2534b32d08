"""A job's life as a table: which phase follows which, on what. Anything not listed is a fault."""

from __future__ import annotations

from enum import StrEnum

from trainmaster.model.job import P, Phase


class Trigger(StrEnum):
    RESERVE = "reserve"
    """The plan gives it devices."""
    UNRESERVE = "unreserve"
    """The plan takes them back before the launch was sent."""
    LAUNCH = "launch"
    STARTED = "started"
    RESIZE = "resize"
    RESIZED = "resized"
    STOP = "stop"
    LOSE = "lose"
    """A node of its gang is gone: the incarnation is over as soon as all its members certainly are."""
    REQUEUE = "requeue"
    """It ended without having finished, and waits again."""
    MOVE = "move"
    """It ended in order to be launched elsewhere."""
    FINISH = "finish"
    GIVE_UP = "give-up"
    REJECT = "reject"
    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"


class T:
    """The triggers as plain attributes (see `trainmaster.model.job.P`)."""

    RESERVE = Trigger.RESERVE
    UNRESERVE = Trigger.UNRESERVE
    LAUNCH = Trigger.LAUNCH
    STARTED = Trigger.STARTED
    RESIZE = Trigger.RESIZE
    RESIZED = Trigger.RESIZED
    STOP = Trigger.STOP
    LOSE = Trigger.LOSE
    REQUEUE = Trigger.REQUEUE
    MOVE = Trigger.MOVE
    FINISH = Trigger.FINISH
    GIVE_UP = Trigger.GIVE_UP
    REJECT = Trigger.REJECT
    CANCEL = Trigger.CANCEL
    PAUSE = Trigger.PAUSE
    RESUME = Trigger.RESUME


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


class IllegalTransition(AssertionError):
    """A fault of the engine, never of a user."""


def next_phase(phase: int, trigger: Trigger) -> int:
    try:
        return TABLE[phase][trigger]
    except KeyError:
        raise IllegalTransition(f"'{trigger}' is not possible in phase {Phase(phase).name}") from None

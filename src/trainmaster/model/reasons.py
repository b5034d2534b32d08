"""Why a job waits, or was refused: typed. `model.reason_text` renders it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from trainmaster.model.job import JobId, Phase


class Why(IntEnum):
    NONE = 0
    CAPACITY = 1
    """Fewer GPUs are free than the smallest size needs."""
    BEHIND = 2
    """An earlier job waits, and the policy keeps the order."""
    SHAPE = 3
    """Enough GPUs are free, but not where the gang could use them."""
    OUTRANKED = 4
    """The policy gives the GPUs to others for now."""
    NEXT_ROUND = 5
    """Decisions are made at round boundaries."""
    BACKOFF = 6
    """It failed and is tried again later."""
    STARTING = 7
    """It has its devices; they are being freed or the gang is starting."""
    NO_NODE = 8
    """No node that could take it is up."""
    NEVER_FITS = 9
    """It asks for more than the cluster has."""
    PAUSED = 10
    LOST_NODE = 11
    """Its node is cut off: it is started elsewhere once its lease has certainly run out."""
    PRICE = 12
    """The resources cost more than the job is worth (its payoff is not positive)."""
    DEADLINE = 13
    """Its deadline cannot be promised."""
    QUOTA = 14
    DEPENDENCY = 15
    SHARE = 16
    """It has had its share of time; its turn comes again."""
    RESIZING = 17
    STOPPING = 18
    """Its processes are being ended; what comes then is decided already, or at the next decision."""
    SCHEDULED = 24
    """It was promised later time slots; the details say when the next one begins."""
    PRIORITY = 25
    """Jobs of a higher priority have the GPUs, or wait for them; the details name their band."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why, what is short, and who holds it.

    `free` are GPUs by accelerator type and `holders` (job, GPUs), most first, on the nodes that the job may use;
    `missing` is what its size lacks of the type of which most are free.
    """

    why: Why
    needs_gpus: float = 0.0
    free: Mapping[str, float] = field(default_factory=dict)
    holders: tuple[tuple[JobId, float], ...] = ()
    missing_gpus: float = 0.0
    missing_type: str = ""
    behind: JobId | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


MAX_HOLDERS = 5


def size_short_of(why: Why, sizes: tuple[int, int], gpus_each: float, most_free: float) -> float:
    """GPUs of the size that a job waits for: its smallest, or, if that would fit and the policy still keeps it
    waiting, the one it asks for (`sizes` are these two)."""
    least, ask = sizes
    waits_for_more = why == Why.CAPACITY and least * gpus_each <= most_free < ask * gpus_each
    return (ask if waits_for_more else least) * gpus_each


def why_phase(phase: int) -> Why:
    """Reasons that follow from the phase alone."""
    return {
        Phase.RESERVED: Why.STARTING,
        Phase.LAUNCHING: Why.STARTING,
        Phase.PAUSED: Why.PAUSED,
        Phase.LOST: Why.LOST_NODE,
        Phase.STOPPING: Why.STOPPING,
        Phase.RESIZING: Why.RESIZING,
    }.get(Phase(phase), Why.NONE)

"""Why a job waits (or was refused): typed here, rendered as text only at the edge."""

from __future__ import annotations

import math
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
    """No node of an acceptable type is up."""
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
    SCHEDULED = 24
    """It was promised later slots; the details say when the next one begins."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why, what is short, who holds it, and the smallest change that would help.

    `needs` and `free` are GPUs by accelerator type; `holders` are (job, GPUs) on the acceptable types,
    most first; `missing` is the smallest number of GPUs of one type that would start the job now.
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


def size_short_of(why: Why, sizes: tuple[int, int], gpus_each: float, most_free: float) -> tuple[float, dict[str, Any]]:
    """GPUs of the size that a job waits for: its smallest, or, if that would fit and the policy still keeps it
    waiting, the one it asks for (`sizes` are these two). Then with the number of workers that would fit."""
    least, ask = sizes
    if why == Why.CAPACITY and least * gpus_each <= most_free < ask * gpus_each:
        return ask * gpus_each, {"workers_that_fit": int(most_free // gpus_each)}
    return least * gpus_each, {}


def why_phase(phase: int) -> Why:
    """Reasons that follow from the phase alone."""
    return {
        Phase.RESERVED: Why.STARTING,
        Phase.LAUNCHING: Why.STARTING,
        Phase.PAUSED: Why.PAUSED,
        Phase.LOST: Why.LOST_NODE,
        Phase.STOPPING: Why.STARTING,
    }.get(Phase(phase), Why.NONE)


def _gpus(amount: float) -> str:
    number = f"{amount:g}"
    return f"{number} GPU" if number == "1" else f"{number} GPUs"


def render(reason: Reason) -> str:
    """One sentence for people."""
    free = ", ".join(f"{amount:g} {name}" for name, amount in sorted(reason.free.items())) or "none"
    held = ", ".join(f"{job} ({gpus:g})" for job, gpus in reason.holders)
    held = f"; held by {held}" if held else ""
    needs = f"needs {_gpus(reason.needs_gpus)}"
    match reason.why:
        case Why.NONE:
            return ""
        case Why.CAPACITY:
            more = f"{_gpus(reason.missing_gpus)} more of {reason.missing_type}"
            return f"{needs}; free: {free}{held}; would start with {more}"
        case Why.BEHIND:
            return f"{needs}; kept in order behind {reason.behind}; free: {free}"
        case Why.SHAPE:
            return f"{needs}; {free} free, but not together where the gang fits"
        case Why.OUTRANKED:
            return f"{needs}; others come first under this policy{held}"
        case Why.SHARE:
            return f"{needs}; has had its share for now{held}"
        case Why.NEXT_ROUND:
            return f"{needs}; decided at the next round"
        case Why.BACKOFF:
            return "failed; tried again after a pause"
        case Why.STARTING:
            return "has its devices and is starting"
        case Why.NO_NODE:
            return f"{needs}; no node of an acceptable type is up"
        case Why.NEVER_FITS:
            return f"{needs}, more than the cluster can ever give"
        case Why.PAUSED:
            return "paused by its user"
        case Why.LOST_NODE:
            return "its node is cut off; it starts elsewhere when its lease has run out"
        case Why.RESIZING:
            return "is being resized"
        case Why.SCHEDULED:
            facts = {key.removesuffix("_s").replace("_", " "): at_s for key, at_s in reason.details.items()}
            times = ", ".join(f"{name} at {at_s:g} s" for name, at_s in sorted(facts.items()))
            return f"{needs}; admitted and scheduled: {times}"
        case Why.DEADLINE if "fault" in reason.details:
            return deadline_refusal(reason.details)
        case Why.PRICE if "price_factor" in reason.details:
            return _price_refusal(reason.details)
        case _:
            facts = ", ".join(f"{key} {value}" for key, value in sorted(reason.details.items()))
            return f"{reason.why.name.lower()}: {facts}" if facts else reason.why.name.lower()


def deadline_refusal(facts: Mapping[str, Any]) -> str:
    """Why a deadline is not promised, the earliest that could be, and what this one would take."""
    parts = [f"its deadline cannot be promised: {facts['fault']}"]
    earliest_s = facts.get("earliest_deadline_s")
    if earliest_s is not None:
        size = f"{facts['with_workers']} worker{'' if facts['with_workers'] == 1 else 's'} of {facts['with_type']}"
        later_s = earliest_s - facts["deadline_s"]
        when = f"{_span(later_s)} later" if later_s > 0 else "as asked"  # room was found since it was asked
        parts.append(f"the earliest that could be is {when}, with {size}")
    elif "earliest_deadline_s" in facts:
        parts.append("no deadline can be promised on the nodes that are up")
    ways = []
    if "more_gpus" in facts:
        ways.append(f"{_gpus(facts['more_gpus'])} more of {facts['more_type']}")
    if "slack_of" in facts:
        ways.append(f"some of the {_span(facts['slack_s'])} that {facts['slack_of']} has to spare")
    if "weight_needed" in facts:
        ways.append(f"a weight of {facts['weight_needed']:g}")
    if ways:
        parts.append(f"it would take {' or '.join(ways)}")
    if "remedy" in facts:
        parts.append(str(facts["remedy"]))
    return "; ".join(parts)


def _price_refusal(facts: Mapping[str, Any]) -> str:
    """What a job turned away by prices lacks, and the smallest change that would have let it in."""
    payoff, factor, lateness_s = facts.get("payoff"), facts["price_factor"], facts.get("lateness_s")
    lacks = "" if payoff is None else f" (payoff {payoff:.4g})"
    ways = []
    if factor:
        ways.append(f"prices below {factor:.3g} of what they are")
    if lateness_s is not None:
        ways.append(f"a worth that lasts {_span(lateness_s)} longer")
    told = f"; it would be let in by {' or '.join(ways)}" if ways else "; no later end would help"
    return f"what it needs costs more than it is worth{lacks}{told}"


def _span(seconds: float) -> str:
    """A length of time in its two largest units."""
    whole = math.ceil(seconds)
    for unit_s, name, part_s, part in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= unit_s:
            return f"{whole // unit_s}{name}{whole % unit_s // part_s:02d}{part}"
    return f"{whole}s"

"""Reasons in words: the sentence, and the short form beside a table of figures.

The only place that renders a `Reason`: API, events, Kubernetes status and command line all use it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trainmaster.model.reasons import Reason, Why

_SUMMARY = {
    Why.NONE: "",
    Why.CAPACITY: "too few GPUs are free",
    Why.BEHIND: "an earlier job waits, and the policy keeps the order",
    Why.SHAPE: "enough GPUs are free, but not where it could use them together",
    Why.OUTRANKED: "the policy gives the GPUs to others for now",
    Why.NEXT_ROUND: "the policy decides at the next round",
    Why.BACKOFF: "failed; tried again after a pause",
    Why.STARTING: "has its devices and is starting",
    Why.NO_NODE: "no node of an acceptable type is up",
    Why.NEVER_FITS: "needs more than the cluster can ever give",
    Why.PAUSED: "paused by its user",
    Why.LOST_NODE: "its node is cut off; it starts elsewhere when its lease has run out",
    Why.PRICE: "what it needs costs more than it is worth",
    Why.DEADLINE: "its deadline cannot be promised",
    Why.QUOTA: "its team uses all of its quota",
    Why.DEPENDENCY: "waits for other jobs to finish",
    Why.SHARE: "it has had its share for now; its turn comes again",
    Why.RESIZING: "is being resized",
    Why.STOPPING: "is being stopped",
    Why.SCHEDULED: "admitted and scheduled for later",
    Why.PRIORITY: "jobs of a higher priority come first",
}
"""Without figures."""
_FIGURES_APART = (Why.CAPACITY, Why.BEHIND, Why.SHAPE, Why.OUTRANKED, Why.SHARE, Why.NEXT_ROUND)


def summary(why: str) -> str:
    """For a reader who sees the figures beside it; empty where the sentence has to be read as a whole."""
    return next((_SUMMARY[kind] for kind in _FIGURES_APART if kind.name.lower() == why), "")


def sentence(reason: Reason | None) -> str:
    """All of it in one sentence."""
    if reason is None or reason.why == Why.NONE:
        return ""
    free = ", ".join(f"{amount:g} {name}" for name, amount in sorted(reason.free.items())) or "none"
    held = ", ".join(f"{job} ({gpus:g})" for job, gpus in reason.holders)
    held = f"; held by {held}" if held else ""
    needs, facts = f"needs {_gpus(reason.needs_gpus)}", reason.details
    match reason.why:
        case Why.CAPACITY:
            short = f"; short of {_gpus(reason.missing_gpus)} of {reason.missing_type}" if reason.missing_gpus else ""
            return f"{needs}; free: {free}{held}{short}"
        case Why.BEHIND:
            return f"{needs}; kept in order behind {reason.behind}; free: {free}"
        case Why.SHAPE:
            return f"{needs}; {free} free, but not together where the gang fits"
        case Why.OUTRANKED:
            return f"{needs}; others come first under this policy{held}"
        case Why.PRIORITY if "priority" in facts:
            ahead = f"{reason.behind} of " if reason.behind else "jobs of "
            return f"{needs}; {ahead}priority {facts['priority']} come{'s' if reason.behind else ''} first{held}"
        case Why.SHARE:
            return f"{needs}; has had its share for now{held}"
        case Why.NEXT_ROUND:
            return f"{needs}; decided at the next round"
        case Why.NO_NODE if "lacks" in facts:
            return f"{facts['lacks']}; it starts when there are nodes that can take it, and keeps nobody waiting"
        case Why.NO_NODE:
            return f"{needs}; {_SUMMARY[Why.NO_NODE]}"
        case Why.NEVER_FITS:
            return f"{needs}, more than the cluster can ever give"
        case Why.SCHEDULED:
            times = {key.removesuffix("_s").replace("_", " "): at_s for key, at_s in facts.items()}
            at = ", ".join(f"{name} at {at_s:g} s" for name, at_s in sorted(times.items()))
            return f"{needs}; admitted and scheduled: {at}"
        case Why.DEPENDENCY if "after" in facts:
            return f"waits for {facts['after']} to finish"
        case Why.STARTING | Why.BACKOFF if "slow" in facts:
            return f"{_SUMMARY[reason.why]}: {facts['slow']}"
        case Why.QUOTA if "entity" in facts:
            return f"{needs}; team {facts['entity']} has a quota of {facts['quota_gpus']:g} GPUs at a time"
        case Why.DEADLINE if "fault" in facts:
            return deadline_refusal(facts)
        case Why.PRICE if "price_factor" in facts:
            return _price_refusal(facts)
        case _:
            listed = ", ".join(f"{key} {value}" for key, value in sorted(facts.items()))
            return f"{_SUMMARY[reason.why]}: {listed}" if listed else _SUMMARY[reason.why]


def deadline_refusal(facts: Mapping[str, Any]) -> str:
    """Why a deadline is not promised, the earliest that could be, and what this one would take."""
    parts = [f"its deadline cannot be promised: {facts['fault']}"]
    earliest_s = facts.get("earliest_deadline_s")
    if earliest_s is not None:
        size = f"{facts['with_workers']} worker{'' if facts['with_workers'] == 1 else 's'} of {facts['with_type']}"
        later_s = earliest_s - facts["deadline_s"]
        when = f"{span(later_s)} later" if later_s > 0 else "as asked"  # room was found since it was asked
        parts.append(f"the earliest that could be is {when}, with {size}")
    elif "earliest_deadline_s" in facts:
        parts.append("no deadline can be promised on the nodes that are up")
    ways = []
    if "more_gpus" in facts:
        ways.append(f"{_gpus(facts['more_gpus'])} more of {facts['more_type']}")
    if "slack_of" in facts:
        ways.append(f"some of the {span(facts['slack_s'])} that {facts['slack_of']} has to spare")
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
        ways.append(f"a worth that lasts {span(lateness_s)} longer")
    told = f"; it would be let in by {' or '.join(ways)}" if ways else "; no later end would help"
    return f"what it needs costs more than it is worth{lacks}{told}"


def span(seconds: float) -> str:
    """A length of time in its two largest units."""
    whole = math.ceil(seconds)
    for unit_s, name, part_s, part in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= unit_s:
            return f"{whole // unit_s}{name}{whole % unit_s // part_s:02d}{part}"
    return f"{whole}s"


def _gpus(amount: float) -> str:
    number = f"{amount:g}"
    return f"{number} GPU" if number == "1" else f"{number} GPUs"

"""Shortest job first, and its preemptive form, shortest remaining time first."""

from __future__ import annotations

from dataclasses import dataclass

from trainmaster.model.reasons import Why
from trainmaster.policies.queue_policy import QueuePolicy
from trainmaster.policies.registry import register


@register("sjf")
@dataclass(frozen=True)
class ShortestJobFirst(QueuePolicy):
    """Of the waiting jobs the shortest that fits starts first; what runs is left alone."""

    key = "remaining_s"


@register("srtf")
@dataclass(frozen=True)
class ShortestRemainingTimeFirst(QueuePolicy):
    """Down the list by remaining time, whatever fits runs; the rest is preempted or waits."""

    key, preemptive, default_reason = "remaining_s", True, Why.OUTRANKED

"""What a job of the engine is worth: its own utility, or a default that values GPU time alike for all.

Ages are seconds from submission. Without a utility a job is worth `weight` per GPU-hour of its ideal run
(the size it asks for on its fastest type). It keeps that worth until its deadline, if it has one, or its
ideal completion; then

- hard deadline: nothing;
- otherwise it falls in a straight line to nothing within `patience` ideal runs, at least `patience_s_min`.

So short jobs are not priced out by being short, and long ones are not worth waiting for for ever.
"""

from __future__ import annotations

from trainmaster.model.job import DeadlineKind, JobSpec
from trainmaster.model.units import MS_PER_S, NEVER_MS
from trainmaster.model.utility import Points, Step, Utility, parse_utility

UNKNOWN_WORK_S = 3600.0
"""A job that does not say how long it is, is taken for one with another hour to go."""
SECONDS_PER_HOUR = 3600.0
LEAST_GPUS = 0.01
"""A job without GPUs counts as this many, so that it is worth something."""


def worth_of(spec: JobSpec, ideal_s: float, patience: float, patience_s_min: float) -> Utility:
    """The utility of `spec`, by age in seconds; `ideal_s` is its run time alone at the size asked for."""
    if spec.utility is not None:
        return parse_utility(spec.utility)
    gpu_hours = max(spec.gpus, LEAST_GPUS) * ideal_s / SECONDS_PER_HOUR
    level = max(spec.weight, 0.0) * gpu_hours
    fade_s = max(patience * ideal_s, patience_s_min)
    if spec.deadline_ms >= NEVER_MS or spec.deadline_kind is DeadlineKind.NONE:
        return Points((ideal_s, ideal_s + fade_s), (level, 0.0))
    due_s = max((spec.deadline_ms - spec.submit_ms) / MS_PER_S, 0.0)
    if spec.deadline_kind is DeadlineKind.HARD:
        return Step((due_s,), (level,))
    return Points((due_s, due_s + fade_s), (level, 0.0))

"""What a user wants when a TrainingJob changes: the engine's user events, from the object and the engine's own spec.

Compared with what the engine holds, not with an older object: after a restart there is no older object, and a
change made while nobody watched must still take effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.backends.kubernetes.translate import deadline_of, range_of
from trainmaster.model import event as ev
from trainmaster.model.job import JobSpec

Json = Mapping[str, Any]


def being_deleted(tj: Json) -> bool:
    return bool(tj["metadata"].get("deletionTimestamp"))


def wishes_of(old: Json | None, new: Json, spec: JobSpec, paused: bool, epoch_ms: int) -> list[ev.UserEvent]:
    """Events that bring the engine's `spec` to what `new` says. Raises `InputError` for a change that cannot be.

    `old` is the object as last seen (None: never). `paused`: the engine holds it so, or will; that counts only at first
    sight, since a change that is on its way to the engine has not been carried out. Pausing does nothing twice; going
    on is told only when `suspend` was seen to fall, or at first sight.
    """
    if being_deleted(new):
        return [ev.JobCancelled(spec.id)]
    wanted = new.get("spec") or {}
    events: list[ev.UserEvent] = []
    low, high = range_of(wanted, "workers", 1)
    if (low, high) != (spec.workers_min, spec.workers_max):
        events.append(ev.JobRangeChanged(spec.id, low, high))
    terms = _terms(new, spec, epoch_ms)
    if terms:
        events.append(ev.JobTermsChanged(spec.id, **terms))
    if wanted.get("suspend"):
        if old is not None or not paused:
            events.append(ev.JobPaused(spec.id))
    elif paused if old is None else (old.get("spec") or {}).get("suspend"):
        events.append(ev.JobResumed(spec.id))
    return events


def _terms(new: Json, spec: JobSpec, epoch_ms: int) -> dict[str, Any]:
    wanted = new.get("spec") or {}
    deadline_ms, kind = deadline_of(new, epoch_ms)
    terms: dict[str, Any] = {}
    if (deadline_ms, kind) != (spec.deadline_ms, spec.deadline_kind):
        terms.update(deadline_ms=deadline_ms, deadline_kind=kind)
    for name, default in (("weight", 1), ("priority", 0)):
        value = wanted.get(name, default)
        if value != getattr(spec, name):
            terms[name] = value
    return terms

"""What a user wants when a TrainingJob changes: the engine's user events, from the object and the engine's own spec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.jobspec.diff import spec_diff
from trainmaster.jobspec.reading import training_job_from
from trainmaster.model import event as ev
from trainmaster.model.job import JobSpec

Json = Mapping[str, Any]


def being_deleted(tj: Json) -> bool:
    return bool(tj["metadata"].get("deletionTimestamp"))


def training_job_diff(old: Json | None, new: Json, spec: JobSpec, paused: bool) -> list[ev.UserEvent]:
    """Events that bring the engine's `spec` to what `new` says. Raises `InputError` for a change that cannot be.

    `old` is the object as last seen (None: never). `paused`: the engine holds it so, or will; that counts only at first
    sight, since a change that is on its way to the engine has not been carried out. Pausing does nothing twice; going
    on is told only when `suspend` was seen to fall, or at first sight.
    """
    if being_deleted(new):
        return [ev.JobCancelled(spec.id)]
    fields = training_job_from(new.get("spec") or {})
    events = spec_diff(fields, spec)
    if fields.suspend:
        if old is not None or not paused:
            events.append(ev.JobPaused(spec.id))
    elif paused if old is None else (old.get("spec") or {}).get("suspend"):
        events.append(ev.JobResumed(spec.id))
    return events

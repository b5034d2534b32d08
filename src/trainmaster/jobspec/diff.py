"""The difference between the fields of a job and what the engine holds: events that bring the engine there.

Compared with the engine's own `JobSpec`, not with an older description: a change made while nobody watched must still
take effect. Only fields that may change on a running job are looked at (`model.CHANGEABLE`).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from trainmaster.jobspec.engine import OPEN_SIZE, deadline_of, size_is_open
from trainmaster.jobspec.model import CHANGEABLE, JobFields
from trainmaster.model import event as ev
from trainmaster.model.job import JobSpec

_TERMS = sorted({item.name for item in dataclasses.fields(ev.JobTermsChanged)} & set(CHANGEABLE))


def spec_diff(fields: JobFields, current: JobSpec) -> list[ev.UserEvent]:
    events: list[ev.UserEvent] = []
    is_open = size_is_open(fields) and OPEN_SIZE in current.payload
    present = (current.workers_min, current.workers_max)
    wanted = present if is_open else (fields.workers.min, fields.workers.max)
    servers = (fields.servers.min, fields.servers.max)
    others = None if servers == (current.servers_min, current.servers_max) else servers
    if wanted != present or others is not None:
        events.append(ev.JobRangeChanged(current.id, *wanted, others))
    terms: dict[str, Any] = {}
    deadline_ms, kind = deadline_of(fields, current.submit_ms)
    if (deadline_ms, kind) != (current.deadline_ms, current.deadline_kind):
        terms.update(deadline_ms=deadline_ms, deadline_kind=kind)
    wanted_terms = {key: getattr(fields, key) for key in _TERMS}
    if "priority" not in fields.model_fields_set:  # then that of its PriorityClass holds
        wanted_terms["priority"] = current.payload.get("class_priority", fields.priority)
    terms.update({key: value for key, value in wanted_terms.items() if value != getattr(current, key)})
    if "time_s" in terms and terms["time_s"] is None:
        terms["time_s"] = math.inf
    if current.payload.get(OPEN_SIZE) and not is_open and wanted != present:
        terms["noted"] = {OPEN_SIZE: False}
    if terms:
        events.append(ev.JobTermsChanged(current.id, **terms))
    return events

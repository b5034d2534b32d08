"""Kubernetes Events from the service's log: why a job waits, where it starts, when it shrinks, how it ended.

An Event's name follows from what it says, so that the same thing said again is counted on the same object, also by
a new leader that never heard of the first one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainmaster.backends.kubernetes.resources.status import clipped
from trainmaster.engine.ports import LogEntry

Json = Mapping[str, Any]
COMPONENT = "trainmaster"
MAX_NAME = 253
_REFERENCE = ("apiVersion", "kind", "namespace", "name", "uid")


@dataclass(frozen=True)
class JobEvent:
    """What is told of one job. `said` tells one text from another when counting."""

    reason: str
    message: str
    warning: bool = False
    said: str = field(default="")

    @property
    def key(self) -> str:
        return f"{self.reason}\0{self.said or self.message}"


_TOLD = {
    "launch": ("Scheduled", False), "resize": ("Resized", False), "stop": ("Stopped", False),
    "start-failed": ("StartFailed", True), "exited": ("Exited", True), "finished": ("Finished", False),
    "failed": ("Failed", True), "rejected": ("Rejected", True), "cancelled": ("Cancelled", False),
    "stalled": ("Stalled", True), "preemption": ("PreemptionNotice", True),
    "progress": ("Progressing", False), "deadline": ("Deadline", False),
}  # fmt: skip
"""By kind of log entry: the reason, and whether it is a warning."""


def job_event_of(entry: LogEntry) -> JobEvent | None:
    """None for what the status shows well enough, and for what the user did just now."""
    if entry.kind not in _TOLD or (entry.kind == "exited" and entry.details.get("code") == 0):
        return None
    reason, warning = _TOLD[entry.kind]
    attempt = f" (attempt {entry.details.get('generation', 1)})" if entry.kind == "launch" else ""
    said = entry.kind if entry.kind in ("stalled", "preemption") else ""
    if entry.kind == "deadline":
        said = str(entry.details.get("answer"))
        warning = said in ("late", "refused", "unknown")
    return JobEvent(reason, _without_id(entry) + attempt, warning, said)


def _without_id(entry: LogEntry) -> str:
    """The object that an Event is attached to need not be named in it."""
    text = entry.text.removeprefix(entry.job_id or "").lstrip(" :")
    return clipped(text[:1].upper() + text[1:])


def event_body(about: Json, job_event: JobEvent, now: str, count: int = 1) -> dict[str, Any]:
    """`about`: apiVersion, kind, namespace, name and uid of the object that the user created."""
    name = event_name(about, job_event)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": about["namespace"]},
        "involvedObject": {key: about[key] for key in _REFERENCE if key in about},
        "reason": job_event.reason,
        "message": job_event.message,
        "type": "Warning" if job_event.warning else "Normal",
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": COMPONENT,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": count,
    }


def event_name(about: Json, job_event: JobEvent) -> str:
    digest = hashlib.sha256(f"{about.get('uid', '')}\0{job_event.key}".encode()).hexdigest()[:16]
    return f"{about['name'][: MAX_NAME - 17]}.{digest}"


def object_of(tj: Json) -> dict[str, Any]:
    meta = tj["metadata"]
    return {
        "apiVersion": tj.get("apiVersion", "trainmaster.dev/v1alpha1"),
        "kind": tj.get("kind", "TrainingJob"),
        "namespace": meta["namespace"],
        "name": meta["name"],
        "uid": meta["uid"],
    }

"""The story of a run: what happened in order, kept cheaply and told only when somebody asks."""

from __future__ import annotations

from collections import deque
from typing import Any

from trainmaster.model import event as ev
from trainmaster.model.allocation import Allocation
from trainmaster.model.command import Launch, Resize, Stop

KEPT = 20_000
"""Entries kept; a run of the fault simulation is shorter."""


class Story:
    def __init__(self) -> None:
        self._entries: deque[tuple[int, str, Any]] = deque(maxlen=KEPT)

    def add(self, now_ms: int, kind: str, what: Any) -> None:
        self._entries.append((now_ms, kind, what))

    def lines(self, job_id: str | None = None, last: int | None = None) -> list[str]:
        """As text; about one job (and what concerns all) when it is named."""
        chosen = [entry for entry in self._entries if job_id is None or _concerns(entry[2], job_id)]
        if last is not None:
            chosen = chosen[-last:]
        return [f"{now_ms / 1000:10.3f}  {kind:<8} {_tell(what)}" for now_ms, kind, what in chosen]


def _concerns(what: Any, job_id: str) -> bool:
    if isinstance(what, ev.JobSubmitted):
        return what.spec.id == job_id
    if isinstance(what, ev.Inventory):
        return True
    return getattr(what, "job_id", job_id) == job_id


def _tell(what: Any) -> str:
    match what:
        case str():
            return what
        case ev.JobSubmitted(spec):
            size = f"{spec.workers_min}..{spec.workers_max} workers"
            servers = f", {spec.servers_min}..{spec.servers_max} servers" if spec.servers_max else ""
            return f"submit {spec.id}: {size}{servers} of {spec.worker.gpu_milli} milli, {spec.work_total} steps"
        case Launch():
            return f"launch {what.job_id} g{what.generation} #{what.seq} on {_place(what.allocation)}"
        case Resize():
            return f"resize {what.job_id} g{what.generation} #{what.seq} to {_place(what.allocation)}"
        case Stop():
            return f"stop {what.job_id} g{what.generation} #{what.seq}: {what.why}"
        case ev.Inventory():
            entries = " ".join(_entry(entry) for entry in what.entries)
            return f"inventory up to #{what.seen_up_to} of nodes {sorted(what.nodes)}: {entries or 'nothing'}"
        case ev.Stopped():
            silent = f", nodes {sorted(what.silent)} silent" if what.silent else ""
            return f"stopped {what.job_id} g{what.generation} with {what.work_saved:.6g} saved{silent}"
        case _:
            return repr(what)


def _entry(entry: ev.Observed) -> str:
    if entry.exit_code is not None:
        state = f"exit {entry.exit_code}"
    else:
        state = "stopped" if entry.stopped else "starting" if entry.starting else "runs"
    return f"{entry.job_id}/g{entry.generation}={state}"


def _place(allocation: Allocation) -> str:
    parts = [f"n{part.node}[{part.workers}w{part.servers}s d{list(part.devices)}]" for part in allocation.parts]
    return " ".join(parts)

"""Experience of a live service: what state a policy met, what was done, what came of it. For learning from.

Kept in the store as a ring of documents, committed with the step that it tells of, so a crash loses none that was
answered for. Bounded: `rows` documents of at most `row_bytes`, at most one per `period_ms`; a job beyond the bound of a
row is counted in `left_out`. A row tells

- `state`: the jobs as this step left them, by column, running ones first; nodes and GPUs;
- `actions` since the row before: launches, resizes, stops with their sizes, and jobs that were refused;
- `reward` since the row before: the parts of their work that jobs got done (`work`, by job) and how jobs ended.

So the reward in row n is that of the actions in row n - 1 and of what ran on. Nothing here reads a clock.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainmaster.engine.engine import Engine
from trainmaster.engine.queries import Observation, arrivals, rounded
from trainmaster.engine.records import Ended
from trainmaster.model.allocation import Allocation
from trainmaster.model.command import Command, Launch, Resize
from trainmaster.model.errors import InputError
from trainmaster.model.foreign import parse_json
from trainmaster.model.job import Phase

Json = dict[str, Any]
DOCUMENT = "experience-"
"""Documents are called so with their place in the ring."""
QUIET_MS = 60_000
"""With jobs that run, but no action, arrival or end, a row is written this seldom."""
_FIELDS = frozenset({"number", "at_ms", "policy", "state", "actions", "reward"})
_BYTES_PER_JOB = 96
"""At least; a row that is still too long is cut."""


@dataclass(frozen=True)
class Bounds:
    rows: int = 4096
    row_bytes: int = 16_384
    period_ms: int = 1_000

    @property
    def items(self) -> int:
        """Actions and jobs of a reward that a row names."""
        return self.row_bytes // 256


IN_DATABASE = Bounds()
IN_JOURNAL = Bounds(rows=128, row_bytes=4_096, period_ms=10_000)
"""Every commit is an object of the API server there, and all documents are part of every snapshot."""


class Experience:
    """Collects steps; `documents` is asked once for each commit. What a commit that failed told of is forgotten."""

    def __init__(self, bounds: Bounds = IN_DATABASE) -> None:
        self.bounds = bounds
        self.opened(0)

    def opened(self, number: int) -> None:
        """Go on after the last row that was committed."""
        self.number = number
        """Of the next row; its place in the ring is the remainder."""
        self._last_ms: int | None = None
        self._actions: list[Json] = []
        self._gains: dict[str, float] = {}
        self._ends: dict[str, str] = {}
        self._unnamed = self._arrivals = 0
        self._parts: dict[str, float] = {}
        """Part of its work that each job of the last row had done."""

    def stepped(self, engine: Engine, commands: Sequence[Command], ended: Sequence[Ended]) -> None:
        for command in commands:
            size = _size(command.allocation, engine.cluster.types) if isinstance(command, Launch | Resize) else {}
            self._act(engine.now_ms, type(command).__name__.lower(), command.job_id, size)
        for end in ended:
            job_id, total = end.spec.id, end.spec.work_total
            if end.phase == Phase.REJECTED:
                self._act(engine.now_ms, "reject", job_id, {})
            elif len(self._ends) < self.bounds.items:
                self._ends[job_id] = end.phase.name.lower()
            is_new = self._last_ms is not None and end.spec.submit_ms >= self._last_ms
            before = self._parts.pop(job_id, 0.0 if is_new else None)
            if total and before is not None and len(self._gains) < self.bounds.items:
                self._gains[job_id] = rounded(min(end.work_done / total, 1.0) - before) or 0.0

    def _act(self, at_ms: int, kind: str, job_id: str, size: Json) -> None:
        if len(self._actions) < self.bounds.items:
            self._actions.append({"at_ms": at_ms, "kind": kind, "job": job_id, **size})
        else:
            self._unnamed += 1

    def documents(self, engine: Engine, policy: str) -> dict[str, Json]:
        """The row to commit with this step, if one is due."""
        if self._last_ms is None:
            self._parts, self._arrivals = Observation.of(engine, self._most).parts(), arrivals(engine)
            self._last_ms = engine.now_ms - self.bounds.period_ms
        happened = self._actions or self._ends or arrivals(engine) != self._arrivals
        if engine.now_ms - self._last_ms < (self.bounds.period_ms if happened else QUIET_MS):
            return {}
        found = Observation.of(engine, self._most)
        if not happened and not found.running:
            return {}
        row, name = self._row(found, policy), f"{DOCUMENT}{self.number % self.bounds.rows}"
        self.number += 1
        self._begin(found)
        return {name: row}

    @property
    def _most(self) -> int:
        """Jobs that may fit into a row."""
        return self.bounds.row_bytes // _BYTES_PER_JOB

    def _begin(self, found: Observation) -> None:
        """What comes is of the next row."""
        self._last_ms, self._parts, self._arrivals = found.at_ms, found.parts(), found.arrivals
        self._actions, self._gains, self._ends, self._unnamed = [], {}, {}, 0

    def rows(self, document: Callable[[str], Json | None], first: int, end: int) -> list[Json]:
        """The rows `first` to `end` (exclusive) that a store holds, oldest first."""
        found = (document(f"{DOCUMENT}{number % self.bounds.rows}") for number in range(first, end))
        return [row for row in found if row is not None and first <= row["number"] < end]

    def _row(self, found: Observation, policy: str) -> Json:
        work = {**self._gains}
        for job_id, part in found.parts().items():
            gain = rounded(part - self._parts.get(job_id, 0.0))
            if gain and len(work) < self.bounds.items:
                work[job_id] = gain
        row: Json = {
            "number": self.number,
            "at_ms": found.at_ms,
            "policy": policy[:200],
            "actions": self._actions,
            "actions_left_out": self._unnamed,
            "reward": {"work": work, "ended": self._ends},
        }
        shown = self._most
        while True:
            jobs = found.jobs(shown)
            row["state"] = {**found.machines(), "jobs": jobs, "left_out": found.n_jobs - len(jobs["id"])}
            if len(json.dumps(row, separators=(",", ":"))) <= self.bounds.row_bytes:
                return row
            if not shown:
                row["actions"], row["actions_left_out"] = [], self._unnamed + len(self._actions)
                row["reward"] = {"work": {}, "ended": {}}
                return row
            shown = shown * 3 // 4


def in_order(rows: Iterable[Json]) -> list[Json]:
    """Rows of a ring, oldest first; what is none is left out."""
    found = [row for row in rows if row.keys() >= _FIELDS]
    return sorted(found, key=lambda row: row["number"])


def read_rows(path: Path) -> list[Json]:
    """What `trainmaster experience` wrote: a JSON object in each line."""
    rows: list[Json] = []
    for line, text in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        try:
            row = parse_json(text)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not row.keys() >= _FIELDS:
            expected = "what `trainmaster experience` writes: a JSON object in each line"
            raise InputError("not a row of experience", expected, file=path, line=line)
        rows.append(row)
    return in_order(rows)


def _size(allocation: Allocation, types: Sequence[str]) -> Json:
    kind = types[allocation.accelerator] if allocation.accelerator >= 0 else None
    return {
        "accelerator": kind,
        "workers": allocation.workers,
        "servers": allocation.servers,
        "nodes": len(allocation.parts),
    }

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
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainmaster.core.arrays import Floats, Ints
from trainmaster.engine.engine import Engine
from trainmaster.engine.records import Ended
from trainmaster.model.allocation import Allocation
from trainmaster.model.command import Command, Launch, Resize
from trainmaster.model.errors import InputError
from trainmaster.model.foreign import parse_json
from trainmaster.model.job import Phase, PhaseCode
from trainmaster.model.units import MS_PER_S

Json = dict[str, Any]
DOCUMENT = "experience-"
"""Documents are called so with their place in the ring."""
QUIET_MS = 60_000
"""With jobs that run, but no action, arrival or end, a row is written this seldom."""
_LIVE = (PhaseCode.LAUNCHING, PhaseCode.RUNNING, PhaseCode.RESIZING, PhaseCode.STOPPING, PhaseCode.LOST)
_INTS = (
    "phase", "submit_ms", "workers_min", "workers_max", "servers_min", "servers_max", "workers", "servers",
    "worker_gpu_milli", "priority", "deadline_ms", "attempts", "preemptions",
)  # fmt: skip
_FLOATS = ("work_total", "rate", "weight")
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
                self._gains[job_id] = _rounded(min(end.work_done / total, 1.0) - before)

    def _act(self, at_ms: int, kind: str, job_id: str, size: Json) -> None:
        if len(self._actions) < self.bounds.items:
            self._actions.append({"at_ms": at_ms, "kind": kind, "job": job_id, **size})
        else:
            self._unnamed += 1

    def documents(self, engine: Engine, policy: str) -> dict[str, Json]:
        """The row to commit with this step, if one is due."""
        now_ms = engine.now_ms
        if self._last_ms is None:
            self._last_ms = now_ms - self.bounds.period_ms
            self._parts, self._arrivals = _parts(engine, self._order(engine)[0]), engine.columns.n_arrivals
        since_ms = now_ms - self._last_ms
        happened = self._actions or self._ends or engine.columns.n_arrivals != self._arrivals
        if since_ms < (self.bounds.period_ms if happened else QUIET_MS):
            return {}
        order, running = self._order(engine)
        if not happened and not running:
            return {}
        row = self._row(engine, policy, order)
        name = f"{DOCUMENT}{self.number % self.bounds.rows}"
        self._last_ms, self._parts, self._arrivals = now_ms, _parts(engine, order), engine.columns.n_arrivals
        self.number += 1
        self._actions, self._gains, self._ends, self._unnamed = [], {}, {}, 0
        return {name: row}

    def rows(self, document: Callable[[str], Json | None], first: int, end: int) -> list[Json]:
        """The rows `first` to `end` (exclusive) that a store holds, oldest first."""
        found = (document(f"{DOCUMENT}{number % self.bounds.rows}") for number in range(first, end))
        return [row for row in found if row is not None and first <= row["number"] < end]

    def _order(self, engine: Engine) -> tuple[Ints, int]:
        """Places of as many jobs as a row can hold, running ones first, else by arrival; and how many run."""
        rows = engine.columns.rows
        live = np.isin(engine.columns.ints["phase"][rows], _LIVE)
        order = np.concatenate([rows[live], rows[~live]])
        return order[: self.bounds.row_bytes // _BYTES_PER_JOB], int(live.sum())

    def _row(self, engine: Engine, policy: str, order: Ints) -> Json:
        work = {**self._gains}
        for job_id, part in _parts(engine, order).items():
            gain = _rounded(part - self._parts.get(job_id, 0.0))
            if gain and len(work) < self.bounds.items:
                work[job_id] = gain
        n_jobs = len(engine.columns.rows)
        row: Json = {
            "number": self.number, "at_ms": engine.now_ms, "policy": policy[:200], "actions": self._actions,
            "actions_left_out": self._unnamed, "reward": {"work": work, "ended": self._ends},
        }  # fmt: skip
        while True:
            row["state"] = {**_machines(engine), "jobs": _jobs(engine, order), "left_out": n_jobs - len(order)}
            excess = len(json.dumps(row, separators=(",", ":"))) - self.bounds.row_bytes
            if excess <= 0:
                return row
            if not len(order):
                row["actions"], row["actions_left_out"] = [], self._unnamed + len(self._actions)
                row["reward"] = {"work": {}, "ended": {}}
                return row
            order = order[: len(order) * 3 // 4]


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
    return {"accelerator": kind, "workers": allocation.workers, "servers": allocation.servers,
            "nodes": len(allocation.parts)}  # fmt: skip


def _parts(engine: Engine, order: Ints) -> dict[str, float]:
    """Part of its work that each job has done, of those whose work is known."""
    columns = engine.columns
    totals, done = columns.floats["work_total"][order].tolist(), _work_done(engine, order).tolist()
    ids = [columns.spec(job_index).id for job_index in order.tolist()]
    return {job_id: min(of / total, 1.0) for job_id, of, total in zip(ids, done, totals, strict=True) if total > 0}


def _work_done(engine: Engine, order: Ints) -> Floats:
    """Steps by now, of running jobs as believed since their last report."""
    ints, floats = engine.columns.ints, engine.columns.floats
    since_ms = engine.now_ms - np.maximum(ints["as_of_ms"][order], ints["productive_ms"][order])
    running = ints["phase"][order] == PhaseCode.RUNNING
    more = np.where(running, np.nan_to_num(floats["rate"][order]) * np.maximum(since_ms, 0) / MS_PER_S, 0.0)
    return floats["work_done"][order] + more


def _machines(engine: Engine) -> Json:
    """GPUs of nodes that are up, and those of them that nothing is planned on, by type."""
    cluster, up = engine.cluster, engine.up
    n_types = len(cluster.types)
    total = np.bincount(cluster.type_of[up], cluster.gpus[up], n_types)
    free = np.bincount(cluster.type_of[up], engine.planned.whole[up], n_types)
    return {"types": list(cluster.types), "gpus": total.astype(int).tolist(), "free_gpus": free.astype(int).tolist()}


def _jobs(engine: Engine, order: Ints) -> Json:
    """The jobs by column. `speeds`: steps per second by type at the reference size, as believed."""
    columns = engine.columns
    specs = [columns.spec(job_index) for job_index in order.tolist()]
    held = columns.ints["held_type"][order].tolist()
    return {
        "id": [spec.id for spec in specs],
        "team": [spec.entity for spec in specs],
        "held_type": [None if kind < 0 else engine.cluster.types[kind] for kind in held],
        **{name: columns.ints[name][order].tolist() for name in _INTS},
        **{name: [_rounded(value) for value in columns.floats[name][order].tolist()] for name in _FLOATS},
        "work_done": [_rounded(value) for value in _work_done(engine, order).tolist()],
        "speeds": [[_rounded(value) for value in speeds] for speeds in columns.throughput[order].tolist()],
    }


def _rounded(value: float) -> float | None:
    """JSON has no NaN; six digits are enough."""
    return float(f"{value:.6g}") if math.isfinite(value) else None

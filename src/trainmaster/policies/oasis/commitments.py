"""Commitments of the engine policy: which nodes each admitted job was promised in which slots. They live in the memo.

Slots are absolute: slot s covers [s * slot_ms, (s + 1) * slot_ms). A promise is kept as runs of slots with the same
place, so that a long job takes a few numbers. Both are named tuples, which JSON writes as lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainmaster.model.job import JobId

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
NodeCounts = tuple[tuple[int, int, int], ...]
"""(node, workers, servers) of a gang, by rising node."""
_Pieces = tuple[list[JobId], Ints, Ints, Ints, Ints, Floats]


class Run(NamedTuple):
    """The same gang in the same place for the slots `start <= s < end`."""

    start: int
    end: int
    steps_per_s: float
    place: NodeCounts
    workers: int
    servers: int

    @staticmethod
    def of(start: int, end: int, steps_per_s: float, place: NodeCounts) -> Run:
        return Run(start, end, steps_per_s, place, sum([p[1] for p in place]), sum([p[2] for p in place]))


class Promise(NamedTuple):
    """What an admitted job was promised: a type, runs of slots, its end by them and what that is worth."""

    accelerator: int
    runs: tuple[Run, ...]
    finish_ms: int
    utility: float
    payoff: float
    worker: tuple[float, ...]
    server: tuple[float, ...]

    @staticmethod
    def read(data: Any) -> Promise:
        """From a memo: a promise as it left, or its JSON form (version 0.1: an object)."""
        if isinstance(data, Promise):
            return data
        kind, runs, *rest = (data[name] for name in Promise._fields) if isinstance(data, Mapping) else data
        runs = tuple(Run.of(start, end, speed, tuple(map(tuple, place))) for start, end, speed, place, *_ in runs)
        finish_ms, utility, payoff, worker, server = rest
        return Promise(kind, runs, finish_ms, utility, payoff, tuple(worker), tuple(server))

    def at(self, time_slot: int) -> Run | None:
        """The run of the first slot that is not past."""
        return self.runs[0] if self.runs and self.runs[0].start <= time_slot < self.runs[0].end else None

    def next_slot(self, time_slot: int) -> int | None:
        """The first promised slot from `time_slot` on."""
        return next((max(run.start, time_slot) for run in self.runs if run.end > time_slot), None)

    def from_slot(self, time_slot: int) -> Promise:
        """Without what is past."""
        if all(run.start >= time_slot for run in self.runs):
            return self
        return self._replace(
            runs=tuple(run._replace(start=max(run.start, time_slot)) for run in self.runs if run.end > time_slot)
        )

    def with_slot(self, time_slot: int, run: Run | None) -> Promise:
        """Another gang or place (or none) in one slot, the first of the promise."""
        later = self.from_slot(time_slot + 1).runs
        first = () if run is None else (run._replace(start=time_slot, end=time_slot + 1),)
        return self._replace(runs=merged((*first, *later)))

    def without_last_slot(self) -> Promise:
        *others, last = self.runs
        kept = () if last.end - last.start == 1 else (last._replace(end=last.end - 1),)
        return self._replace(runs=(*others, *kept))

    def uses(self, nodes: NDArray[np.bool_]) -> bool:
        return any(nodes[node] for run in self.runs for node, _, _ in run.place)

    def steps(self, slot_ms: int, now_ms: int) -> float:
        """Work that the promised slots still do, from now on, at the estimated speeds."""
        return sum(
            run.steps_per_s * max(0, run.end * slot_ms - max(run.start * slot_ms, now_ms)) / 1000.0 for run in self.runs
        )


def merged(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Neighbouring runs of the same gang and place as one."""
    out: list[Run] = []
    for run in runs:
        if out and out[-1].end == run.start and (out[-1].place, out[-1].steps_per_s) == (run.place, run.steps_per_s):
            out[-1] = out[-1]._replace(end=run.end)
        else:
            out.append(run)
    return tuple(out)


@dataclass
class Commitments:
    """All promises, what is kept of recent jobs (the history behind the prices), and the moment of the last decision:
    its slot (-1: never) and the nodes that were down."""

    promises: dict[JobId, Promise] = field(default_factory=dict)
    """Changed through `put` and `drop` alone."""
    densities: list[list[float | None]] = field(default_factory=list)
    extents: list[list[float | None]] = field(default_factory=list)
    """Of the same jobs, with the paper's constants (`prices.Extent` as a flat list; None: ln 0)."""
    time_slot: int = -1
    down: frozenset[int] = frozenset()
    _pieces: _Pieces | None = None

    @staticmethod
    def read(values: Mapping[str, Any]) -> Commitments:
        if not values:
            return Commitments()
        promises = {JobId(name): Promise.read(data) for name, data in values["promises"].items()}
        densities, extents = list(values["densities"]), list(values.get("extents", ()))
        return Commitments(promises, densities, extents, values["slot"], frozenset(values["down"]))

    def values(self) -> dict[str, Any]:
        return {
            "promises": {name: self.promises[name] for name in sorted(self.promises)},
            "densities": self.densities,
            **({"extents": self.extents} if self.extents else {}),
            "slot": self.time_slot,
            "down": sorted(self.down),
        }

    def put(self, name: JobId, promise: Promise) -> None:
        self.promises[name] = promise
        self._pieces = None

    def drop(self, name: JobId) -> None:
        del self.promises[name]
        self._pieces = None

    def used(self, time_slot: int, time_slots: int, nodes: int, resources: int, without: JobId | None = None) -> Floats:
        """What is committed from `time_slot` on, slots x nodes x resources: sums of differences at the ends of runs."""
        if self._pieces is None:
            self._pieces = _pieces(self.promises, resources)
        names, owner, start, end, node, amount = self._pieces
        kept = (end > time_slot) & (start < time_slot + time_slots)
        if without is not None and without in names:
            kept &= owner != names.index(without)
        first = np.maximum(start[kept] - time_slot, 0) * nodes + node[kept]
        after = np.minimum(end[kept] - time_slot, time_slots) * nodes + node[kept]
        change = np.empty((time_slots + 1, nodes, resources))
        for r, taken in enumerate(amount[kept].T):
            sums = [np.bincount(at, taken, (time_slots + 1) * nodes) for at in (first, after)]
            change[:, :, r] = (sums[0] - sums[1]).reshape(time_slots + 1, nodes)
        # Sums and differences of the same amounts leave dust behind, which must not read as a commitment.
        return np.round(np.cumsum(change[:-1], axis=0), 9) + 0.0


def _pieces(promises: Mapping[JobId, Promise], resources: int) -> _Pieces:
    """Every node of every run: its promise, slots and what it takes."""
    names = sorted(promises)
    found = [
        (i, run.start, run.end, *place)
        for i, name in enumerate(names)
        for run in promises[name].runs
        for place in run.place
    ]
    owner, start, end, node, workers, servers = np.array(found, np.int64).reshape(len(found), 6).T
    worker = np.array([promises[name].worker for name in names], np.float64).reshape(len(names), resources)
    server = np.array([promises[name].server for name in names], np.float64).reshape(worker.shape)
    amount: Floats = workers[:, None] * worker[owner] + servers[:, None] * server[owner]
    return names, owner, start, end, node, amount

"""The books of the engine policy: who was promised which nodes in which slots. They live in the memo.

Slots are absolute: slot s covers [s * slot_ms, (s + 1) * slot_ms). A promise is kept as runs of slots with
the same place, so that a long job takes a few numbers, and as JSON values throughout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainmaster.model.job import JobId

Floats = NDArray[np.float64]
Place = tuple[tuple[int, int, int], ...]
"""(node, workers, servers) of a gang, by rising node."""


@dataclass(frozen=True)
class Run:
    """The same gang in the same place for the slots `start <= s < end`."""

    start: int
    end: int
    steps_per_s: float
    place: Place

    @property
    def workers(self) -> int:
        return sum(workers for _, workers, _ in self.place)

    @property
    def servers(self) -> int:
        return sum(servers for _, _, servers in self.place)


@dataclass(frozen=True)
class Promise:
    """What an admitted job was promised: a type, runs of slots, its end by them and what that is worth."""

    accelerator: int
    runs: tuple[Run, ...]
    finish_ms: int
    utility: float
    payoff: float
    worker: tuple[float, ...]
    server: tuple[float, ...]

    def at(self, slot: int) -> Run | None:
        return next((run for run in self.runs if run.start <= slot < run.end), None)

    def next_slot(self, slot: int) -> int | None:
        """The first promised slot from `slot` on."""
        return next((max(run.start, slot) for run in self.runs if run.end > slot), None)

    def from_slot(self, slot: int) -> Promise:
        """Without what is past."""
        if all(run.start >= slot for run in self.runs):
            return self
        kept = tuple(replace(run, start=max(run.start, slot)) for run in self.runs if run.end > slot)
        return replace(self, runs=kept)

    def with_slot(self, slot: int, run: Run | None) -> Promise:
        """Another gang or place (or none) in one slot, the first of the promise."""
        later = [replace(r, start=max(r.start, slot + 1)) for r in self.runs if r.end > slot + 1]
        first = [] if run is None else [replace(run, start=slot, end=slot + 1)]
        return replace(self, runs=tuple(merged([*first, *later])))

    def uses(self, nodes: NDArray[np.bool_]) -> bool:
        return any(nodes[node] for run in self.runs for node, _, _ in run.place)

    def steps(self, slot_ms: int, now_ms: int) -> float:
        """Work that the promised slots still do, from now on, at the estimated speeds."""
        return sum(
            run.steps_per_s * max(0, run.end * slot_ms - max(run.start * slot_ms, now_ms)) / 1000.0 for run in self.runs
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "accelerator": self.accelerator,
            "runs": [[r.start, r.end, r.steps_per_s, [list(p) for p in r.place]] for r in self.runs],
            "finish_ms": self.finish_ms,
            "utility": self.utility,
            "payoff": self.payoff,
            "worker": list(self.worker),
            "server": list(self.server),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Promise:
        runs = tuple(
            Run(start, end, speed, tuple((node, workers, servers) for node, workers, servers in place))
            for start, end, speed, place in data["runs"]
        )
        return Promise(
            data["accelerator"],
            runs,
            data["finish_ms"],
            data["utility"],
            data["payoff"],
            tuple(data["worker"]),
            tuple(data["server"]),
        )


def merged(runs: list[Run]) -> list[Run]:
    """Neighbouring runs of the same gang and place as one."""
    out: list[Run] = []
    for run in runs:
        if out and out[-1].end == run.start and (out[-1].place, out[-1].steps_per_s) == (run.place, run.steps_per_s):
            out[-1] = replace(out[-1], end=run.end)
        else:
            out.append(run)
    return out


@dataclass
class Book:
    """All promises, the densities of recent jobs (the history behind the prices), and when it was last kept.

    `down` are the nodes that were down then, `slot` the slot (-1: never).
    """

    promises: dict[JobId, Promise] = field(default_factory=dict)
    densities: list[list[float | None]] = field(default_factory=list)
    slot: int = -1
    down: frozenset[int] = frozenset()

    @staticmethod
    def read(values: Mapping[str, Any]) -> Book:
        if not values:
            return Book()
        return Book(
            {JobId(name): Promise.from_json(data) for name, data in values["promises"].items()},
            list(values["densities"]),
            values["slot"],
            frozenset(values["down"]),
        )

    def values(self) -> dict[str, Any]:
        return {
            "promises": {name: self.promises[name].to_json() for name in sorted(self.promises)},
            "densities": self.densities,
            "slot": self.slot,
            "down": sorted(self.down),
        }

    def last_slot(self) -> int:
        """The slot after the last one that anyone was promised."""
        return max((run.end for promise in self.promises.values() for run in promise.runs), default=0)

    def used(self, slot: int, slots: int, nodes: int, resources: int, without: JobId | None = None) -> Floats:
        """Commitments from `slot` on, slots x nodes x resources: sums of differences at the ends of runs."""
        change = np.zeros((slots + 1, nodes, resources))
        for name in sorted(self.promises):
            if name != without:
                add_promise(change, self.promises[name], slot)
        # Sums and differences of the same amounts leave dust behind, which must not read as a commitment.
        return np.round(np.cumsum(change[:-1], axis=0), 9) + 0.0


def add_promise(change: Floats, promise: Promise, slot: int) -> None:
    """Enter one promise into the array of differences that starts at `slot`."""
    worker, server = np.asarray(promise.worker), np.asarray(promise.server)
    last = change.shape[0] - 1
    for run in promise.runs:
        start, end = max(run.start - slot, 0), min(run.end - slot, last)
        if start >= end:
            continue
        for node, workers, servers in run.place:
            amount = workers * worker + servers * server
            change[start, node] += amount
            change[end, node] -= amount

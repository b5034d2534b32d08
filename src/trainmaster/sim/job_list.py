"""The jobs of a run as columns. Jobs that differ in id, submission, work and deadline alone share a template.

It reads as a list of `JobSpec`: one is made when it is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, overload

import numpy as np
import polars as pl

from trainmaster.core.arrays import Floats, Ints
from trainmaster.model.job import JobId, JobSpec


@dataclass(frozen=True, eq=False)
class JobList(Sequence[JobSpec]):
    """Job k is `templates[kind[k]]` but for what the other columns say. Templates are in order of first use."""

    templates: Sequence[JobSpec]
    kind: Ints
    ids: pl.Series
    submit_ms: Ints
    work_total: Floats
    """NaN where it is unknown."""
    deadline_ms: Ints
    made: dict[int, JobSpec] = field(default_factory=dict)
    """Jobs that somebody has asked for, by place."""

    @classmethod
    def of(cls, specs: Iterable[JobSpec]) -> JobList:
        """Jobs that were made one by one: each is its own template."""
        if isinstance(specs, JobList):
            return specs
        specs = list(specs)
        n, nan = len(specs), math.nan
        return cls(
            specs,
            np.arange(n),
            pl.Series([spec.id for spec in specs], dtype=pl.String),
            np.fromiter((spec.submit_ms for spec in specs), np.int64, n),
            np.fromiter((nan if spec.work_total is None else spec.work_total for spec in specs), np.float64, n),
            np.fromiter((spec.deadline_ms for spec in specs), np.int64, n),
            dict(enumerate(specs)),
        )

    def __len__(self) -> int:
        return len(self.kind)

    @overload
    def __getitem__(self, at: int) -> JobSpec: ...

    @overload
    def __getitem__(self, at: slice) -> list[JobSpec]: ...

    def __getitem__(self, at: int | slice) -> JobSpec | list[JobSpec]:
        if isinstance(at, slice):
            return [self[k] for k in range(*at.indices(len(self)))]
        at = range(len(self))[at]
        spec = self.made.get(at)
        if spec is None:
            spec = self.made[at] = self._make(at)
        return spec

    def _make(self, at: int) -> JobSpec:
        work = self.work_total.item(at)
        return replace(
            self.templates[self.kind.item(at)],
            id=JobId(self.id_list[at]),
            submit_ms=self.submit_ms.item(at),
            work_total=None if math.isnan(work) else work,
            deadline_ms=self.deadline_ms.item(at),
        )

    @cached_property
    def id_list(self) -> list[JobId]:
        return self.ids.to_list()

    def ints(self, value: Callable[[JobSpec], Any]) -> Ints:
        """A column of what templates have."""
        return np.fromiter(map(value, self.templates), np.int64, len(self.templates))[self.kind]

    def floats(self, value: Callable[[JobSpec], Any]) -> Floats:
        return np.fromiter(map(value, self.templates), np.float64, len(self.templates))[self.kind]

    def texts(self, value: Callable[[JobSpec], str]) -> pl.Series:
        return pl.Series(list(map(value, self.templates)), dtype=pl.String).gather(self.kind)

    def gpus(self) -> Floats:
        """GPUs at the reference size."""
        return self.floats(lambda spec: spec.gpus)

    def ideal_s(self) -> Floats:
        """Run time alone at the size asked for, on the fastest acceptable type, without any cost."""
        fastest = self.floats(lambda spec: max(spec.steps_per_s.values(), default=1.0) if spec.steps_per_s else 1.0)
        return self.work_total / np.where(fastest > 0, fastest, math.nan)

    def select(self, which: Ints) -> JobList:
        """The jobs at these places."""
        used, first, kind = np.unique(self.kind[which], return_index=True, return_inverse=True)
        order = np.argsort(first)
        rank = np.empty(len(used), np.int64)
        rank[order] = np.arange(len(used))
        made = {new: self.made[old] for new, old in enumerate(which.tolist()) if old in self.made}
        return JobList(
            [self.templates[k] for k in used[order].tolist()],
            rank[kind],
            self.ids.gather(which),
            self.submit_ms[which],
            self.work_total[which],
            self.deadline_ms[which],
            made,
        )

    def changed(self, change: Callable[[JobSpec], JobSpec]) -> JobList:
        """The same with other templates; `change` leaves id, submission, work and deadline alone."""
        templates = [change(spec) for spec in self.templates]
        return replace(self, templates=templates, made={at: change(spec) for at, spec in self.made.items()})

    def joined(self, other: JobList) -> JobList:
        """These jobs, then the others."""
        n = len(self)
        return JobList(
            [*self.templates, *other.templates],
            np.concatenate([self.kind, other.kind + len(self.templates)]),
            pl.concat([self.ids, other.ids]),
            np.concatenate([self.submit_ms, other.submit_ms]),
            np.concatenate([self.work_total, other.work_total]),
            np.concatenate([self.deadline_ms, other.deadline_ms]),
            self.made | {n + at: spec for at, spec in other.made.items()},
        )

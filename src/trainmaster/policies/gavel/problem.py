"""What an allocation policy is given and what it returns: plain arrays, one row per job, one column per
type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


class Status(StrEnum):
    """How a solve ended. Everything but `OPTIMAL` comes with a `fallback` that says what was returned
    instead."""

    OPTIMAL = "optimal"
    INFEASIBLE_SLO = "infeasible_slo"  # the SLOs cannot all be met; solved without them
    UNCERTIFIED = "uncertified"  # no solver proved its gap; the best feasible allocation is returned


@dataclass(frozen=True)
class Pairs:
    """Pairs of jobs that can share the same GPUs: `jobs` k x 2 row numbers, `throughput` k x J x 2
    steps/s."""

    jobs: IntArray
    throughput: FloatArray

    def __len__(self) -> int:
        return len(self.jobs)


TEAM_POLICIES = ("fairness", "fifo")


@dataclass(frozen=True)
class Entity:
    """A node of the tree of teams. `policy` says how it divides what it gets: one of `TEAM_POLICIES`."""

    id: str
    weight: float
    policy: str = "fairness"
    parent: int | None = None  # index into the tuple of entities; None: a child of the root


@dataclass(frozen=True)
class AllocationProblem:
    """n jobs on J accelerator types. `throughput` is in steps/s for the whole gang; 0 means the type is
    useless."""

    throughput: FloatArray  # n x J
    gpus: FloatArray  # n, gang size
    counts: FloatArray  # J, GPUs of each type
    weight: FloatArray  # n
    steps_remaining: FloatArray  # n
    elapsed_s: FloatArray  # n
    slo_s: FloatArray  # n, NaN: none
    cost_per_hour: FloatArray  # J
    allowed: BoolArray  # n x J
    isolated_so_far_s: FloatArray  # n: time the work done so far would have taken on an isolated share
    type_names: tuple[str, ...] = ()
    pairs: Pairs | None = None
    entities: tuple[Entity, ...] = ()
    entity_of: IntArray | None = None  # n, index into entities, -1: directly under the root

    @property
    def job_count(self) -> int:
        return len(self.gpus)

    @cached_property
    def usable(self) -> BoolArray:
        """Where a job may run and makes progress, on a type that exists."""
        return self.allowed & (self.throughput > 0.0) & (self.counts > 0.0)[None, :]

    @cached_property
    def runnable(self) -> BoolArray:
        """Jobs that can make progress somewhere; the others get nothing and are left out of a level."""
        return np.asarray(self.usable.any(axis=1))

    @cached_property
    def isolated_share(self) -> FloatArray:
        """X_isolated: 1/n of every type for each job, in units of its gang, scaled down to at most all of its time."""
        share = self.counts[None, :] / (self.job_count * self.gpus[:, None])
        return share / np.maximum(share.sum(axis=1), 1.0)[:, None]

    def equal_throughput(self, throughput: FloatArray) -> FloatArray:
        """throughput(m, X_equal): under time shares proportional to the number of GPUs of each type."""
        return np.where(self.usable, throughput, 0.0) @ (self.counts / self.counts.sum())

    def seen_by(self, aware: bool) -> FloatArray:
        """T as a policy sees it. One that is blind to types takes every usable type for as fast as the reference type,
        v100 where there is one, as the published implementation does, else the type with the largest total throughput
        (a job that cannot use that one: as its fastest)."""
        if aware:
            return self.throughput
        usable = np.where(self.usable, self.throughput, 0.0)
        names = [name.lower() for name in self.type_names]
        reference = names.index("v100") if "v100" in names else int(np.argmax(usable.sum(axis=0)))
        speed = usable[:, reference]
        speed = np.where(speed > 0.0, speed, usable.max(axis=1, initial=0.0))
        return np.where(self.usable, speed[:, None], 0.0)

    def normalised(self, aware: bool) -> tuple[FloatArray, FloatArray]:
        """(T, throughput(m, X_equal)) of the policies that compare jobs; to a blind one every usable type is worth
        one step per second, and so is X_equal."""
        if aware:
            return self.throughput, self.equal_throughput(self.throughput)
        return np.where(self.usable, 1.0, 0.0), np.ones(self.job_count)


def make_problem(
    throughput: Sequence[Sequence[float]] | FloatArray,
    counts: Sequence[float] | FloatArray,
    *,
    gpus: Sequence[float] | FloatArray | None = None,
    weight: Sequence[float] | FloatArray | None = None,
    steps_remaining: Sequence[float] | FloatArray | None = None,
    elapsed_s: Sequence[float] | FloatArray | None = None,
    slo_s: Sequence[float] | FloatArray | None = None,
    cost_per_hour: Sequence[float] | FloatArray | None = None,
    allowed: BoolArray | None = None,
    isolated_so_far_s: Sequence[float] | FloatArray | None = None,
    type_names: tuple[str, ...] = (),
    pairs: Pairs | None = None,
    entities: tuple[Entity, ...] = (),
    entity_of: IntArray | None = None,
) -> AllocationProblem:
    """An `AllocationProblem` with defaults: one GPU per job, weight 1, no SLO, every type allowed."""
    matrix = np.ascontiguousarray(throughput, dtype=np.float64)
    type_counts = np.ascontiguousarray(counts, dtype=np.float64)
    if matrix.size == 0:
        matrix = matrix.reshape(0, len(type_counts))
    n, types = matrix.shape

    def column(values: Sequence[float] | FloatArray | None, default: float, size: int) -> FloatArray:
        if values is None:
            return np.full(size, default)
        return np.ascontiguousarray(values, dtype=np.float64)

    return AllocationProblem(
        throughput=matrix,
        gpus=column(gpus, 1.0, n),
        counts=type_counts,
        weight=column(weight, 1.0, n),
        steps_remaining=column(steps_remaining, 1.0, n),
        elapsed_s=column(elapsed_s, 0.0, n),
        slo_s=column(slo_s, np.nan, n),
        cost_per_hour=column(cost_per_hour, 1.0, types),
        allowed=np.ones((n, types), dtype=bool) if allowed is None else np.ascontiguousarray(allowed, dtype=bool),
        isolated_so_far_s=column(isolated_so_far_s, 0.0, n),
        type_names=type_names or tuple(str(j) for j in range(types)),
        pairs=pairs,
        entities=entities,
        entity_of=entity_of,
    )


@dataclass(frozen=True)
class AllocationResult:
    """Time shares and how good they are proven to be.

    `share[m, j]` is the fraction of time job m runs alone on type j; `pair_share[k, j]` that of pair k.
    `gap` is the proven relative distance between `objective` and the optimum (NaN where there is no
    optimum to
    prove, as for queue policies). `fallback` says what was done instead when `status` is not optimal.
    """

    status: Status
    objective: float
    share: FloatArray
    throughput: FloatArray
    pair_share: FloatArray | None = None
    normalized: FloatArray | None = None
    iterations: int = 0
    solves: int = 0
    gap: float = float("nan")
    solver: str = ""
    fallback: str = ""
    late_jobs: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


def effective_throughput(
    throughput: FloatArray, pairs: Pairs | None, share: FloatArray, pair_share: FloatArray | None
) -> FloatArray:
    """throughput(m, X) = sum_j T_mj x_mj, plus each job's part of the pairs it is in (equation 1)."""
    total = (throughput * share).sum(axis=1)
    if pairs is not None and pair_share is not None:
        for side in (0, 1):
            part = (pairs.throughput[:, :, side] * pair_share).sum(axis=1)
            total += np.bincount(pairs.jobs[:, side], weights=part, minlength=len(total))
    return total


def judged(
    problem: AllocationProblem,
    share: FloatArray,
    proven: bool,
    fallback: str,
    pair_share: FloatArray | None = None,
    **figures: Any,
) -> AllocationResult:
    """The result with these shares: optimal where that is proven, else with `fallback`, which says what it is."""
    return AllocationResult(
        status=Status.OPTIMAL if proven else Status.UNCERTIFIED,
        share=share,
        pair_share=pair_share,
        throughput=effective_throughput(problem.throughput, problem.pairs, share, pair_share),
        fallback="" if proven else fallback,
        **figures,
    )

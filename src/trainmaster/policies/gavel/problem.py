"""What an allocation policy is given and what it returns: plain arrays, one row per job, one column per
type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

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


@dataclass(frozen=True)
class Entity:
    """A node of the tree of teams. `policy` says how it divides what it gets: "fairness" or "fifo"."""

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
    prices: FloatArray | None = None  # what the next, similar solve may be given as `warm`
    late_jobs: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


def delivered_throughput(
    problem: AllocationProblem,
    share: FloatArray,
    pair_share: FloatArray | None,
    throughput: FloatArray | None = None,
) -> FloatArray:
    """throughput(m, X) = sum_j T_mj x_mj, plus each job's part of the pairs it is in."""
    matrix = problem.throughput if throughput is None else throughput
    delivered = (matrix * share).sum(axis=1)
    if problem.pairs is not None and pair_share is not None:
        for side in (0, 1):
            part = (problem.pairs.throughput[:, :, side] * pair_share).sum(axis=1)
            delivered += np.bincount(problem.pairs.jobs[:, side], weights=part, minlength=problem.job_count)
    return delivered

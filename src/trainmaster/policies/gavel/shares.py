"""Time shares of the jobs that are present: the snapshot as an allocation problem, solved and written down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trainmaster.core.arrays import Floats, Ints
from trainmaster.core.int_list import IntList
from trainmaster.core.state.cluster_arrays import ClusterArrays
from trainmaster.core.state.job_arrays import JobArrays, work_done_column
from trainmaster.model.cluster import Cluster
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import MS_PER_S
from trainmaster.policies.gavel.artifact.tie_breaks import (
    LINEAR,
    finish_time_share,
    linear_share,
    makespan_share,
    spread_over_types,
)
from trainmaster.policies.gavel.pair_state import PairState
from trainmaster.policies.gavel.pairing import possible_pairs
from trainmaster.policies.gavel.problem import AllocationProblem, Entity, Pairs, Status
from trainmaster.policies.gavel.rounds import Rounds

if TYPE_CHECKING:
    from trainmaster.policies.gavel.policy import RoundPolicy

_QUEUES = frozenset({"gavel-fifo", "gavel-sjf"})


@dataclass
class Isolated:
    """What finish-time fairness remembers of each job, by row: how long its work so far would have taken on an
    isolated share, its speed there, and the work that remained when that speed was computed."""

    isolated_s: Floats
    isolated_rate: Floats
    remaining_before: Floats

    def count(self, remaining: Floats) -> None:
        """Count the work since the last time."""
        counted = self.isolated_rate > 0
        done = np.where(counted, self.remaining_before - remaining, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            self.isolated_s += np.where(counted, done / self.isolated_rate, 0.0)

    def renew(self, problem: AllocationProblem, rows: Ints, remaining: Floats) -> None:
        """Go on with the isolated shares of a new problem."""
        self.isolated_rate[:] = 0.0
        isolated = problem.isolated_share * np.where(problem.usable, problem.throughput, 0.0)
        self.isolated_rate[rows] = isolated.sum(axis=1)
        self.remaining_before[:] = np.nan_to_num(remaining)


class SolverTime:
    """Seconds spent on allocations by the clock that a simulation brings along; without one, nothing is measured."""

    def __init__(self) -> None:
        self.clock: Callable[[], float] | None = None
        self.spent_s = 0.0

    def measure(self, clock: Callable[[], float]) -> float:
        """Use this clock from now on; returns what was spent before."""
        self.clock = clock
        return self.spent_s

    def of(self, solve: Callable[[], Floats]) -> Floats:
        if self.clock is None:
            return solve()
        begun = self.clock()
        share = solve()
        self.spent_s += self.clock() - begun
        return share


class Shares:
    """Computes the time shares X of the jobs that are present, for the round mechanism."""

    def __init__(self, policy: RoundPolicy, cluster: Cluster, nodes: ClusterArrays, placement: int) -> None:
        self.policy, self.nodes, self.placement, self.types = policy, nodes, placement, cluster.types
        self.cost_per_hour = np.nan_to_num(cluster.prices, nan=1.0)
        self.pairs: PairState | None = None
        """The pairs to which the last shares give time; None: no pairs."""

    def renew(
        self,
        rounds: Rounds,
        columns: JobArrays,
        which: IntList,
        now_ms: int,
        isolated: Isolated | None,
        notes: list[str],
        view: Snapshot | None = None,
    ) -> None:
        """Compute X for the jobs `which` and write it into the rounds; teams and pairs need a view."""
        rounds.renew(columns, which, now_ms, self.nodes, self.placement)
        rows, counts, self.pairs = rounds.competitors(columns, which), rounds.gpus_up(self.nodes), None
        share: Floats = np.zeros((0, len(counts)))
        half_s = rounds.round_ms / MS_PER_S / 2.0
        if counts.any() and len(rows):
            job_indices = np.asarray(which.values)[: which.n]
            remaining = None
            if isolated is not None:
                remaining = columns.floats["work_total"][job_indices] - work_done_column(columns, job_indices, now_ms)
                isolated.count(remaining)
            gpus, steps_remaining, elapsed_s, slo_s = rounds.figures(columns, which, rows, now_ms)
            inside = self.policy.inside_teams
            entities, entity_of = _entities(view, rows, inside) if view is not None and inside else ((), None)
            throughput, competing = rounds.speeds_at(rows), job_indices[rows]
            problem = AllocationProblem(
                throughput=throughput,
                gpus=gpus,
                counts=counts,
                weight=columns.floats["weight"][competing],
                steps_remaining=steps_remaining,
                elapsed_s=elapsed_s,
                slo_s=slo_s,
                cost_per_hour=self.cost_per_hour,
                allowed=columns.allowed[competing],
                isolated_so_far_s=np.zeros(len(rows)) if isolated is None else isolated.isolated_s[rows],
                type_names=self.types,
                entities=entities,
                entity_of=entity_of,
                pairs=None if view is None else _pairs(self.policy, view, rows, throughput, notes),
            )
            share = self.policy.solver_time.of(lambda: self._solve(problem, rows, half_s, view, notes))
            if isolated is not None and remaining is not None:
                isolated.renew(problem, rows, remaining)
        else:
            rows = rows[:0]
        rounds.write_shares(rows, np.ascontiguousarray(share), 0 if self.pairs is None else len(self.pairs))

    def _solve(
        self, problem: AllocationProblem, rows: Ints, half_s: float, view: Snapshot | None, notes: list[str]
    ) -> Floats:
        """X; the original's, and that of a policy that is blind to types, among the optimal ones."""
        policy = self.policy
        published = policy.is_original and problem.pairs is None
        if published and policy.name in LINEAR:
            share = linear_share(problem, policy.name, policy.aware)
            if share is not None:
                return share
        result = policy.allocation(problem)
        if result.status != Status.OPTIMAL:
            notes.append(f"{policy.name}: {result.status.value}: {result.fallback}")
        if view is not None and problem.pairs is not None and result.pair_share is not None:
            self.pairs = PairState.of_result(view, rows, problem.pairs, result, half_s)
        if published and policy.name == "gavel-makespan":
            return makespan_share(problem, policy.aware, result)
        if published and policy.name == "gavel-ftf":
            return finish_time_share(problem, policy.aware, result)
        if not (published or policy.aware or policy.name in _QUEUES) and problem.pairs is None:
            return spread_over_types(problem, result)
        return result.share


def _pairs(policy: RoundPolicy, view: Snapshot, rows: Ints, throughput: Floats, notes: list[str]) -> Pairs | None:
    if not policy.shares:
        return None
    pairs, known = possible_pairs(view, rows, throughput)
    if known is False and policy.space_sharing:
        notes.append(f"{policy.name}: no speeds of jobs that share GPUs are known; each runs alone")
    return pairs


def _entities(view: Snapshot, rows: Ints, inside: str) -> tuple[tuple[Entity, ...], Ints]:
    """Teams from the jobs' entity names; `a/b/c` nests. Weights and policies come from the view (else 1, `inside`)."""
    names: list[str] = []
    index: dict[str, int] = {}
    made: list[Entity] = []

    def intern(name: str) -> int:
        if name not in index:
            parent = name.rpartition("/")[0]
            above = intern(parent) if parent else None
            index[name] = len(made)
            names.append(name)
            policy = view.entity_policies.get(name, inside)
            made.append(Entity(name, view.entity_weights.get(name, 1.0), policy, above))
        return index[name]

    known = view.jobs.entities
    of = [intern(known[e] or "default") for e in view.jobs.entity[rows].tolist()]
    return tuple(made), np.array(of, np.int64)

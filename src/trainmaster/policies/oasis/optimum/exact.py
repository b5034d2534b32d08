"""The offline optimum of an instance, with a proof that our own code checks.

Small instances: branch and bound over end slots. The relaxation of a case mixes the job's own
schedules with the count vectors of each slot (`SlotCounts`); a linear solver finds it, and is trusted with nothing: its
dual prices enter the proof, whose bound is recomputed (`proof`), and a schedule counts once it is placed on
servers and passes constraints 1-5. `optimal` means that the recomputed bound is not above the schedule's worth.
Instances with too many count vectors: a feasible schedule and a bound, by `large_instances`; never `optimal`.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from trainmaster.model.utility import FloatArray
from trainmaster.policies.oasis.instance.formulation import Instance, Schedule
from trainmaster.policies.oasis.instance.worker_counts import Ints, Placer, SlotCounts
from trainmaster.policies.oasis.optimum.large_instances import bounded_optimum
from trainmaster.policies.oasis.optimum.proof import (
    Bounds,
    Case,
    Priced,
    Proof,
    Split,
    TooManyStates,
    Tried,
    finish_all,
    schedule_errors,
    upper_bound,
)
from trainmaster.policies.oasis.program import Program

GAP = 1e-7
"""Relative difference of bound and worth below which a case is closed."""
FRACTION = 1e-6


@dataclass(frozen=True)
class OfflineOptimum:
    """`status`: "optimal" when `upper_bound`, recomputed from the proof, is `total_utility` within `GAP`; otherwise
    "limit": the best schedule found and a bound that holds."""

    total_utility: float
    upper_bound: float
    status: str
    schedules: dict[str, Schedule]
    proof: Proof | None = None

    @property
    def gap(self) -> float:
        """Relative distance of the bound above the worth."""
        return (self.upper_bound - self.total_utility) / max(abs(self.upper_bound), 1e-9)


def offline_optimum(instance: Instance, nodes_max: int = 20_000) -> OfflineOptimum:
    """Solve the whole instance with hindsight. Bounded by search nodes, so the result does not depend on speed."""
    if not instance.jobs:
        return OfflineOptimum(0.0, 0.0, "optimal", {})
    counts = SlotCounts.of(instance.cluster, instance.jobs)
    if counts is None:
        schedules, bound = bounded_optimum(instance, nodes_max)
        return OfflineOptimum(_worth(instance, schedules), bound, "limit", schedules)
    search = _Search(instance, counts)
    proof = search.run(nodes_max)
    schedules = search.schedules()
    if errors := schedule_errors(instance, schedules):
        raise AssertionError("; ".join(errors))
    total, bound = _worth(instance, schedules), upper_bound(instance, counts, proof)
    if bound < total - _slack(total):
        raise AssertionError(f"invalid proof of an optimum: a schedule worth {total} is above its bound {bound}")
    return OfflineOptimum(total, bound, "optimal" if bound <= total + _slack(total) else "limit", schedules, proof)


def _slack(total: float) -> float:
    return GAP * max(1.0, total)


def _worth(instance: Instance, schedules: dict[str, Schedule]) -> float:
    return sum(
        job.utility.value(schedules[job.id].completion - job.arrival) for job in instance.jobs if job.id in schedules
    )


@dataclass(frozen=True)
class _Relaxed:
    """A relaxation's solution: ends and workers by job and slot, and the prices of worker-slots."""

    ends: FloatArray
    workers: FloatArray
    prices: FloatArray


class _Node:
    """A case of the search: split in two, closed by prices, or tried out."""

    def __init__(self, case: Case, prices: FloatArray) -> None:
        self.case, self.prices = case, prices
        self.tried = False
        self.split: tuple[int, int] | None = None
        self.sides: list[_Node] = []

    def proof(self) -> Proof:
        if self.tried:
            return Tried()
        if self.split is None:
            return Priced(self.prices)
        low, high = self.sides
        return Split(*self.split, low.proof(), high.proof())


class _Search:
    """Best bound first; ties by age, so that the search is the same everywhere."""

    def __init__(self, instance: Instance, counts: SlotCounts) -> None:
        self._instance, self._counts = instance, counts
        self._bounds = Bounds(instance, counts)
        self._best_total = 0.0
        self._best = np.zeros(self._bounds.worth.shape, np.int64)

    def run(self, nodes_max: int) -> Proof:
        zeros = np.zeros(self._best.shape)
        root = _Node(Case.whole(self._instance), zeros)
        heap = [(-self._bounds.bound(root.case, zeros), 0, root)]
        made = 1
        while heap and made < nodes_max and self._is_open(-heap[0][0]):
            bound, _, node = heapq.heappop(heap)
            relaxed = _relax(self._bounds, node.case)
            self._round(relaxed)
            exact = self._bounds.bound(node.case, relaxed.prices)
            if exact < -bound:
                node.prices = relaxed.prices
            if not self._is_open(min(exact, -bound)):
                continue
            node.split = self._choose(relaxed, node.case)
            if node.split is None:
                node.tried = self._try_out(node.case)
                continue
            for case in node.case.split(*node.split):
                child = _Node(case, node.prices)
                node.sides.append(child)
                heapq.heappush(heap, (-self._bounds.bound(case, node.prices), made, child))
                made += 1
        return root.proof()

    def _is_open(self, bound: float) -> bool:
        return bound > self._best_total + _slack(self._best_total)

    def schedules(self) -> dict[str, Schedule]:
        """The best counts found, on servers."""
        jobs, placer = self._instance.jobs, Placer(self._instance.cluster, self._instance.jobs)
        rows: list[list[list[tuple[int, int, int]]]] = [[[] for _ in jobs] for _ in range(2)]
        for time_slot in range(self._instance.horizon):
            for role, table in enumerate(placer.place(tuple(self._best[:, time_slot].tolist()))):
                for i, server in np.argwhere(table).tolist():
                    rows[role][i].append((time_slot, server, int(table[i, server])))
        return {job.id: Schedule(tuple(rows[0][i]), tuple(rows[1][i])) for i, job in enumerate(jobs) if rows[0][i]}

    def _round(self, relaxed: _Relaxed) -> None:
        """Jobs one after the other, those the relaxation serves most first, as early as still fits."""
        taken = np.zeros_like(self._best)
        likely = relaxed.ends.sum(axis=1) * self._bounds.worth.max(axis=1)
        for i in np.argsort(-likely, kind="stable").tolist():
            self._serve(i, taken, relaxed.workers[i])
        self._keep(taken)

    def _serve(self, i: int, taken: Ints, wanted: FloatArray) -> None:
        """Enter job i into `taken`, as the relaxation has it as far as that fits; nothing when it cannot end."""
        own, need = np.zeros(len(wanted), np.int64), self._bounds.work[i]
        for limits in (np.rint(wanted).tolist(), [self._bounds.most[i]] * len(wanted)):
            for t in range(self._bounds.arrival[i], len(wanted)):
                while need > 0 and own[t] < limits[t] and self._fits(taken, own, i, t):
                    own[t] += 1
                    need -= 1
        if need == 0:
            taken[i] = own

    def _fits(self, taken: Ints, own: Ints, i: int, t: int) -> bool:
        vector: list[int] = taken[:, t].tolist()
        vector[i] = int(own[t]) + 1
        return tuple(vector) in self._counts.feasible

    def _keep(self, taken: Ints) -> None:
        """Remember counts that are worth more than the best so far, without jobs worth nothing."""
        total, kept = 0.0, np.zeros_like(taken)
        for i in np.flatnonzero(taken.any(axis=1)).tolist():
            worth = float(self._bounds.worth[i, np.flatnonzero(taken[i])[-1]])
            if worth > 0.0:
                total += worth
                kept[i] = taken[i]
        if total > self._best_total:
            self._best_total, self._best = total, kept

    def _choose(self, relaxed: _Relaxed, case: Case) -> tuple[int, int] | None:
        """The most undecided end; if all are decided, one that the case does not yet demand. None: the case demands
        all of them, or more than even the relaxation can do."""
        by = np.cumsum(relaxed.ends, axis=1)
        if (case.required & (by[:, -1] < 1.0 - FRACTION)).any():
            return None
        undecided = np.minimum(by, 1.0 - by)
        if undecided.max() > FRACTION:
            i, t = np.unravel_index(int(np.argmax(undecided)), by.shape)
            return int(i), int(t)
        deadlines = case.deadlines()
        for i, row in enumerate(relaxed.ends):
            end = int(np.flatnonzero(row > 0.5).max(initial=-1))
            if end >= 0 and deadlines[i] != end:
                return i, end
        return None

    def _try_out(self, case: Case) -> bool:
        """Whether no schedule ends all required jobs in time; the schedule there is becomes a candidate."""
        try:
            taken = finish_all(self._bounds, case.deadlines())
        except TooManyStates:
            return False
        if taken is not None:
            self._keep(taken)
        return taken is None


def _relax(bounds: Bounds, case: Case) -> _Relaxed:
    """The linear program of a case. Columns by job: an end e and its workers d_et; by slot: weights of its count
    vectors. Rows: work and workers of each end, one end per job, d against the vectors (their duals are the prices)."""
    program = Program()
    jobs, time_slots = case.ends.shape
    couple = [[program.row(-np.inf, 0.0) for _ in range(time_slots)] for _ in range(jobs)]
    failing = 4.0 * float(bounds.worth.max(axis=1).sum()) + 1.0
    ends, workers = [], []
    for i in range(jobs):
        one = program.row(1.0 if case.required[i] else 0.0, 1.0)
        for end in np.flatnonzero(case.ends[i]).tolist():
            served = program.row(0.0, np.inf)
            limits = [(program.row(-np.inf, 0.0), t) for t in range(bounds.arrival[i], end + 1)]
            entries = [
                (one, 1.0),
                (served, -float(bounds.work[i])),
                *((row, -float(bounds.most[i])) for row, _ in limits),
            ]
            ends.append((i, end, program.column(float(bounds.worth[i, end]), entries=entries)))
            for row, t in limits:
                workers.append((i, t, program.column(0.0, entries=[(served, 1.0), (row, 1.0), (couple[i][t], 1.0)])))
        program.column(-failing, entries=[(one, 1.0)])  # a required job that does not end
    for t in range(time_slots):
        convex = program.row(0.0, 1.0)
        for vector in bounds.vectors[t].tolist():
            taken = ((couple[i][t], -float(n)) for i, n in enumerate(vector) if n)
            program.column(0.0, entries=[(convex, 1.0), *taken])
    solution = program.solved({"presolve": "off"}).getSolution()
    values, duals = np.array(solution.col_value), np.array(solution.row_dual)
    found = np.zeros((2, jobs, time_slots))
    for table, columns in zip(found, (ends, workers), strict=True):
        for i, t, column in columns:
            table[i, t] += values[column]
    return _Relaxed(found[0], found[1], np.maximum(duals[np.array(couple)], 0.0))

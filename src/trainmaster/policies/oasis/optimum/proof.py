"""A proof that no schedule is worth more: a tree of cases, each closed by prices or by trying everything.

Lagrangian bound. With prices pi_it >= 0 on worker-slots, every feasible schedule is worth at most

    sum_i max_l [f_i(end of l) - sum_t pi_it d_it(l)]  +  sum_t max_{y feasible in slot t} sum_i pi_it y_i

whatever the prices: the first maximum is over the job's own schedules (constraints 1, 2, 6) and taken greedily, the
second over the count vectors of `SlotCounts` (3-5). A `Split` divides a case in two: the job ends by a slot; it ends
later or never. A `Priced` case carries prices. A `Tried` case is one in which no schedule ends every required job in
time, which `finish_all` finds by going through all of them. `upper_bound` walks the tree and recomputes the bound of
every case; the largest holds for the whole instance, since the two sides of a split leave nothing out. No solver is
involved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trainmaster.model.utility import FloatArray
from trainmaster.policies.oasis.instance.formulation import Instance, Schedule
from trainmaster.policies.oasis.instance.worker_counts import Counts, Ints, SlotCounts, most_workers

STATES_MAX = 200_000
"""States of `finish_all`."""


@dataclass(frozen=True)
class Priced:
    """A case with the prices that bound it, jobs x slots."""

    prices: FloatArray


@dataclass(frozen=True)
class Tried:
    """A case in which not all required jobs can end in time."""


@dataclass(frozen=True)
class Split:
    """`low`: the job ends by `time_slot`. `high`: it ends later or never."""

    job: int
    time_slot: int
    low: Proof
    high: Proof


Proof = Priced | Tried | Split


@dataclass(frozen=True)
class Case:
    """What the splits so far leave open: the allowed ends, jobs x slots, and the jobs that must end."""

    ends: NDArray[np.bool_]
    required: NDArray[np.bool_]

    @staticmethod
    def whole(instance: Instance) -> Case:
        """The instance itself: no end before the shortest run, none that is worth nothing."""
        ends = np.zeros((len(instance.jobs), instance.horizon), np.bool_)
        for i, job in enumerate(instance.jobs):
            for t in range(job.arrival + job.fewest_slots - 1, instance.horizon):
                ends[i, t] = job.utility.value(t - job.arrival) > 0
        return Case(ends, np.zeros(len(ends), np.bool_))

    def split(self, job: int, time_slot: int) -> tuple[Case, Case]:
        by, later, required = self.ends.copy(), self.ends.copy(), self.required.copy()
        by[job, time_slot + 1 :], later[job, : time_slot + 1], required[job] = False, False, True
        return Case(by, required), replace(self, ends=later)

    def deadlines(self) -> list[int]:
        """The last allowed end of each required job, -1 of the others."""
        return [
            int(np.flatnonzero(row).max(initial=-1)) if needed else -1
            for row, needed in zip(self.ends, self.required, strict=True)
        ]


class Bounds:
    """The Lagrangian bound of cases of one instance."""

    def __init__(self, instance: Instance, counts: SlotCounts) -> None:
        self.work = [job.worker_slots for job in instance.jobs]
        self.arrival = [job.arrival for job in instance.jobs]
        self.most = [most_workers(job) for job in instance.jobs]
        self.worth = np.zeros((len(instance.jobs), instance.horizon))
        for i, job in enumerate(instance.jobs):
            for t in range(job.arrival, instance.horizon):
                self.worth[i, t] = job.utility.value(t - job.arrival)
        arrived = np.array(self.arrival)[:, None] <= np.arange(instance.horizon)
        self.vectors = [np.unique(counts.maximal * arrived[:, t], axis=0) for t in range(instance.horizon)]

    def bound(self, case: Case, prices: FloatArray) -> float:
        """-inf when the case is empty."""
        total = sum(
            float((vectors * prices[:, t]).sum(axis=1).max(initial=0.0)) for t, vectors in enumerate(self.vectors)
        )
        return total + sum(self._best(case, i, prices[i].tolist()) for i in range(len(prices)))

    def _best(self, case: Case, i: int, price: list[float]) -> float:
        """max_l f_i(end) - sum_t pi_t d_t over the job's own schedules; 0 for none, if it need not end."""
        best = -math.inf if case.required[i] else 0.0
        for end in np.flatnonzero(case.ends[i]).tolist():
            need, cost = self.work[i], 0.0
            for t in sorted(range(self.arrival[i], end + 1), key=price.__getitem__):
                taken = min(need, self.most[i])
                cost += price[t] * taken
                need -= taken
            if need == 0:
                best = max(best, float(self.worth[i, end]) - cost)
        return best


def finish_all(bounds: Bounds, deadlines: list[int]) -> Ints | None:
    """Workers, jobs x slots, that end every job with a deadline by it; None when there are none.

    Depth first over slots; a state is the work left. More workers never hurt, so only maximal count vectors are tried.
    """
    time_slots = len(bounds.vectors)
    dead: set[tuple[int, Counts]] = set()
    taken = np.zeros((len(deadlines), time_slots), np.int64)

    def search(t: int, left: Counts) -> bool:
        if not any(left):
            return True
        if (t, left) in dead:
            return False
        if len(dead) > STATES_MAX:
            raise TooManyStates
        limits = [
            min(n, most) if arrival <= t else 0
            for n, most, arrival in zip(left, bounds.most, bounds.arrival, strict=True)
        ]
        open_slots = [max(0, deadline + 1 - max(t, a)) for deadline, a in zip(deadlines, bounds.arrival, strict=True)]
        if t < time_slots and all(n <= m * s for n, m, s in zip(left, bounds.most, open_slots, strict=True)):
            for vector in _maximal(np.minimum(bounds.vectors[t], limits)):
                if search(t + 1, tuple(n - d for n, d in zip(left, vector, strict=True))):
                    taken[:, t] = vector
                    return True
        dead.add((t, left))
        return False

    needed = tuple(work if deadline >= 0 else 0 for work, deadline in zip(bounds.work, deadlines, strict=True))
    return taken if search(0, needed) else None


class TooManyStates(Exception):
    """`finish_all` gave up."""


def _maximal(vectors: Ints) -> list[Counts]:
    """Those that no other one covers, most workers first."""
    vectors = np.unique(vectors, axis=0)
    covering = np.all(vectors[None, :, :] >= vectors[:, None, :], axis=2).sum(axis=1)
    kept = vectors[covering == 1]  # covered by itself alone
    return [tuple(row) for row in kept[np.argsort(-kept.sum(axis=1), kind="stable")].tolist()]


def upper_bound(instance: Instance, counts: SlotCounts, proof: Proof) -> float:
    """The largest bound of all cases."""
    bounds = Bounds(instance, counts)

    def walk(case: Case, node: Proof) -> float:
        if isinstance(node, Split):
            low, high = case.split(node.job, node.time_slot)
            return max(walk(low, node.low), walk(high, node.high))
        if isinstance(node, Tried):
            if finish_all(bounds, case.deadlines()) is not None:
                raise ValueError("invalid proof of an optimum: a schedule exists in a case said to have none")
            return -math.inf
        if node.prices.shape != case.ends.shape or not (node.prices >= 0).all():
            raise ValueError("invalid proof of an optimum: prices below 0")
        return bounds.bound(case, node.prices)

    return walk(Case.whole(instance), proof)


def cases(proof: Proof) -> int:
    """Cases that a proof closes."""
    return cases(proof.low) + cases(proof.high) if isinstance(proof, Split) else 1


def schedule_errors(instance: Instance, schedules: dict[str, Schedule]) -> list[str]:
    """Violations of constraints 1-5 by a set of schedules; amounts within a relative 1e-9 are equal."""
    errors: list[str] = []
    cluster = instance.cluster
    used = np.zeros((instance.horizon, *cluster.capacity.shape))
    for job in instance.jobs:
        schedule = schedules.get(job.id)
        if schedule is None:
            continue
        workers, ps = np.zeros((2, instance.horizon, len(cluster.servers)), np.int64)
        for rows, table in ((schedule.workers, workers), (schedule.servers, ps)):
            for time_slot, server, count in rows:
                table[time_slot, server] += count
        used += schedule.usage(job, instance.horizon, len(cluster.servers))
        by_slot, ps_by_slot = workers.sum(axis=1), ps.sum(axis=1)
        if by_slot.sum() < job.worker_slots:
            errors.append(f"(1) {job.id}: {by_slot.sum()} of {job.worker_slots} worker-slots")
        if by_slot.max() > job.chunks or by_slot[: job.arrival].any():
            errors.append(f"(2) {job.id}: more than {job.chunks} workers, or workers before arrival")
        misplaced = workers[:, ~cluster.hosts_workers].any() or ps[:, ~cluster.hosts_ps].any()
        if misplaced or min(workers.min(), ps.min()) < 0:
            errors.append(f"(3) {job.id}: members on servers that do not host them")
        if (ps_by_slot < [job.servers_for(int(count)) for count in by_slot]).any():
            errors.append(f"(4) {job.id}: too few parameter servers")
        if (ps_by_slot > by_slot).any():
            errors.append(f"(5) {job.id}: more parameter servers than workers")
    if (used > cluster.capacity * (1 + 1e-9)).any():
        errors.append("(3) capacity exceeded")
    return errors

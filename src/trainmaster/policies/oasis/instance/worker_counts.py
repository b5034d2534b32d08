"""Which numbers of workers may run side by side in one slot: all count vectors that the servers can host.

A slot is the same problem at any time: count vector (y_1 .. y_n) is feasible when so many workers of each job, with
their parameter servers (4), fit on the servers (3). `SlotCounts` lists all feasible vectors of a small instance. A
proof needs only the maximal ones, since fewer workers need no more room.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainmaster.policies.oasis.instance.formulation import RELATIVE_TOLERANCE, AdmissionJob, Cluster
from trainmaster.policies.oasis.instance.packing import Packing

VECTORS_MAX = 20_000
"""Feasible vectors that are listed; an instance with more is too large for the exact search."""
STEPS_MAX = 3_000_000
"""Steps of the search for one placement."""

Counts = tuple[int, ...]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class SlotCounts:
    """All feasible count vectors of a slot, and the maximal ones as rows of an array."""

    feasible: frozenset[Counts]
    maximal: Ints

    @staticmethod
    def of(cluster: Cluster, jobs: tuple[AdmissionJob, ...]) -> SlotCounts | None:
        """None when the instance is too large to list them."""
        limits = [most_workers(job) for job in jobs]
        nothing = (0,) * len(jobs)
        feasible, layer, maximal = {nothing}, [nothing], []
        refused: set[Counts] = set()
        placer = Placer(cluster, jobs)
        while layer:
            following: set[Counts] = set()
            for counts in layer:
                grown = [_with_one(counts, i) for i in range(len(jobs)) if counts[i] < limits[i]]
                for vector in grown:
                    if vector in following or vector in refused:
                        continue
                    fits = all(_with_one(vector, i, -1) in feasible for i in range(len(jobs)) if vector[i])
                    outcome = placer.fits(vector) if fits else 0
                    if outcome < 0:
                        return None
                    (following if outcome else refused).add(vector)
                if not any(vector in following for vector in grown):
                    maximal.append(counts)
            feasible |= following
            if len(feasible) > VECTORS_MAX:
                return None
            layer = sorted(following)
        return SlotCounts(frozenset(feasible), np.array(maximal, np.int64).reshape(len(maximal), len(jobs)))


def most_workers(job: AdmissionJob) -> int:
    """More workers than this in one slot never help: N (2), or the whole work."""
    return min(job.chunks, job.worker_slots)


def _with_one(counts: Counts, i: int, step: int = 1) -> Counts:
    return (*counts[:i], counts[i] + step, *counts[i + 1 :])


class Placer:
    """Places count vectors on the servers of one slot."""

    def __init__(self, cluster: Cluster, jobs: tuple[AdmissionJob, ...]) -> None:
        self._jobs, self._servers = jobs, len(cluster.servers)
        hosts = np.array([cluster.hosts_workers, cluster.hosts_ps]).astype(np.int64)
        capacity = np.array(cluster.capacity)
        self._packing = Packing(capacity, RELATIVE_TOLERANCE * capacity, hosts, STEPS_MAX)
        size = np.where(capacity.sum(axis=0) > 0, capacity.sum(axis=0), 1.0)
        demands = [(job.worker_demand, job.server_demand) for job in jobs]
        kinds = [(i, role) for i in range(len(jobs)) for role in (0, 1)]
        self._kinds = sorted(kinds, key=lambda kind: (-float(max(demands[kind[0]][kind[1]] / size)), kind))
        self._demands = demands

    def fits(self, counts: Counts) -> int:
        """1: fits, 0: does not, -1: not known, the search was too long."""
        return self._search(counts)[0]

    def place(self, counts: Counts) -> tuple[Ints, Ints]:
        """Workers and PS by job and server of a vector that fits."""
        outcome, members, at = self._search(counts)
        if outcome != 1:
            raise ValueError(f"count vector {counts} cannot be placed")
        placed = np.zeros((2, len(self._jobs), self._servers), np.int64)
        for (i, role), server in zip(members, at.tolist(), strict=True):
            placed[role, i, server] += 1
        return placed[0], placed[1]

    def _search(self, counts: Counts) -> tuple[int, list[tuple[int, int]], Ints]:
        members: list[tuple[int, int]] = []
        for i, role in self._kinds:
            members += [(i, role)] * (self._jobs[i].servers_for(counts[i]) if role else counts[i])
        at = np.zeros(len(members), np.int64)
        if not members:
            return 1, members, at
        demand = np.array([self._demands[i][role] for i, role in members], np.float64)
        roles = np.array([role for _, role in members], np.int64)
        twin = np.array([k > 0 and members[k] == members[k - 1] for k in range(len(members))], np.int64)
        n = demand.shape[1]
        parts = np.hstack([demand * (roles == 0)[:, None], demand * (roles == 1)[:, None], demand])
        total = np.vstack([np.cumsum(parts[::-1], axis=0)[::-1], np.zeros((1, 3 * n))]) * (1 - RELATIVE_TOLERANCE)
        least = np.minimum.accumulate(demand[::-1], axis=0)[::-1]
        self._packing.bound_by(np.ascontiguousarray(total), np.ascontiguousarray(least))
        return self._packing.search(demand, roles, twin, at), members, at

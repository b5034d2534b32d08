"""The OASiS problem: jobs, servers and horizon, and what follows from them without any decision.

A job needs W = E N M (tau + 2 e / b) worker-slots (constraint 1), at most N workers at once (2), as many
parameter servers as the bandwidth constraint b y <= B z asks for (4), never more than workers (5). Slots
are 0-based; a job that arrives in slot a may use slots a .. T-1; its age at completion is (last slot with a
worker) - a.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trainmaster.model.utility import FloatArray, Utility

# Amounts that differ by less than this fraction are the same amount: sums of demands are floating point.
RELATIVE_TOLERANCE = 1e-9


class Role(StrEnum):
    """What a server may host; a server of role BOTH shares its capacity between the two."""

    WORKER = "worker"
    PS = "ps"
    BOTH = "both"


@dataclass(frozen=True)
class Server:
    """One machine; `capacity` is in the order of the instance's resources."""

    id: str
    role: Role
    capacity: tuple[float, ...]


@dataclass(frozen=True)
class AdmissionJob:
    """One training job; demands are in the order of the instance's resources, rates in MB per slot."""

    id: str
    arrival: int
    epochs: float
    chunks: int
    minibatches: float
    step_slots: float
    gradient_mb: float
    worker_mb_per_slot: float
    server_mb_per_slot: float
    worker_demand: tuple[float, ...]
    server_demand: tuple[float, ...]
    utility: Utility

    @property
    def work(self) -> float:
        """W = E N M (tau + 2 e / b), in worker-slots."""
        step = self.step_slots + 2.0 * self.gradient_mb / self.worker_mb_per_slot
        return self.epochs * self.chunks * self.minibatches * step

    @cached_property
    def worker_slots(self) -> int:
        """The fewest whole worker-slots that serve W."""
        return max(1, ceil_tolerant(self.work))

    @property
    def fewest_slots(self) -> int:
        """Slots of a run with all N workers throughout: the shortest possible."""
        return -(-self.worker_slots // self.chunks)

    def servers_for(self, workers: int) -> int:
        """Parameter servers that `workers` workers need: the least z with b y <= B z; at most y since b <=
        B.
        """
        if workers == 0:
            return 0
        return max(1, ceil_tolerant(workers * self.worker_mb_per_slot / self.server_mb_per_slot))

    @property
    def ps_slots(self) -> int:
        """PS-slots of a run with N workers in every slot but the last, which has what is left."""
        whole, rest = divmod(self.worker_slots, self.chunks)
        return whole * self.servers_for(self.chunks) + self.servers_for(rest)

    def servers_for_each(self) -> NDArray[np.int64]:
        """`servers_for(0 .. N)` as an array."""
        return np.array([self.servers_for(workers) for workers in range(self.chunks + 1)], dtype=np.int64)


def ceil_tolerant(amount: float) -> int:
    """Ceiling that forgives floating-point dust: 3.0000000001 is 3."""
    return math.ceil(amount * (1.0 - RELATIVE_TOLERANCE))


@dataclass(frozen=True)
class Cluster:
    """Servers as columns. `capacity` is servers x resources."""

    resources: tuple[str, ...]
    servers: tuple[Server, ...]

    @cached_property
    def capacity(self) -> FloatArray:
        rows = [server.capacity for server in self.servers]
        return np.array(rows, dtype=np.float64).reshape(len(self.servers), len(self.resources))

    @cached_property
    def hosts_workers(self) -> NDArray[np.bool_]:
        return np.array([server.role is not Role.PS for server in self.servers], dtype=np.bool_)

    @cached_property
    def hosts_ps(self) -> NDArray[np.bool_]:
        return np.array([server.role is not Role.WORKER for server in self.servers], dtype=np.bool_)

    @cached_property
    def shared(self) -> bool:
        """Whether any server hosts both, so that worker and PS placement interact."""
        return any(server.role is Role.BOTH for server in self.servers)


@dataclass(frozen=True)
class Instance:
    """A whole offline problem: what `optimum` solves and what the online algorithm is fed job by job."""

    horizon: int
    cluster: Cluster
    jobs: tuple[AdmissionJob, ...]

    def arrivals(self) -> list[AdmissionJob]:
        """Jobs in the order they are offered: by arrival, listed order within a slot."""
        return sorted(self.jobs, key=lambda job: job.arrival)


@dataclass(frozen=True)
class Schedule:
    """A commitment: `workers[j]` is (slot, server index, count), in slot and server order; `servers` the
    PS.
    """

    workers: tuple[tuple[int, int, int], ...]
    servers: tuple[tuple[int, int, int], ...]

    @property
    def completion(self) -> int:
        """The last slot with a worker (constraint 6)."""
        return max(time_slot for time_slot, _, _ in self.workers)

    def usage(self, job: AdmissionJob, time_slots: int, servers: int) -> FloatArray:
        """Amount of every resource taken, slots x servers x resources."""
        taken = np.zeros((time_slots, servers, len(job.worker_demand)))
        for time_slot, server, count in self.workers:
            taken[time_slot, server] += count * np.asarray(job.worker_demand)
        for time_slot, server, count in self.servers:
            taken[time_slot, server] += count * np.asarray(job.server_demand)
        return taken

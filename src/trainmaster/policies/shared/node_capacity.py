# cython: cdivision=True
"""Counting by number, compiled: what fits into pools, what it takes out of them, and the sizes that jobs may have."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trainmaster.core.int_list import Bools, Floats, Ints

if TYPE_CHECKING:
    from trainmaster.policies.shared.pools import Demands, Pools

GPU_MILLI = 1000


class Room:
    """What is free by number, and what a worker or server of each row takes. Changes the arrays of `pools`."""

    def __init__(self, pools: Pools, need: Demands) -> None:
        self.whole, self.milli, self.cpu, self.mem, self.anywhere = pools
        self.need_gpu, self.need_share, self.need_cpu, self.need_mem, self.server_cpu, self.server_mem = need

    def fits(self, row: int, gpu_type: int, workers: int, servers: int) -> bool:
        """Whether so many workers on nodes of a type, and servers anywhere, fit by number."""
        gpu = workers * self.need_gpu[row]
        if gpu > 0:
            if self.need_share[row] == GPU_MILLI:
                if gpu > self.whole[gpu_type]:
                    return False
            elif gpu > self.milli[gpu_type]:
                return False
        cpu, mem = workers * self.need_cpu[row], workers * self.need_mem[row]
        if cpu > self.cpu[gpu_type] or mem > self.mem[gpu_type]:
            return False
        return (
            cpu + servers * self.server_cpu[row] <= self.anywhere[0]
            and mem + servers * self.server_mem[row] <= self.anywhere[1]
        )

    def take(self, row: int, gpu_type: int, workers: int, servers: int) -> None:
        """Take it out of the pools (negative numbers give back)."""
        gpu = workers * self.need_gpu[row]
        self.milli[gpu_type] -= gpu
        if self.need_share[row] == GPU_MILLI:
            self.whole[gpu_type] -= gpu
        else:
            # A fraction may break a whole GPU or not; count on the worse only when nothing else is left.
            unbroken = math.floor(self.milli[gpu_type] / GPU_MILLI) * GPU_MILLI
            self.whole[gpu_type] = min(self.whole[gpu_type], unbroken)
        self.cpu[gpu_type] -= workers * self.need_cpu[row]
        self.mem[gpu_type] -= workers * self.need_mem[row]
        self.anywhere[0] -= workers * self.need_cpu[row] + servers * self.server_cpu[row]
        self.anywhere[1] -= workers * self.need_mem[row] + servers * self.server_mem[row]

    def use(self, row: int, workers: int, servers: int, resource: int) -> float:
        """GPU thousandths (0), CPU (1) or memory (2) of a size."""
        if resource == 0:
            return workers * self.need_gpu[row]
        if resource == 1:
            return workers * self.need_cpu[row] + servers * self.server_cpu[row]
        return workers * self.need_mem[row] + servers * self.server_mem[row]


class JobSizes:
    """By row: the size and type that a pass changes in place, and the limits of both."""

    def __init__(
        self,
        workers: Ints,
        servers: Ints,
        gpu_type: Ints,
        workers_min: Ints,
        workers_max: Ints,
        servers_min: Ints,
        servers_max: Ints,
        allowed: Bools,
        throughput: Floats,
    ) -> None:
        self.workers, self.servers, self.gpu_type = workers, servers, gpu_type
        self.workers_min, self.workers_max = workers_min, workers_max
        self.servers_min, self.servers_max = servers_min, servers_max
        self.allowed, self.throughput = allowed, throughput

    def fastest_with_room(self, room: Room, row: int, workers: int, servers: int, closed: Bools) -> int:
        """The fastest acceptable type, not `closed`, where it fits by number; -1 when there is none."""
        best = -1
        for gpu_type in range(self.allowed.shape[1]):
            if (
                self.allowed[row, gpu_type]
                and not closed[gpu_type]
                and (best < 0 or self.throughput[row, gpu_type] > self.throughput[row, best])
                and room.fits(row, gpu_type, workers, servers)
            ):
                best = gpu_type
        return best

    def start_small(self, room: Room, waiting: Ints, closed: Bools) -> None:
        """One smallest gang for each waiting job, in this order, on its fastest type with room."""
        for k in range(len(waiting)):
            row: int = waiting[k]
            workers, servers = self.workers_min[row], self.servers_min[row]
            gpu_type = self.fastest_with_room(room, row, workers, servers, closed)
            if gpu_type >= 0:
                room.take(row, gpu_type, workers, servers)
                self.workers[row], self.servers[row], self.gpu_type[row] = workers, servers, gpu_type

"""What is free: thousandths of each device, whole devices, CPU and memory by node. An engine has two: what is planned
(devices of jobs being stopped count as free) and what is physical (what processes may really occupy)."""

from __future__ import annotations

from trainmaster.core.codes import HEAD, PART, SHARE, WHOLE
from trainmaster.core.int_list import IntList, Ints
from trainmaster.core.node_index import NodeIndex
from trainmaster.core.state.cluster_arrays import ClusterArrays
from trainmaster.core.state.job_arrays import JobArrays


class FreeResources:
    """`device_milli[n, d]` is what is left of device d of node n (0 where there is none); `whole[n]` counts the devices
    of node n that are entirely free. Compiled code names the same arrays `milli`, `free_whole`, `free_cpu`,
    `free_mem`. Who writes there directly sets `index` to None; it is made when it is needed."""

    def __init__(self, device_milli: Ints, whole: Ints, cpu_milli: Ints, mem_mib: Ints) -> None:
        self.device_milli, self.whole, self.cpu_milli, self.mem_mib = device_milli, whole, cpu_milli, mem_mib
        self.milli, self.free_whole, self.free_cpu, self.free_mem = device_milli, whole, cpu_milli, mem_mib
        self.index: NodeIndex | None = None
        """Nodes by free devices."""


def index_of(free: FreeResources, cluster: ClusterArrays) -> NodeIndex:
    """Nodes by free devices."""
    if free.index is None:
        free.index = NodeIndex(cluster.type_of, cluster.n_types, free.milli, free.free_whole)
    return free.index


def any_device_left(free: FreeResources) -> bool:
    index = free.index
    if index is not None:
        for kind in range(index.n_types):
            if index.milli_of_type[kind] != 0:
                return True
        return False
    for node in range(free.milli.shape[0]):
        for device in range(free.milli.shape[1]):
            if free.milli[node, device] != 0:
                return True
    return False


def add_gang(
    free: FreeResources,
    packed: IntList,
    at: int,
    sign: int,
    cpu_each: int,
    mem_each: int,
    server_cpu: int,
    server_mem: int,
) -> None:
    """Give a gang's devices, CPU and memory back (`sign` 1) or take them (-1)."""
    n_parts, share = packed.values[at], packed.values[at + SHARE]
    device = at + HEAD + PART * n_parts
    for k in range(n_parts):
        part = at + HEAD + PART * k
        node, workers, servers = packed.values[part], packed.values[part + 1], packed.values[part + 2]
        whole_before = free.free_whole[node]
        for _ in range(packed.values[part + 3]):
            was = free.milli[node, packed.values[device]]
            now = was + sign * share
            free.milli[node, packed.values[device]] = now
            if now == WHOLE and was != WHOLE:
                free.free_whole[node] += 1
            elif was == WHOLE and now != WHOLE:
                free.free_whole[node] -= 1
            device += 1
        if free.index is not None and packed.values[part + 3] > 0:
            whole = free.free_whole[node]
            free.index.change(node, whole, whole - whole_before, sign * share * packed.values[part + 3])  # type: ignore
        free.free_cpu[node] += sign * (workers * cpu_each + servers * server_cpu)
        free.free_mem[node] += sign * (workers * mem_each + servers * server_mem)


def gang_fits(
    free: FreeResources, packed: IntList, at: int, cpu_each: int, mem_each: int, server_cpu: int, server_mem: int
) -> bool:
    """Whether a gang could be taken now."""
    n_parts, share = packed.values[at], packed.values[at + SHARE]
    device = at + HEAD + PART * n_parts
    for k in range(n_parts):
        part = at + HEAD + PART * k
        node, workers, servers, n_devices = (
            packed.values[part],
            packed.values[part + 1],
            packed.values[part + 2],
            packed.values[part + 3],
        )
        for x in range(device, device + n_devices):
            need = share
            if share < WHOLE:  # several members of one gang may share a device: what they need of it adds up
                need = 0
                for y in range(device, device + n_devices):
                    if packed.values[y] == packed.values[x]:
                        need += share
            if free.milli[node, packed.values[x]] < need:
                return False
        device += n_devices
        if workers * cpu_each + servers * server_cpu > free.free_cpu[node]:
            return False
        if workers * mem_each + servers * server_mem > free.free_mem[node]:
            return False
    return True


def give_gang(free: FreeResources, packed: IntList, at: int, i: int, jobs: JobArrays) -> None:
    """Give back a gang of job i."""
    add_gang(
        free,
        packed,
        at,
        1,
        jobs.worker_cpu_milli[i],
        jobs.worker_mem_mib[i],
        jobs.server_cpu_milli[i],
        jobs.server_mem_mib[i],
    )


def take_gang(free: FreeResources, packed: IntList, at: int, i: int, jobs: JobArrays) -> None:
    add_gang(
        free,
        packed,
        at,
        -1,
        jobs.worker_cpu_milli[i],
        jobs.worker_mem_mib[i],
        jobs.server_cpu_milli[i],
        jobs.server_mem_mib[i],
    )


def fits_gang(free: FreeResources, packed: IntList, at: int, i: int, jobs: JobArrays) -> bool:
    return gang_fits(
        free,
        packed,
        at,
        jobs.worker_cpu_milli[i],
        jobs.worker_mem_mib[i],
        jobs.server_cpu_milli[i],
        jobs.server_mem_mib[i],
    )

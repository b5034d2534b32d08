"""Whether a job could ever run, and at which size: its gang placed on an empty cluster."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainmaster.core.engine.placement import Placer
from trainmaster.core.state.cluster_arrays import ClusterArrays
from trainmaster.model.capacity.free_resources import FreeCapacity
from trainmaster.model.cluster import Cluster
from trainmaster.model.job import NO_DEMAND, JobSpec
from trainmaster.model.placement import Strategy
from trainmaster.model.units import GPU_MILLI


def fits_when_empty(cluster: Cluster, spec: JobSpec, workers: int, gpu_type: int, servers: int | None = None) -> bool:
    """Whether this many workers and servers (default: the fewest) fit on nodes of one type that are up and empty."""
    up = np.ones(len(cluster.nodes), np.bool_)
    nodes = ClusterArrays(cluster.type_of, cluster.gpus, cluster.rack_of, len(cluster.types), up)
    placer = Placer(int(Strategy.PACK), nodes)
    asked, worker, server = placer.demand, spec.worker, spec.server
    asked.workers, asked.devices_each, asked.share = workers, worker.devices, worker.share_milli
    asked.cpu_each, asked.mem_each, asked.servers = (
        worker.cpu_milli,
        worker.mem_mib,
        spec.servers_min if servers is None else servers,
    )
    asked.server_cpu, asked.server_mem = server.cpu_milli, server.mem_mib
    placer.open_set(0)
    return placer.place_gang(gpu_type, FreeCapacity.full(cluster))


def largest_that_fits(cluster: Cluster, spec: JobSpec, workers: int, gpu_types: Sequence[int]) -> int:
    """The most workers up to `workers` that fit on an empty cluster; at least the job's smallest size."""
    return max((_largest(cluster, spec, workers, gpu_type) for gpu_type in gpu_types), default=workers)


def largest_size(cluster: Cluster, spec: JobSpec) -> int:
    """The most workers that nodes of one acceptable type could hold when they are empty."""
    gpu_types = [
        k
        for k, name in enumerate(cluster.types)
        if (not spec.gpu_types or name in spec.gpu_types)
        and (not spec.steps_per_s or spec.steps_per_s.get(name, 0.0) > 0)
    ]
    return largest_that_fits(cluster, spec, max(cluster.total_gpus, spec.workers_min), gpu_types)


def _largest(cluster: Cluster, spec: JobSpec, workers: int, gpu_type: int) -> int:
    low, high = spec.workers_min, workers
    if spec.worker.devices:
        nodes = cluster.gpus[cluster.type_of == gpu_type]
        high = min(high, int(nodes.sum()) * (GPU_MILLI // spec.worker.share_milli) // spec.worker.devices)
    if high <= low or (high == workers and not _needs_more_than_devices(spec)):
        return max(low, high)
    while low < high:
        middle = (low + high + 1) // 2
        if fits_when_empty(cluster, spec, middle, gpu_type):
            low = middle
        else:
            high = middle - 1
    return low


def most_servers_that_fit(cluster: Cluster, spec: JobSpec, workers: int, gpu_types: Sequence[int]) -> int:
    """The most servers up to what the job asks for that fit beside its workers on an empty cluster; at least its
    fewest."""
    low, high = spec.servers_min, min(max(spec.servers_ref, spec.servers_min), spec.servers_max)
    while low < high:
        middle = (low + high + 1) // 2
        if any(fits_when_empty(cluster, spec, workers, gpu_type, middle) for gpu_type in gpu_types):
            low = middle
        else:
            high = middle - 1
    return low


def _needs_more_than_devices(spec: JobSpec) -> bool:
    worker = spec.worker
    return bool(worker.cpu_milli or worker.mem_mib or worker.devices > 1 or spec.server != NO_DEMAND)

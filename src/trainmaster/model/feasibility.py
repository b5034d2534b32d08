"""Whether a job could ever run: its gang placed on an empty cluster."""

from __future__ import annotations

import numpy as np

from trainmaster.core.engine.placement import Placer
from trainmaster.core.state.cluster_arrays import ClusterArrays
from trainmaster.model.cluster import Cluster
from trainmaster.model.free_resources import FreeCapacity
from trainmaster.model.job import JobSpec
from trainmaster.model.placement import Strategy


def fits_when_empty(cluster: Cluster, spec: JobSpec, workers: int, gpu_type: int) -> bool:
    """Whether this many workers, with the fewest servers, fit on nodes of one type that are up and empty."""
    up = np.ones(len(cluster.nodes), np.bool_)
    nodes = ClusterArrays(cluster.type_of, cluster.gpus, cluster.rack_of, len(cluster.types), up)
    placer = Placer(int(Strategy.PACK), nodes)
    asked, worker, server = placer.demand, spec.worker, spec.server
    asked.workers, asked.devices_each, asked.share = workers, worker.devices, worker.share_milli
    asked.cpu_each, asked.mem_each, asked.servers = worker.cpu_milli, worker.mem_mib, spec.servers_min
    asked.server_cpu, asked.server_mem = server.cpu_milli, server.mem_mib
    placer.open_set(0)
    return placer.place_gang(gpu_type, FreeCapacity.full(cluster))

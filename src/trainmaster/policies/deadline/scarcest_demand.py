"""What a worker takes of a type, all resources in one figure: the GPUs that its scarcest demand blocks.

Reservations are booked in milli-GPUs. A worker that wants more CPU or memory than goes with its GPUs keeps others
from using theirs, so it is booked at its dominant share: with r CPUs (or MiB) for each GPU of a node, a worker
blocks max(GPUs, CPUs / r_cpu, MiB / r_mem) GPUs. When the sum of these fits the GPUs of a type, so do GPUs, CPU and
memory each. The ratio is that of the type's poorest node, and over the types a job may use the largest
figure counts: both err on the side of keeping promises.
"""

from __future__ import annotations

import numpy as np

from trainmaster.core.arrays import Ints
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import GPU_MILLI, UNLIMITED


def blocked_milli(view: Snapshot) -> Ints:
    """Milli-GPUs that one worker of each row blocks (its servers are spread over its smallest gang)."""
    jobs, cluster = view.jobs, view.cluster
    each = jobs.worker_gpu_milli
    for limits, worker, server in (
        (cluster.cpu_milli, "worker_cpu_milli", "server_cpu_milli"),
        (cluster.mem_mib, "worker_mem_mib", "server_mem_mib"),
    ):
        with_gpus = (cluster.gpus > 0) & (limits < UNLIMITED)
        if not with_gpus.any():
            continue
        servers = jobs.servers_ask * getattr(jobs, server) / np.maximum(jobs.workers_min, 1)
        demand = getattr(jobs, worker) + servers
        if not (demand > 0).any():
            continue
        most = np.zeros(len(jobs))
        for gpu_type in range(len(cluster.types)):
            nodes = with_gpus & (cluster.type_of == gpu_type)
            if nodes.any():
                per_gpu = float((limits[nodes] / cluster.gpus[nodes]).min())
                blocked = demand * GPU_MILLI / per_gpu if per_gpu > 0 else np.where(demand > 0, np.inf, 0.0)
                most = np.maximum(most, np.where(jobs.allowed[:, gpu_type], blocked, 0.0))
        each = np.maximum(each, np.ceil(np.minimum(most, 2.0**40) - 1e-6).astype(np.int64))
    return each

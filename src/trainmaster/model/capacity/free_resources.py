"""Who has what: free devices, CPU and memory per node, for those who think in allocations
(`core.state.free_resources`)."""

from __future__ import annotations

import numpy as np

from trainmaster.core.state.free_resources import FreeResources, add_gang, gang_fits
from trainmaster.model.allocation import Allocation
from trainmaster.model.capacity.packed_allocation import packed_list
from trainmaster.model.cluster import Cluster
from trainmaster.model.job import Demand
from trainmaster.model.units import GPU_MILLI


class FreeCapacity(FreeResources):
    """Free capacity."""

    @classmethod
    def full(cls, cluster: Cluster) -> FreeCapacity:
        """Everything free."""
        width = int(cluster.gpus.max()) if len(cluster.nodes) else 0
        present = np.arange(width)[None, :] < cluster.gpus[:, None]
        return cls(
            np.where(present, GPU_MILLI, 0).astype(np.int64),
            cluster.gpus.copy(),
            cluster.cpu_milli.copy(),
            cluster.mem_mib.copy(),
        )

    def copy(self) -> FreeCapacity:
        return FreeCapacity(self.device_milli.copy(), self.whole.copy(), self.cpu_milli.copy(), self.mem_mib.copy())

    def take(self, allocation: Allocation, worker: Demand, server: Demand) -> None:
        self._add(allocation, worker, server, -1)

    def give(self, allocation: Allocation, worker: Demand, server: Demand) -> None:
        self._add(allocation, worker, server, 1)

    def _add(self, allocation: Allocation, worker: Demand, server: Demand, sign: int) -> None:
        add_gang(
            self, packed_list(allocation), 0, sign, worker.cpu_milli, worker.mem_mib, server.cpu_milli, server.mem_mib
        )

    def fits(self, allocation: Allocation, worker: Demand, server: Demand) -> bool:
        """Whether it could be taken now."""
        return gang_fits(
            self, packed_list(allocation), 0, worker.cpu_milli, worker.mem_mib, server.cpu_milli, server.mem_mib
        )

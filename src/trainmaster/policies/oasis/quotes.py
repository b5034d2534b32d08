"""What one job's workers and parameter servers cost, slot by slot, at the prices of one moment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainmaster.model.utility import FloatArray
from trainmaster.policies.oasis import joint_placement as joint
from trainmaster.policies.oasis.formulation import AdmissionJob, Cluster, Schedule
from trainmaster.policies.oasis.placement import fill_cheapest, quote, separate_costs
from trainmaster.policies.oasis.prices import PriceTable


@dataclass
class Quotes:
    """Costs from the job's arrival slot on. `cost[t, d]` is COST of d workers with their PS; inf: does not
    fit.

    `exact` is false when servers of both roles are too many for the exact joint placement; then `cost` is
    filled for the counts that were asked for, and by `cost_at` for others as they are needed.
    """

    job: AdmissionJob
    cluster: Cluster
    used: FloatArray
    cost: FloatArray
    worker_cost: FloatArray
    worker_room: NDArray[np.int64]
    ps_cost: FloatArray
    ps_room: NDArray[np.int64]
    ps_needed: NDArray[np.int64]
    exact: bool

    @staticmethod
    def of(
        job: AdmissionJob,
        table: PriceTable,
        cluster: Cluster,
        used: FloatArray,
        options: NDArray[np.int64],
        joint_operations_max: int,
    ) -> Quotes:
        ps_needed = job.servers_for_each()
        most, most_ps = job.chunks, int(ps_needed[-1])
        worker, ps = np.asarray(job.worker_demand), np.asarray(job.server_demand)
        capacity = cluster.capacity
        worker_cost, worker_room = quote(
            used, capacity, table.ln_low, table.ln_spread, worker, cluster.hosts_workers, most
        )
        ps_cost, ps_room = quote(used, capacity, table.ln_low, table.ln_spread, ps, cluster.hosts_ps, most_ps)
        exact = True
        if not cluster.shared:
            cost = separate_costs(worker_cost, worker_room, ps_cost, ps_room, ps_needed)
        else:
            both = cluster.hosts_workers & cluster.hosts_ps
            steps = joint.exact_operations(used, capacity, worker, ps, both, most, most_ps)
            exact = steps * used.shape[0] <= joint_operations_max
            if exact:
                cost = joint.exact_costs(
                    used, capacity, worker, ps, both, worker_cost, worker_room, ps_cost, ps_room, ps_needed
                )
            else:
                cost = joint.greedy_costs(
                    used, capacity, worker, ps, cluster.hosts_workers, cluster.hosts_ps, worker_cost, ps_cost,
                    ps_needed, options,
                )  # fmt: skip
        return Quotes(job, cluster, used, cost, worker_cost, worker_room, ps_cost, ps_room, ps_needed, exact)

    def cost_at(self, slot: int, workers: int) -> float:
        """COST(slot, workers); slots count from the job's arrival."""
        if not self.exact and not np.isfinite(self.cost[slot, workers]):
            self.cost[slot, workers] = self._place_greedily(slot, workers)[0]
        return float(self.cost[slot, workers])

    def place(self, workers: NDArray[np.int64]) -> tuple[Schedule, float]:
        """The servers that host `workers[t]` workers and their PS in each slot, and what that costs."""
        worker_rows: list[tuple[int, int, int]] = []
        ps_rows: list[tuple[int, int, int]] = []
        cost = 0.0
        for slot in np.flatnonzero(workers):
            count = int(workers[slot])
            cost += self.cost_at(int(slot), count)
            worker_taken, ps_taken = self._placement(int(slot), count)
            absolute = self.job.arrival + int(slot)
            worker_rows += [(absolute, int(s), int(worker_taken[s])) for s in np.flatnonzero(worker_taken)]
            ps_rows += [(absolute, int(s), int(ps_taken[s])) for s in np.flatnonzero(ps_taken)]
        return Schedule(tuple(worker_rows), tuple(ps_rows)), cost

    def _placement(self, slot: int, workers: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        ps = int(self.ps_needed[workers])
        if not self.cluster.shared:
            return (
                fill_cheapest(self.worker_cost[slot], self.worker_room[slot], workers),
                fill_cheapest(self.ps_cost[slot], self.ps_room[slot], ps),
            )
        if not self.exact:
            return self._place_greedily(slot, workers)[1:]
        both = self.cluster.hosts_workers & self.cluster.hosts_ps
        return joint.exact_placement(
            self.used[slot], self.cluster.capacity, np.asarray(self.job.worker_demand),
            np.asarray(self.job.server_demand), both, self.worker_cost[slot], self.worker_room[slot],
            self.ps_cost[slot], self.ps_room[slot], workers, ps,
        )  # fmt: skip

    def _place_greedily(self, slot: int, workers: int) -> tuple[float, NDArray[np.int64], NDArray[np.int64]]:
        results = [
            joint.greedy_placement(
                self.used[slot], self.cluster.capacity, np.asarray(self.job.worker_demand),
                np.asarray(self.job.server_demand), self.cluster.hosts_workers, self.cluster.hosts_ps,
                self.worker_cost[slot], self.ps_cost[slot], workers, int(self.ps_needed[workers]),
                workers_first,
            )
            for workers_first in (True, False)
        ]  # fmt: skip
        return results[0] if results[0][0] <= results[1][0] else results[1]

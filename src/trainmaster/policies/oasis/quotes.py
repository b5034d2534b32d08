"""What one job's workers and parameter servers cost, slot by slot, at the prices of one moment."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from trainmaster.model.utility import FloatArray
from trainmaster.policies.oasis.instance.cost import Gang, GangCosts
from trainmaster.policies.oasis.instance.formulation import AdmissionJob, Cluster, Schedule
from trainmaster.policies.oasis.instance.joint_cost import JointCosts
from trainmaster.policies.oasis.prices import PriceTable

Placement = tuple[NDArray[np.int64], NDArray[np.int64]]


class Quotes:
    """Costs from the job's arrival slot on. `cost[t, d]` is COST of d workers with their PS; inf: does not fit.

    `exact` is false when servers of both roles are too many for the exact joint placement. Except where it is exact on
    such servers, `cost` is filled for the counts of `options` alone, and by `cost_at` for others as they are needed.
    """

    def __init__(
        self,
        job: AdmissionJob,
        table: PriceTable,
        cluster: Cluster,
        used: FloatArray,
        options: NDArray[np.int64],
        joint_operations_max: int,
    ) -> None:
        self._job = job
        most, most_ps = job.chunks, job.servers_for(job.chunks)
        self._gangs = [Gang(workers, job.servers_for(workers)) for workers in range(most + 1)]
        self._costs = gang_costs(job, cluster, used)
        self._costs.price(table.ln_low, table.ln_spread, most, most_ps)
        self.cost = np.full((len(used), most + 1), np.nan)
        self._joint: JointCosts | None = None
        self._orders = (True, False) if cluster.shared else (True,)
        self.exact = True
        if cluster.shared:
            joint = JointCosts(self._costs, cluster.hosts_workers & cluster.hosts_ps)
            self.exact = joint.operations(most, most_ps) * len(used) <= joint_operations_max
            if self.exact:
                self._joint = joint
                joint.fill(job.servers_for_each(), self.cost)
                return
        asked = np.empty((len(used), len(options)))
        self._costs.costs([self._gangs[workers] for workers in options.tolist()], asked, cluster.shared)
        self.cost[:, options] = asked

    def cost_at(self, time_slot: int, workers: int) -> float:
        """COST(slot, workers); slots count from the job's arrival."""
        if math.isnan(self.cost[time_slot, workers]):
            gang = self._gangs[workers]
            self.cost[time_slot, workers] = min(self._costs.place(time_slot, gang, first) for first in self._orders)
        return float(self.cost[time_slot, workers])

    def place(self, workers: NDArray[np.int64]) -> tuple[Schedule, float]:
        """The servers that host `workers[t]` workers and their PS in each slot, and what that costs."""
        worker_rows: list[tuple[int, int, int]] = []
        ps_rows: list[tuple[int, int, int]] = []
        cost = 0.0
        for time_slot in np.flatnonzero(workers).tolist():
            count = int(workers[time_slot])
            cost += self.cost_at(time_slot, count)
            placement = self._placement(time_slot, count)
            for rows, taken in zip((worker_rows, ps_rows), placement, strict=True):
                rows += [(self._job.arrival + time_slot, int(s), int(taken[s])) for s in np.flatnonzero(taken)]
        return Schedule(tuple(worker_rows), tuple(ps_rows)), cost

    def _placement(self, time_slot: int, workers: int) -> Placement:
        gang, costs = self._gangs[workers], self._costs
        if self._joint is not None:
            on_workers, on_ps = np.zeros((2, costs.nodes), np.int64)
            self._joint.place(time_slot, workers, gang.servers, on_workers, on_ps)
            return on_workers, on_ps
        first = next(
            order for order in self._orders if costs.place(time_slot, gang, order) == self.cost[time_slot, workers]
        )
        costs.place(time_slot, gang, first)
        return np.array(costs.on_workers), np.array(costs.on_ps)


def gang_costs(job: AdmissionJob, cluster: Cluster, used: FloatArray) -> GangCosts:
    """The job's costs on a cluster with these commitments, still without prices."""
    worker, ps = np.asarray(job.worker_demand, np.float64), np.asarray(job.server_demand, np.float64)
    used = np.ascontiguousarray(used)
    return GangCosts(used, cluster.capacity, worker, ps, cluster.hosts_workers, cluster.hosts_ps)

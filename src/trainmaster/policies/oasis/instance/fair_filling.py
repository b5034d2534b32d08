"""Dominant-resource fairness in one slot by progressive filling. Compiled (`fair_filling.pxd`)."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from trainmaster.policies.oasis.instance.formulation import RELATIVE_TOLERANCE

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
DUST = RELATIVE_TOLERANCE


class FairFilling:
    """Again and again one worker, and the PS it makes necessary, for the job of least dominant share, until nothing
    more fits. Then `on_workers`, `on_ps` (jobs x servers) and `share` (by job) hold the result."""

    def __init__(self, capacity: Floats, hosts_workers: npt.NDArray[np.bool_], hosts_ps: npt.NDArray[np.bool_]) -> None:
        self.capacity, self.free = capacity, capacity.copy()
        self.hosts = np.array([hosts_workers, hosts_ps]).astype(np.int64)
        self.worker_total = capacity[hosts_workers].sum(axis=0)
        self.ps_total = capacity[hosts_ps].sum(axis=0)

    def run(self, worker: Floats, ps: Floats, ps_per_worker: Floats, most: Ints) -> None:
        """Demands are jobs x resources; `most`: workers a job may have."""
        jobs, servers = worker.shape[0], self.capacity.shape[0]
        self.worker, self.ps = worker, ps
        self.on_workers, self.on_ps = np.zeros((2, jobs, servers), np.int64)
        self.count, self.ps_count, self.active = np.zeros((3, jobs), np.int64)
        self.share = np.zeros(jobs)
        for i in range(jobs):
            self.active[i] = most[i] > 0
        while True:
            chosen = -1
            for i in range(jobs):
                if self.active[i] and (chosen < 0 or self.share[i] < self.share[chosen]):
                    chosen = i
            if chosen < 0:
                return
            needed = math.ceil((self.count[chosen] + 1) * ps_per_worker[chosen] * (1.0 - DUST))
            grown = self._add_worker(chosen, max(1, int(needed)) > self.ps_count[chosen])
            self.active[chosen] = grown and self.count[chosen] < most[chosen]

    def _add_worker(self, i: int, with_ps: bool) -> bool:
        at = self._first_fit(0, self.worker, i)
        if at < 0:
            return False
        self._take(at, self.worker, i, 1.0)
        if with_ps:
            ps_at = self._first_fit(1, self.ps, i)
            if ps_at < 0:
                self._take(at, self.worker, i, -1.0)
                return False
            self._take(ps_at, self.ps, i, 1.0)
            self.on_ps[i, ps_at] += 1
            self.ps_count[i] += 1
        self.on_workers[i, at] += 1
        self.count[i] += 1
        for r in range(self.capacity.shape[1]):
            if self.worker_total[r] > 0:
                self.share[i] = max(self.share[i], self.count[i] * self.worker[i, r] / self.worker_total[r])
            if self.ps_total[r] > 0:
                self.share[i] = max(self.share[i], self.ps_count[i] * self.ps[i, r] / self.ps_total[r])
        return True

    def _first_fit(self, role: int, demand: Floats, i: int) -> int:
        for s in range(self.capacity.shape[0]):
            fits = self.hosts[role, s] != 0
            for r in range(self.capacity.shape[1]):
                if self.free[s, r] + DUST * self.capacity[s, r] < demand[i, r]:
                    fits = False
            if fits:
                return s
        return -1

    def _take(self, s: int, demand: Floats, i: int, sign: float) -> None:
        for r in range(self.capacity.shape[1]):
            self.free[s, r] -= sign * demand[i, r]

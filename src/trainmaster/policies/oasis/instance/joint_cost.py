"""COST(t, d) where servers of role `both` share their capacity between the roles: exact. Compiled (`joint_cost.pxd`).

A DP over those servers, with the workers and PS placed so far as its state; on the other servers the cheapest come
first, as in `cost`. `operations` says what it takes: many such servers are left to the greedy way of `GangCosts`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from trainmaster.core.int_list import IntList
from trainmaster.policies.oasis.instance.cost import GangCosts

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
INFINITY = float("inf")


class JointCosts:
    """Exact costs and places on servers some of which host both roles (`both`), at the unit costs of `costs`."""

    def __init__(self, costs: GangCosts, both: npt.NDArray[np.bool_]) -> None:
        self.costs = costs
        self.both = both.view(np.uint8)
        self.shared = np.flatnonzero(both)

    def operations(self, most: int, most_ps: int) -> int:
        """Steps of the DP in the slot that needs most of them."""
        worst = 0
        for t in range(self.costs.time_slots):
            options = 0
            for j in range(len(self.shared)):
                for z in range(self._ps_fit(t, self.shared[j], most_ps) + 1):
                    options += self._workers_fit(t, self.shared[j], z, most) + 1
            worst = max(worst, options * (most + 1) * (most_ps + 1))
        return worst

    def fill(self, ps_needed: Ints, out: Floats) -> None:
        """COST(t, d) for every slot and d = 0 .. N; slots committed alike are computed once."""
        most = len(ps_needed) - 1
        for t in range(self.costs.time_slots):
            if self.costs.same_as_before(t):
                for d in range(most + 1):
                    out[t, d] = out[t - 1, d]
                continue
            tables = self._tables(t, most, ps_needed[most])
            for d in range(most + 1):
                out[t, d] = tables[len(self.shared), d, ps_needed[d]]

    def place(self, t: int, workers: int, ps: int, on_workers: Ints, on_ps: Ints) -> None:
        """A cheapest placement in slot t, into `on_workers` and `on_ps` (zeros before)."""
        tables = self._tables(t, workers, ps)
        y, z = workers, ps
        for back in range(len(self.shared)):
            j = len(self.shared) - 1 - back
            s = self.shared[j]
            found = False
            for dz in range(self._ps_fit(t, s, z) + 1):
                for dy in range(self._workers_fit(t, s, dz, y) + 1):
                    extra = dy * self.costs.worker_cost[t, s] + dz * self.costs.ps_cost[t, s]
                    # The same floating-point expression as in the forward pass, so equality is exact.
                    if tables[j, y - dy, z - dz] + extra == tables[j + 1, y, z]:
                        on_workers[s] = dy
                        on_ps[s] = dz
                        found = True
                        break
                if found:
                    break
            y -= on_workers[s]
            z -= on_ps[s]
        self._fill_cheapest(self.costs.by_worker_cost, self.costs.worker_room, t, y, on_workers)
        self._fill_cheapest(self.costs.by_ps_cost, self.costs.ps_room, t, z, on_ps)

    def _tables(self, t: int, most: int, most_ps: int) -> Floats:
        """tables[j, y, z]: least cost of y workers and z PS on servers of one role and the first j of both."""
        tables = np.full((len(self.shared) + 1, most + 1, most_ps + 1), np.inf)
        self._start(t, tables)
        for j in range(len(self.shared)):
            self._add_server(t, j, tables)
        return tables

    def _start(self, t: int, tables: Floats) -> None:
        workers, ps = np.full(tables.shape[1], np.inf), np.full(tables.shape[2], np.inf)
        self.costs.sort(t)
        self._cheapest_prefix(self.costs.by_worker_cost, self.costs.worker_cost, self.costs.worker_room, t, workers)
        self._cheapest_prefix(self.costs.by_ps_cost, self.costs.ps_cost, self.costs.ps_room, t, ps)
        for y in range(tables.shape[1]):
            for z in range(tables.shape[2]):
                tables[0, y, z] = workers[y] + ps[z]

    def _add_server(self, t: int, j: int, tables: Floats) -> None:
        s = self.shared[j]
        most, most_ps = tables.shape[1] - 1, tables.shape[2] - 1
        for dz in range(self._ps_fit(t, s, most_ps) + 1):
            for dy in range(self._workers_fit(t, s, dz, most) + 1):
                extra = dy * self.costs.worker_cost[t, s] + dz * self.costs.ps_cost[t, s]
                for y in range(dy, most + 1):
                    for z in range(dz, most_ps + 1):
                        value = tables[j, y - dy, z - dz] + extra
                        if value < tables[j + 1, y, z]:
                            tables[j + 1, y, z] = value

    def _ps_fit(self, t: int, s: int, most: Any) -> int:
        return self.costs.beside(t, s, self.costs.ps, self.costs.worker, 0, most)

    def _workers_fit(self, t: int, s: int, ps: int, most: Any) -> int:
        """Workers beside so many PS."""
        return self.costs.beside(t, s, self.costs.worker, self.costs.ps, ps, most)

    def _cheapest_prefix(self, order: IntList, cost: Floats, room: Ints, t: int, total: Floats) -> None:
        """Least cost of 0, 1, .. members on the servers of one role."""
        total[0] = 0.0
        count = 0
        for i in range(order.n):
            s = order.values[i]
            for _ in range(0 if self.both[s] else room[t, s]):
                if count == len(total) - 1:
                    return
                total[count + 1] = total[count] + cost[t, s]
                count += 1

    def _fill_cheapest(self, order: IntList, room: Ints, t: int, count: Any, taken: Ints) -> None:
        """Add so many members on the servers of one role, as `_cheapest_prefix` counts them."""
        for i in range(order.n):
            s = order.values[i]
            if count > 0 and not self.both[s]:
                here = min(count, room[t, s])
                taken[s] += here
                count -= here

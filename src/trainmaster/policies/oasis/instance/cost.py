"""COST(t, d): what the gangs of one job cost in each slot at fixed prices, and where they go. Compiled (`cost.pxd`).

The cheapest way to host d workers with their parameter servers: nodes by unit price, filled greedily. Exact where no
node hosts both roles, since all workers of a job are alike. Where nodes host both, one role goes first; the exact way
for small instances is `joint_cost`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from trainmaster.core.int_list import IntList, new_floats, new_ints
from trainmaster.core.sorting import sort_by
from trainmaster.policies.oasis.instance.formulation import RELATIVE_TOLERANCE

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

DUST = RELATIVE_TOLERANCE
STAY_FACTOR = 1.1
"""A gang stays where it is at up to this multiple of the cheapest place: a move costs a restart."""
INFINITY = float("inf")


class Gang:
    """Workers and parameter servers side by side; `one_node`: the workers may not be spread."""

    def __init__(self, workers: int, servers: int, one_node: bool = False) -> None:
        self.workers, self.servers, self.one_node = workers, servers, one_node


class GangCosts:
    """Unit costs of one job's workers and PS by slot and node, and the room there is; then costs and places of gangs.

    `used`: slots x nodes x resources already committed. `hosts`, `ps_hosts`: nodes that may host each role.
    """

    def __init__(
        self, used: Floats, capacity: Floats, worker: Floats, ps: Floats, hosts: Bools, ps_hosts: Bools
    ) -> None:
        self.used, self.capacity, self.worker, self.ps = used, capacity, worker, ps
        self.hosts, self.ps_hosts = np.array(hosts, np.uint8), np.array(ps_hosts, np.uint8)
        self.time_slots, self.nodes, self.resources = used.shape[0], used.shape[1], used.shape[2]
        self.worker_cost, self.ps_cost = np.zeros((2, self.time_slots, self.nodes))
        self.worker_room, self.ps_room = np.zeros((2, self.time_slots, self.nodes), np.int64)
        self.on_workers, self.on_ps = new_ints(self.nodes), new_ints(self.nodes)
        self.by_worker_cost, self.by_ps_cost = IntList(self.nodes), IntList(self.nodes)
        self.spare, self.left = IntList(self.nodes), new_floats(self.resources)
        self.sorted_slot = -1

    def price(self, ln_low: Floats, ln_spread: Floats, most_workers: int, most_ps: int) -> None:
        """Unit costs sum_r demand_r L (U/L)^(used/capacity), from logarithms, and room (at most so many)."""
        self.ln_low, self.ln_spread = ln_low, ln_spread
        for t in range(self.time_slots):
            if self.same_as_before(t):
                for s in range(self.nodes):
                    self.worker_cost[t, s], self.ps_cost[t, s] = self.worker_cost[t - 1, s], self.ps_cost[t - 1, s]
                    self.worker_room[t, s], self.ps_room[t, s] = self.worker_room[t - 1, s], self.ps_room[t - 1, s]
                continue
            for s in range(self.nodes):
                if self.hosts[s]:
                    self.worker_room[t, s] = self.beside(t, s, self.worker, self.ps, 0, most_workers)
                    self.worker_cost[t, s] = self._unit_cost(t, s, self.worker)
                if self.ps_hosts[s]:
                    self.ps_room[t, s] = self.beside(t, s, self.ps, self.worker, 0, most_ps)
                    self.ps_cost[t, s] = self._unit_cost(t, s, self.ps)

    def same_as_before(self, t: int) -> bool:
        """Whether slot t is committed like the one before it, so that everything costs the same there."""
        if t == 0:
            return False
        for s in range(self.nodes):
            for r in range(self.resources):
                if self.used[t, s, r] != self.used[t - 1, s, r]:
                    return False
        return True

    def _unit_cost(self, t: int, s: int, demand: Floats) -> float:
        """Of a node with room; of a full one something that nobody asks for."""
        price = 0.0
        for r in range(self.resources):
            if demand[r] <= 0.0:
                continue
            whole = self.capacity[s, r]
            if whole - self.used[t, s, r] + DUST * whole < demand[r]:
                break
            price += demand[r] * math.exp(self.ln_low[s, r] + self.ln_spread[s, r] * self.used[t, s, r] / whole)
        return price

    def costs(self, gangs: list[Gang], out: Floats, both_orders: bool) -> None:
        """Cost of every gang in every slot, slots x gangs; inf where one does not fit. Workers are placed first;
        `both_orders`: or PS first, whichever is cheaper."""
        for t in range(self.time_slots):
            same = self.same_as_before(t)
            for k in range(len(gangs)):
                if same:
                    out[t, k] = out[t - 1, k]
                    continue
                out[t, k] = self.place(t, gangs[k], True)
                if both_orders:
                    out[t, k] = min(out[t, k], self.place(t, gangs[k], False))

    def place(self, t: int, gang: Gang, workers_first: bool) -> float:
        """The cheapest workers and PS by unit price in slot t, into `on_workers` and `on_ps`; inf: does not fit."""
        for s in range(self.nodes):
            self.on_workers[s] = 0
            self.on_ps[s] = 0
        self.sort(t)
        if gang.one_node:
            total = self._place_on_one(t, gang.workers)
        elif workers_first:
            total = self._place_workers(t, gang.workers)
        else:
            total = 0.0
        if total < INFINITY and gang.servers > 0:
            total += self._place_ps(t, gang.servers)
        if total < INFINITY and not workers_first and not gang.one_node:
            total += self._place_workers(t, gang.workers)
        return total

    def sort(self, t: int) -> None:
        """Order the nodes by unit cost in slot t, for either role."""
        if self.sorted_slot != t:
            self.sorted_slot = t
            _sort_row(self.by_worker_cost, self.worker_cost, t, self.spare)
            _sort_row(self.by_ps_cost, self.ps_cost, t, self.spare)

    def _place_on_one(self, t: int, workers: int) -> float:
        best = -1
        for s in range(self.nodes):
            if self.worker_room[t, s] >= workers and (best < 0 or self.worker_cost[t, s] < self.worker_cost[t, best]):
                best = s
        if best < 0:
            return INFINITY
        self.on_workers[best] = workers
        return workers * self.worker_cost[t, best]

    def _place_workers(self, t: int, workers: int) -> float:
        total, left = 0.0, workers
        for i in range(self.nodes):
            s = self.by_worker_cost.values[i]
            if left > 0 and self.hosts[s]:
                count = self.beside(t, s, self.worker, self.ps, self.on_ps[s], left)
                self.on_workers[s] = count
                total += count * self.worker_cost[t, s]
                left -= count
        return total if left == 0 else INFINITY

    def _place_ps(self, t: int, servers: int) -> float:
        total, left = 0.0, servers
        for i in range(self.nodes):
            s = self.by_ps_cost.values[i]
            if left > 0 and self.ps_hosts[s]:
                count = self.beside(t, s, self.ps, self.worker, self.on_workers[s], left)
                self.on_ps[s] = count
                total += count * self.ps_cost[t, s]
                left -= count
        return total if left == 0 else INFINITY

    def beside(self, t: int, s: int, demand: Floats, other: Floats, others: Any, most: Any) -> int:
        """How many members fit in slot t beside so many of the other role."""
        for r in range(self.resources):
            self.left[r] = self.capacity[s, r] - self.used[t, s, r] - others * other[r]
        return fits_into(self.left, self.capacity, s, demand, most)

    def place_path(
        self, gangs: list[Gang], chosen: Ints, path_workers: Ints, path_ps: Ints, held: tuple[Ints, Ints], cost: Floats
    ) -> None:
        """Nodes of every slot of a path (`chosen[t]`: gang or -1), into `path_workers`, `path_ps` and `cost`.

        A gang of the same size stays where it was in the slot before (or where it runs now: `held`), if that place is
        free and at most `STAY_FACTOR` times as dear.
        """
        last_workers, last_ps = held
        for t in range(len(chosen)):
            if chosen[t] < 0:
                continue
            gang = gangs[chosen[t]]
            cost[t] = self.place(t, gang, True)
            if self._may_stay(t, gang, last_workers, last_ps):
                staying = 0.0
                for s in range(self.nodes):
                    staying += last_workers[s] * self.worker_cost[t, s] + last_ps[s] * self.ps_cost[t, s]
                if staying <= STAY_FACTOR * cost[t]:
                    cost[t] = staying
                    for s in range(self.nodes):
                        self.on_workers[s], self.on_ps[s] = last_workers[s], last_ps[s]
            for s in range(self.nodes):
                path_workers[t, s], path_ps[t, s] = self.on_workers[s], self.on_ps[s]
            last_workers, last_ps = path_workers[t], path_ps[t]

    def _may_stay(self, t: int, gang: Gang, workers: Ints, ps: Ints) -> bool:
        """Whether the gang of another slot is of the same size and fits into this one as it is."""
        all_workers, all_ps, used_nodes = 0, 0, 0
        for s in range(self.nodes):
            all_workers += workers[s]
            all_ps += ps[s]
            used_nodes += 1 if workers[s] > 0 else 0
        if all_workers != gang.workers or all_ps != gang.servers or (gang.one_node and used_nodes > 1):
            return False
        for s in range(self.nodes):
            if (workers[s] > 0 and not self.hosts[s]) or (ps[s] > 0 and not self.ps_hosts[s]):
                return False
            if workers[s] > 0 or ps[s] > 0:
                for r in range(self.resources):
                    need = workers[s] * self.worker[r] + ps[s] * self.ps[r]
                    if need > 0.0 and self.used[t, s, r] + need > self.capacity[s, r] * (1.0 + DUST):
                        return False
        return True


def _sort_row(order: IntList, cost: Floats, t: int, spare: IntList) -> None:
    order.clear()
    for s in range(cost.shape[1]):
        order.append(s)
    sort_by(order, cost[t], spare)


def fits_into(free: Floats, capacity: Floats, s: int, demand: Floats, most: int) -> int:
    """How many members of `demand` fit into what is free of server s, at most `most`."""
    fits = most
    for r in range(len(free)):
        if demand[r] > 0.0:
            room = free[r] + DUST * capacity[s, r]
            if room < demand[r]:
                return 0
            fits = min(fits, int(room / demand[r]))
    return fits

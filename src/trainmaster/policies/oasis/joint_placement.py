"""COST(t, d) when servers of role `both` share their capacity between workers and parameter servers.

Exact by a DP over those servers (state: workers and PS placed so far), while that is affordable; otherwise
the cheaper of two greedy orders (workers first, PS first), which is always feasible but may cost more than
the optimum or miss a placement that exists. `exact_operations` says what the exact way would take.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from trainmaster.policies.oasis.placement import cheapest_prefix, fill_cheapest, fits_into


@njit(cache=True)
def exact_operations(used, capacity, worker_demand, ps_demand, both, most_workers, most_ps):
    """Inner steps of the exact DP in the slot that needs most of them."""
    worst = 0
    for t in range(used.shape[0]):
        options = 0
        for s in range(used.shape[1]):
            if both[s]:
                free = capacity[s] - used[t, s]
                for z in range(fits_into(free, capacity[s], ps_demand, most_ps) + 1):
                    options += fits_into(free - z * ps_demand, capacity[s], worker_demand, most_workers) + 1
        worst = max(worst, options * (most_workers + 1) * (most_ps + 1))
    return worst


@njit(cache=True)
def _exact_tables(
    used,
    capacity,
    worker_demand,
    ps_demand,
    both,
    worker_cost,
    worker_room,
    ps_cost,
    ps_room,
    most_workers,
    most_ps,
):
    """tables[j, y, z]: least cost of y workers and z PS on the one-role servers and the first j servers of
    both.
    """
    shared = np.flatnonzero(both)
    tables = np.full((shared.shape[0] + 1, most_workers + 1, most_ps + 1), np.inf)
    only_workers = np.where(both, 0, worker_room)
    only_ps = np.where(both, 0, ps_room)
    workers = cheapest_prefix(worker_cost, only_workers, most_workers)
    ps = cheapest_prefix(ps_cost, only_ps, most_ps)
    for y in range(most_workers + 1):
        for z in range(most_ps + 1):
            tables[0, y, z] = workers[y] + ps[z]
    for j in range(shared.shape[0]):
        s = shared[j]
        free = capacity[s] - used[s]
        for dz in range(fits_into(free, capacity[s], ps_demand, most_ps) + 1):
            for dy in range(fits_into(free - dz * ps_demand, capacity[s], worker_demand, most_workers) + 1):
                extra = dy * worker_cost[s] + dz * ps_cost[s]
                for y in range(dy, most_workers + 1):
                    for z in range(dz, most_ps + 1):
                        value = tables[j, y - dy, z - dz] + extra
                        if value < tables[j + 1, y, z]:
                            tables[j + 1, y, z] = value
    return tables


@njit(cache=True)
def exact_costs(used, capacity, worker_demand, ps_demand, both, worker_cost, worker_room, ps_cost, ps_room, ps_needed):
    """COST(t, d), exact; a slot with the same commitments as the one before it is not computed again."""
    slots = used.shape[0]
    most = ps_needed.shape[0] - 1
    out = np.empty((slots, most + 1))
    for t in range(slots):
        if t > 0 and np.all(used[t] == used[t - 1]):
            out[t] = out[t - 1]
            continue
        tables = _exact_tables(
            used[t], capacity, worker_demand, ps_demand, both, worker_cost[t], worker_room[t],
            ps_cost[t], ps_room[t],
            most, ps_needed[most],
        )  # fmt: skip
        for d in range(most + 1):
            out[t, d] = tables[-1, d, ps_needed[d]]
    return out


@njit(cache=True)
def exact_placement(
    used, capacity, worker_demand, ps_demand, both, worker_cost, worker_room, ps_cost, ps_room, workers, ps
):
    """Counts per server (workers, PS) of a cheapest placement in one slot."""
    tables = _exact_tables(
        used,
        capacity,
        worker_demand,
        ps_demand,
        both,
        worker_cost,
        worker_room,
        ps_cost,
        ps_room,
        workers,
        ps,
    )
    shared = np.flatnonzero(both)
    worker_taken = np.zeros(both.shape[0], np.int64)
    ps_taken = np.zeros(both.shape[0], np.int64)
    y, z = workers, ps
    for back in range(shared.shape[0]):
        j = shared.shape[0] - 1 - back
        s = shared[j]
        free = capacity[s] - used[s]
        found = False
        for dz in range(fits_into(free, capacity[s], ps_demand, z) + 1):
            for dy in range(fits_into(free - dz * ps_demand, capacity[s], worker_demand, y) + 1):
                extra = dy * worker_cost[s] + dz * ps_cost[s]
                # The same floating-point expression as in the forward pass, so equality is exact.
                if tables[j, y - dy, z - dz] + extra == tables[j + 1, y, z]:
                    worker_taken[s] = dy
                    ps_taken[s] = dz
                    found = True
                    break
            if found:
                break
        y -= worker_taken[s]
        z -= ps_taken[s]
    worker_taken += fill_cheapest(worker_cost, np.where(both, 0, worker_room), y)
    ps_taken += fill_cheapest(ps_cost, np.where(both, 0, ps_room), z)
    return worker_taken, ps_taken


@njit(cache=True)
def greedy_placement(
    used,
    capacity,
    worker_demand,
    ps_demand,
    hosts_workers,
    hosts_ps,
    worker_cost,
    ps_cost,
    workers,
    ps,
    workers_first,
):
    """Fill by unit price, one role after the other, in one slot. Returns (cost, workers, PS); inf: does not
    fit.
    """
    servers = capacity.shape[0]
    free = capacity - used
    taken = np.zeros((2, servers), np.int64)
    total = 0.0
    for turn in range(2):
        placing_workers = (turn == 0) == workers_first
        role = 0 if placing_workers else 1
        cost = worker_cost if placing_workers else ps_cost
        demand = worker_demand if placing_workers else ps_demand
        hosts = hosts_workers if placing_workers else hosts_ps
        left = workers if placing_workers else ps
        for s in np.argsort(cost, kind="mergesort"):
            if left == 0:
                break
            if not hosts[s]:
                continue
            count = fits_into(free[s], capacity[s], demand, left)
            taken[role, s] = count
            free[s] -= count * demand
            total += count * cost[s]
            left -= count
        if left > 0:
            return np.inf, taken[0], taken[1]
    return total, taken[0], taken[1]


@njit(cache=True)
def greedy_costs(
    used,
    capacity,
    worker_demand,
    ps_demand,
    hosts_workers,
    hosts_ps,
    worker_cost,
    ps_cost,
    ps_needed,
    options,
):
    """COST(t, d) by the better of the two orders, for the counts in `options` alone; inf elsewhere."""
    slots = used.shape[0]
    out = np.full((slots, ps_needed.shape[0]), np.inf)
    for t in range(slots):
        if t > 0 and np.all(used[t] == used[t - 1]):
            out[t] = out[t - 1]
            continue
        for d in options:
            for workers_first in (True, False):
                cost, _, _ = greedy_placement(
                    used[t], capacity, worker_demand, ps_demand, hosts_workers, hosts_ps, worker_cost[t],
                    ps_cost[t],
                    d, ps_needed[d], workers_first,
                )  # fmt: skip
                if cost < out[t, d]:
                    out[t, d] = cost
    return out

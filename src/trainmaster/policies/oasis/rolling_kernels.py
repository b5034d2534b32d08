"""Compiled loops of the rolling best schedule: cost of gangs by slot, the DP over slots and work, placement.

The DP is that of `schedule.py` in another unit: grains of work instead of worker-slots, because gangs of
different size, place and type do different amounts of work per slot, and the first slot may be part of one.
The slot in which the work ends is paid for only as long as it is used, since the rest returns to the books.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from trainmaster.policies.oasis.formulation import RELATIVE_TOLERANCE
from trainmaster.policies.oasis.placement import fits_into

_DUST = RELATIVE_TOLERANCE
STAY_FACTOR = 1.1


@njit(cache=True)
def place_gang_at(used, capacity, worker_cost, worker_room, ps_cost, worker, ps, ps_hosts, workers, servers, one_node):
    """The cheapest workers by unit price (all on one node if asked), then the cheapest servers, in one slot.

    Returns (cost, workers by node, servers by node); cost is inf when the gang does not fit.
    """
    nodes = used.shape[0]
    on_workers = np.zeros(nodes, np.int64)
    on_ps = np.zeros(nodes, np.int64)
    total = 0.0
    if one_node:
        best = -1
        for n in range(nodes):
            if worker_room[n] >= workers and (best < 0 or worker_cost[n] < worker_cost[best]):
                best = n
        if best < 0:
            return np.inf, on_workers, on_ps
        on_workers[best] = workers
        total = workers * worker_cost[best]
    else:
        left = workers
        for n in np.argsort(worker_cost, kind="mergesort"):
            count = min(left, worker_room[n])
            on_workers[n] = count
            total += count * worker_cost[n]
            left -= count
            if left == 0:
                break
        if left > 0:
            return np.inf, on_workers, on_ps
    if servers > 0:
        left = servers
        for n in np.argsort(ps_cost, kind="mergesort"):
            if not ps_hosts[n]:
                continue
            free = capacity[n] - used[n] - on_workers[n] * worker
            count = fits_into(free, capacity[n], ps, left)
            on_ps[n] = count
            total += count * ps_cost[n]
            left -= count
            if left == 0:
                break
        if left > 0:
            return np.inf, on_workers, on_ps
    return total, on_workers, on_ps


@njit(cache=True)
def gang_costs(used, capacity, worker_cost, worker_room, ps_cost, worker, ps, ps_hosts, workers, servers, one_node):
    """Cost of every gang in every slot, slots x gangs; a slot committed like the one before is copied."""
    slots, gangs = used.shape[0], workers.shape[0]
    out = np.empty((slots, gangs))
    for t in range(slots):
        if t > 0 and np.all(used[t] == used[t - 1]):
            out[t] = out[t - 1]
            continue
        for k in range(gangs):
            out[t, k] = place_gang_at(
                used[t],
                capacity,
                worker_cost[t],
                worker_room[t],
                ps_cost[t],
                worker,
                ps,
                ps_hosts,
                workers[k],
                servers[k],
                one_node[k],
            )[0]
    return out


@njit(cache=True)
def fill_rolling(cost, gain, units, values):
    """DP(t, u): least cost of u < `units` grains before slot t; and of all of them within slot t.

    cost: slots x gangs for the whole slot; gain: whole grains of each gang in each slot; values[t]: worth of
    ending in slot t, non-increasing, so rows stop where no later end can win. Returns (table, finish, rows).
    """
    slots, gangs = cost.shape
    table = np.full((slots + 1, units), np.inf)
    finish = np.full(slots, np.inf)
    table[0, 0] = 0.0
    best = -np.inf
    reach = 0
    for t in range(slots):
        if values[t] <= best:
            return table, finish, t
        before = table[t]
        now = table[t + 1]
        now[: reach + 1] = before[: reach + 1]
        most = 0
        for k in range(gangs):
            step, grains = cost[t, k], gain[t, k]
            if step == np.inf or grains == 0:
                continue
            most = max(most, grains)
            for u in range(max(0, units - grains), min(reach, units - 1) + 1):
                value = before[u] + step * (units - u) / grains
                if value < finish[t]:
                    finish[t] = value
            for u in range(min(reach, units - 1 - grains) + 1):
                value = before[u] + step
                if value < now[u + grains]:
                    now[u + grains] = value
        reach = min(units - 1, reach + most)
        best = max(best, values[t] - finish[t])
    return table, finish, slots


@njit(cache=True)
def trace_rolling(table, finish, cost, gain, units, end):
    """The gang of each slot 0 .. end (-1: idle) on a cheapest path that ends its work in slot `end`."""
    chosen = np.full(end + 1, -1, np.int64)
    left = -1
    for k in range(cost.shape[1]):
        step, grains = cost[end, k], gain[end, k]
        if step == np.inf or grains == 0:
            continue
        for u in range(max(0, units - grains), units):
            if left < 0 and table[end, u] + step * (units - u) / grains == finish[end]:
                chosen[end], left = k, u
    for back in range(end):
        t = end - 1 - back
        if left == 0 or table[t, left] == table[t + 1, left]:
            continue  # idle is preferred, and the sums are those of the forward pass
        for k in range(cost.shape[1]):
            grains = gain[t, k]
            if grains > 0 and left >= grains and table[t, left - grains] + cost[t, k] == table[t + 1, left]:
                chosen[t] = k
                left -= grains
                break
    return chosen


@njit(cache=True)
def _stays(used, capacity, worker, ps, on_workers, on_ps):
    """Whether a placement of another slot fits into this one as it is."""
    for n in range(used.shape[0]):
        if on_workers[n] or on_ps[n]:
            for r in range(used.shape[1]):
                need = on_workers[n] * worker[r] + on_ps[n] * ps[r]
                if need > 0.0 and used[n, r] + need > capacity[n, r] * (1.0 + _DUST):
                    return False
    return True


@njit(cache=True)
def place_path(
    used,
    capacity,
    worker_cost,
    worker_room,
    ps_cost,
    worker,
    ps,
    hosts,
    ps_hosts,
    workers,
    servers,
    one_node,
    chosen,
    held_workers,
    held_ps,
):
    """Nodes of every slot of a path. A gang of the same size stays where it was in the slot before (or where
    it runs now) if that place is free and at most `STAY_FACTOR` times as dear: a move costs a restart.

    Returns (workers by slot and node, servers likewise, cost by slot for whole slots).
    """
    slots, nodes = chosen.shape[0], used.shape[1]
    on_workers = np.zeros((slots, nodes), np.int64)
    on_ps = np.zeros((slots, nodes), np.int64)
    cost = np.zeros(slots)
    last_workers, last_ps = held_workers, held_ps
    for t in range(slots):
        k = chosen[t]
        if k < 0:
            continue
        same = last_workers.sum() == workers[k] and last_ps.sum() == servers[k]
        if same and one_node[k] and (last_workers > 0).sum() > 1:
            same = False
        if same:
            for n in range(nodes):
                if (last_workers[n] > 0 and not hosts[n]) or (last_ps[n] > 0 and not ps_hosts[n]):
                    same = False
        cost[t], on_workers[t], on_ps[t] = place_gang_at(
            used[t],
            capacity,
            worker_cost[t],
            worker_room[t],
            ps_cost[t],
            worker,
            ps,
            ps_hosts,
            workers[k],
            servers[k],
            one_node[k],
        )
        if same and _stays(used[t], capacity, worker, ps, last_workers, last_ps):
            staying = 0.0
            for n in range(nodes):
                staying += last_workers[n] * worker_cost[t, n] + last_ps[n] * ps_cost[t, n]
            if staying <= STAY_FACTOR * cost[t]:
                cost[t] = staying
                on_workers[t] = last_workers
                on_ps[t] = last_ps
        last_workers, last_ps = on_workers[t], on_ps[t]
    return on_workers, on_ps, cost

"""COST(t, d): the cheapest way to host d workers and their parameter servers in slot t at fixed prices.

Servers that host one role only are separable: sort by unit price, fill greedily; exact, since all workers
of a job are alike. Servers of role `both` couple the roles through their shared capacity;
`joint_placement.py` treats those.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from trainmaster.policies.oasis.formulation import RELATIVE_TOLERANCE

_DUST = RELATIVE_TOLERANCE


@njit(cache=True)
def fits_into(free, capacity, demand, most):
    """How many units of `demand` fit into `free`, at most `most`."""
    fits = most
    for r in range(free.shape[0]):
        if demand[r] > 0.0:
            room = free[r] + _DUST * capacity[r]
            if room < demand[r]:
                return 0
            fits = min(fits, int(room / demand[r]))
    return fits


@njit(cache=True)
def quote(used, capacity, ln_low, ln_spread, demand, hosts, most):
    """Unit cost and room of one role, per slot and server.

    used: slots x servers x resources already committed; demand: of one worker (or PS); hosts: servers of
    that role. Returns (cost, room): sum_r demand_r L (U/L)^(used/capacity), evaluated from logarithms, and
    how many more fit (never more than `most`).
    """
    slots, servers, resources = used.shape
    cost = np.zeros((slots, servers))
    room = np.zeros((slots, servers), np.int64)
    for t in range(slots):
        for s in range(servers):
            if not hosts[s]:
                continue
            fits = most
            price = 0.0
            for r in range(resources):
                if demand[r] <= 0.0:
                    continue
                whole = capacity[s, r]
                free = whole - used[t, s, r] + _DUST * whole
                if free < demand[r]:
                    fits = 0
                    break
                fits = min(fits, int(free / demand[r]))
                price += demand[r] * np.exp(ln_low[s, r] + ln_spread[s, r] * used[t, s, r] / whole)
            room[t, s] = fits
            cost[t, s] = price
    return cost, room


@njit(cache=True)
def cheapest_prefix(cost, room, most):
    """Least cost of hosting 0 .. most units in one slot; inf beyond what fits."""
    total = np.full(most + 1, np.inf)
    total[0] = 0.0
    count = 0
    for s in np.argsort(cost, kind="mergesort"):
        for _ in range(room[s]):
            if count == most:
                return total
            total[count + 1] = total[count] + cost[s]
            count += 1
    return total


@njit(cache=True)
def separate_costs(worker_cost, worker_room, ps_cost, ps_room, ps_needed):
    """COST(t, d) for every slot and d = 0 .. N, when no server hosts both roles."""
    slots = worker_cost.shape[0]
    most = ps_needed.shape[0] - 1
    out = np.empty((slots, most + 1))
    for t in range(slots):
        workers = cheapest_prefix(worker_cost[t], worker_room[t], most)
        ps = cheapest_prefix(ps_cost[t], ps_room[t], ps_needed[most])
        for d in range(most + 1):
            out[t, d] = workers[d] + ps[ps_needed[d]]
    return out


@njit(cache=True)
def fill_cheapest(cost, room, count):
    """How many of `count` units each server takes in the greedy placement behind `cheapest_prefix`."""
    taken = np.zeros(cost.shape[0], np.int64)
    left = count
    for s in np.argsort(cost, kind="mergesort"):
        taken[s] = min(left, room[s])
        left -= taken[s]
        if left == 0:
            break
    return taken

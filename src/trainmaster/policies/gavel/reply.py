"""The cheapest way for every job to reach its target at given prices: one pass over the jobs.

Job m with target r_m pays g_m p_j - c_mj for all of its time on type j and nothing while idle:

    min_x  sum_j (g_m p_j - c_mj) x_j   s.t.  sum_j T_mj x_j >= r_m,  sum_j x_j <= 1,  x >= 0.

Its points (T_mj, price) and (0, 0) span a polygon; the optimum lies on its lower right edge, so at most two
types are mixed. The walk starts at the cheapest point and goes along the edge until the target is reached.
"""

from __future__ import annotations

from numba import njit


@njit(cache=True)
def next_corner(T, price, m, x_from, y_from):
    """(type, slope) of the flattest edge from (x_from, y_from) to a faster type; (-1, 0) if there is none."""
    best = -1
    best_slope = 0.0
    for j in range(T.shape[1]):
        gain = T[m, j] - x_from
        if gain > 0.0:
            slope = (price[j] - y_from) / gain
            if best < 0 or slope < best_slope or (slope == best_slope and T[m, j] > T[m, best]):
                best = j
                best_slope = slope
    return best, best_slope


@njit(cache=True)
def cheapest_corner(T, price, m):
    """The type of least price, -1 for idling; the faster one of equals."""
    best = -1
    for j in range(T.shape[1]):
        if T[m, j] > 0.0:
            here = price[best] if best >= 0 else 0.0
            if price[j] < here or (price[j] == here and (best < 0 or T[m, j] > T[m, best])):
                best = j
    return best


@njit(cache=True)
def cheapest_mix(T, price, m, target):
    """(slow type, its part, fast type, its part, slope at the target); -1 stands for idling, or for no
    type."""
    slow = cheapest_corner(T, price, m)
    speed = T[m, slow] if slow >= 0 else 0.0
    if speed >= target:
        return slow, 1.0, -1, 0.0, 0.0
    while True:
        here = price[slow] if slow >= 0 else 0.0
        fast, slope = next_corner(T, price, m, speed, here)
        if fast < 0:
            return slow, 1.0, -1, 0.0, slope  # beyond full speed: callers keep targets below
        if T[m, fast] >= target:
            part = (target - speed) / (T[m, fast] - speed)
            return slow, 1.0 - part, fast, part, slope
        slow = fast
        speed = T[m, fast]


@njit(cache=True)
def reply(T, gpus, gain, has_gain, target, price, load, slope):
    """Cheapest replies of all jobs: fills `load` (GPUs used per type) and `slope` (price of one more step/s).

    Returns (what the GPUs used cost, what the shares gain).
    """
    n, types = T.shape
    paid = 0.0
    gained = 0.0
    load[:] = 0.0
    own = price.copy()
    for m in range(n):
        if has_gain:
            for j in range(types):
                own[j] = price[j] - gain[m, j] / gpus[m]
        elif target[m] <= 0.0:
            slope[m] = 0.0
            continue
        slow, slow_part, fast, fast_part, edge = cheapest_mix(T, own, m, target[m])
        slope[m] = edge * gpus[m]
        if slow >= 0:
            load[slow] += gpus[m] * slow_part
            paid += gpus[m] * slow_part * price[slow]
            if has_gain:
                gained += gain[m, slow] * slow_part
        if fast >= 0:
            load[fast] += gpus[m] * fast_part
            paid += gpus[m] * fast_part * price[fast]
            if has_gain:
                gained += gain[m, fast] * fast_part
    return paid, gained


@njit(cache=True)
def add_shares(T, gpus, gain, has_gain, target, price, weight, share):
    """Add `weight` times the cheapest replies to `share`."""
    n, types = T.shape
    own = price.copy()
    for m in range(n):
        if has_gain:
            for j in range(types):
                own[j] = price[j] - gain[m, j] / gpus[m]
        elif target[m] <= 0.0:
            continue
        slow, slow_part, fast, fast_part, _ = cheapest_mix(T, own, m, target[m])
        if slow >= 0:
            share[m, slow] += weight * slow_part
        if fast >= 0:
            share[m, fast] += weight * fast_part

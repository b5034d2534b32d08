"""What targets cost at given prices, recomputed with arrays alone: the bound behind solves by prices.

Prices p >= 0 of GPU types with sum_j p_j N_j = 1 prove that targets do not fit when the least cost of reaching them is
above 1. The search for the prices (`cutting_plane`) is not trusted with that cost.
"""

from __future__ import annotations

import numpy as np

from trainmaster.policies.gavel.problem import FloatArray

FULL_SPEED = 1e-9
"""A target above the fastest type by no more than this part counts as that type's speed."""


def least_costs(speed: FloatArray, gpus: FloatArray, target: FloatArray, price: FloatArray) -> FloatArray:
    """By job: min g_m p x, with speed_m x >= target_m, sum x <= 1, x >= 0; inf when the target is out of reach.

    A vertex mixes one type with idling or two types without: all of them are looked at. A speed of 0 is no choice.
    """
    cost = gpus[:, None] * price[None, :]
    most = speed.max(axis=1, initial=0.0)
    aim = np.minimum(target, most)[:, None]
    fast = (speed >= aim) & (speed > 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        least = np.where(fast, cost * aim / speed, np.inf).min(axis=1, initial=np.inf)
        for j in range(speed.shape[1]):
            slow = (speed[:, [j]] > 0.0) & ~fast[:, [j]]
            part = (aim - speed[:, [j]]) / (speed - speed[:, [j]])  # of the time on the faster type
            mixed = part * cost + (1.0 - part) * cost[:, [j]]
            least = np.minimum(least, np.where(slow & fast, mixed, np.inf).min(axis=1, initial=np.inf))
    return np.where(target <= 0.0, 0.0, np.where(target > most * (1.0 + FULL_SPEED), np.inf, least))


def least_cost(speed: FloatArray, gpus: FloatArray, target: FloatArray, price: FloatArray) -> float:
    """That of all jobs together."""
    return float(least_costs(speed, gpus, target, price).sum())

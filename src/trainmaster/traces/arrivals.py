"""Arrival processes: when jobs come. Each takes a seeded generator and gives ascending times in seconds."""

from __future__ import annotations

import numpy as np

_DAY_S = 86_400.0


def poisson(jobs: int, rate_per_s: float, rng: np.random.Generator) -> np.ndarray:
    """Independent arrivals at a constant rate; the first at time zero."""
    gaps_s = rng.exponential(1.0 / rate_per_s, jobs)
    gaps_s[:1] = 0.0
    return np.cumsum(gaps_s)


def bursty(
    jobs: int,
    rate_per_s: float,
    rng: np.random.Generator,
    *,
    burst_factor: float = 10.0,
    burst_fraction: float = 0.1,
    burst_jobs: float = 20.0,
) -> np.ndarray:
    """Two-state Markov-modulated Poisson process with mean rate `rate_per_s`.

    The process spends `burst_fraction` of the time in bursts, where it is `burst_factor` times as fast as in
    between; a burst brings `burst_jobs` jobs on average.
    """
    calm_rate = rate_per_s / (1 - burst_fraction + burst_fraction * burst_factor)
    rates = (calm_rate, calm_rate * burst_factor)
    burst_s = burst_jobs / rates[1]
    stays_s = (burst_s * (1 - burst_fraction) / burst_fraction, burst_s)
    times: list[np.ndarray] = []
    now_s, made, state = 0.0, 0, int(rng.random() < burst_fraction)
    while made < jobs:
        stay_s = rng.exponential(stays_s[state])
        count = int(rng.poisson(rates[state] * stay_s))
        times.append(now_s + np.sort(rng.random(count)) * stay_s)
        made += count
        now_s += stay_s
        state = 1 - state
    arrivals = np.concatenate(times)[:jobs]
    return arrivals - arrivals[0]


def diurnal(
    jobs: int, rate_per_s: float, rng: np.random.Generator, *, day_swing: float = 0.6, weekend_factor: float = 0.6
) -> np.ndarray:
    """Poisson arrivals whose rate follows the hour (peak at 15:00) and the week, mean `rate_per_s`.

    Unit-rate arrivals are mapped through the inverse of the cumulative rate (time rescaling), hour by hour.
    """
    hours = np.arange(7 * 24)
    shape = 1.0 + day_swing * np.cos((hours % 24 - 15) / 24 * 2 * np.pi)
    shape = np.where(hours >= 5 * 24, shape * weekend_factor, shape)
    shape /= shape.mean()
    unit = np.cumsum(rng.exponential(1.0, jobs))
    weeks = int(np.ceil(unit[-1] / (rate_per_s * 7 * _DAY_S))) + 1
    cumulative = np.concatenate([[0.0], np.cumsum(np.tile(shape, weeks) * rate_per_s * 3600.0)])
    times = np.interp(unit, cumulative, np.arange(len(cumulative)) * 3600.0)
    return times - times[0]


PROCESSES = {"poisson": poisson, "bursty": bursty, "diurnal": diurnal}

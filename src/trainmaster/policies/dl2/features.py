"""What the network sees of a job and of the cluster; the same compiled functions serve training and decisions.

A job is described by what is believed of its speed, its remaining work, its size so far in this decision and what
one more worker, server or both would bring; not by its name, so that kinds never met before need no retraining.
Times enter as logarithms, relative to the slot and to the mean of all jobs, costs as shares of the cluster.
"""

from __future__ import annotations

import numpy as np
from numba import njit

JOB_FEATURES = (
    "log_time_at_least", "log_time_now", "relative_log_time", "shorter_jobs", "age", "done",
    "gain_worker", "gain_server", "gain_both", "log_rate_worker", "log_rate_server", "log_rate_both",
    "log_workers", "log_servers", "ratio", "share", "cost_worker", "cost_server",
    "no_worker", "no_server", "may_worker", "may_server", "overfull",
)  # fmt: skip
GLOBAL_FEATURES = ("free_gpu", "free_cpu", "log_jobs", "mean_log_time", "spread_log_time", "least_share")
ACTIONS = ("worker", "server", "both")
N_JOB = len(JOB_FEATURES)
N_GLOBAL = len(GLOBAL_FEATURES)
N_ACTION = len(ACTIONS)

LEAST_GAIN = 1e-3
"""Relative gains below this count as none (their logarithm would be noise)."""


@njit(cache=True)
def step_time(c, w, p):
    """Seconds per unit of work with w workers and p servers by the seven coefficients of `Scaling`."""
    t = c[0] / w + c[1] + c[3] * w
    if p > 0:
        t += c[2] * w / p + c[4] * p + c[5] / p + c[6] * p / w
    return t


@njit(cache=True)
def slot_features(out, log_time, age_slots, done, cost_worker, cost_server, mean_log, shorter):
    """What does not change within one decision. `log_time`: of the time left at the smallest size, in slots."""
    out[0] = log_time / 3.0
    out[2] = (log_time - mean_log) / 2.0
    out[3] = shorter
    out[4] = np.log1p(age_slots) / 3.0
    out[5] = done
    out[16] = np.log(max(cost_worker, 1e-9)) / 5.0
    out[17] = np.log(max(cost_server, 1e-9)) / 5.0


@njit(cache=True)
def _gain(before, after):
    return np.log(before / after) if after < before else 0.0


@njit(cache=True)
def _log_rate(gain, cost):
    """Logarithm of the relative gain per share of the cluster, scaled to about -2..1."""
    return np.log(max(gain, LEAST_GAIN) / max(cost, 1e-9)) / 4.0


@njit(cache=True)
def size_features(out, c, time_least, w, p, w_max, p_max, cost_worker, cost_server):
    """What depends on the size so far. `time_least`: time left at the smallest size over its step time, in slots,
    so that the time left at any size is `time_least * step_time(c, w, p)`.

    A job that takes no servers (p_max = 0) is shown as one that has as many servers as workers and gets them together,
    which is how most jobs look that the network has met: its only action is "both", and gives a worker."""
    at_w, at_p = max(w, 1), p if p > 0 or p_max == 0 else 1
    now = step_time(c, at_w, at_p)
    log_now = np.log(max(time_least * now, 1e-6))
    out[1] = log_now / 3.0
    out[22] = min(log_now, 0.0)  # it ends within the slot: more would lie idle afterwards
    if p_max == 0:
        gain_w, gain_p = 0.0, 0.0
        gain_b = _gain(now, step_time(c, at_w + 1, 0)) if w < w_max else 0.0
    else:
        gain_w = _gain(now, step_time(c, at_w + 1, at_p)) if w < w_max else 0.0
        gain_p = _gain(now, step_time(c, at_w, at_p + 1)) if p < p_max else 0.0
        gain_b = _gain(now, step_time(c, at_w + 1, at_p + 1)) if w < w_max and p < p_max else 0.0
    out[6], out[7], out[8] = gain_w, gain_p, gain_b
    out[9] = _log_rate(gain_w, cost_worker)
    out[10] = _log_rate(gain_p, cost_server)
    out[11] = _log_rate(gain_b, max(cost_worker, cost_server))
    shown, shown_max = (w, w_max) if p_max == 0 else (p, p_max)
    out[12] = np.log1p(w) / 3.0
    out[13] = np.log1p(shown) / 3.0
    out[14] = np.log((w + 1.0) / (shown + 1.0)) / 2.0
    out[15] = max(w * cost_worker, p * cost_server)
    out[18] = 1.0 if w == 0 else 0.0
    out[19] = 1.0 if p == 0 and p_max > 0 else 0.0
    out[20] = 1.0 if w < w_max else 0.0
    out[21] = 1.0 if shown < shown_max else 0.0


@njit(cache=True)
def log_time_statistics(log_time, n):
    """Mean and standard deviation of the first n, and for each the fraction of the others that is shorter."""
    mean = 0.0
    for i in range(n):
        mean += log_time[i]
    mean /= max(n, 1)
    spread = 0.0
    shorter = np.zeros(n)
    for i in range(n):
        spread += (log_time[i] - mean) ** 2
        for j in range(n):
            if log_time[j] < log_time[i]:
                shorter[i] += 1.0
        shorter[i] /= max(n - 1, 1)
    return mean, np.sqrt(spread / max(n, 1)), shorter


@njit(cache=True)
def global_features(out, free_gpu, free_cpu, n_jobs, mean_log, spread_log, least_share):
    """`free_*`: fractions of the cluster; `least_share`: what all jobs take together at their smallest size."""
    out[0] = free_gpu
    out[1] = free_cpu
    out[2] = np.log1p(n_jobs) / 4.0
    out[3] = mean_log / 3.0
    out[4] = spread_log / 2.0
    out[5] = min(least_share, 2.0)

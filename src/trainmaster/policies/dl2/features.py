# cython: cdivision=True
"""What the network sees of a job and of the cluster; the same compiled functions serve training and decisions.

A job is described by what is believed of its speed, its remaining work, its size so far in this decision and what
one more worker, server or both would bring; not by its name, so that kinds never met before need no retraining.
Times enter as logarithms, relative to the slot and to the mean of all jobs, costs as shares of the cluster.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from trainmaster.core.int_list import Floats, new_floats
from trainmaster.policies.shared.speed_curves import SpeedCurves

Singles = npt.NDArray[np.float32]

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


class JobFeatures:
    """A row of features for each job, beside the curve that is believed of it."""

    def __init__(self, rows: Singles, curves: SpeedCurves) -> None:
        self.rows, self.curves = rows, curves

    def at_slot(
        self,
        i: int,
        log_time: float,
        age_slots: float,
        done: float,
        cost_worker: float,
        cost_server: float,
        log_times: LogTimes,
        place: int,
    ) -> None:
        """What does not change within one decision. `log_time`: of the time left at the smallest size, in slots;
        `place`: the job's among `log_times`."""
        out = self.rows
        out[i, 0] = log_time / 3.0
        out[i, 2] = (log_time - log_times.mean) / 2.0
        out[i, 3] = log_times.shorter[place]
        out[i, 4] = math.log1p(age_slots) / 3.0
        out[i, 5] = done
        out[i, 16] = math.log(max(cost_worker, 1e-9)) / 5.0
        out[i, 17] = math.log(max(cost_server, 1e-9)) / 5.0

    def at_size(
        self, i: int, time_least: float, w: int, p: int, w_max: int, p_max: int, cost_worker: float, cost_server: float
    ) -> None:
        """What depends on the size so far. `time_least`: time left at the smallest size over its step time, in slots,
        so that the time left at any size is `time_least` times the step time.

        A job that takes no servers (p_max = 0) is shown as one that has as many servers as workers and gets them
        together, which is how most jobs look that the network has met: its only action is "both", and gives a
        worker."""
        out, curves = self.rows, self.curves
        at_w, at_p = max(w, 1), p if p > 0 or p_max == 0 else 1
        now = curves.step_time(i, at_w, at_p)
        log_now = math.log(max(time_least * now, 1e-6))
        out[i, 1] = log_now / 3.0
        out[i, 22] = min(log_now, 0.0)  # it ends within the slot: more would lie idle afterwards
        gain_w = gain_p = gain_b = 0.0
        if p_max == 0:
            if w < w_max:
                gain_b = _gain(now, curves.step_time(i, at_w + 1, 0))
        else:
            if w < w_max:
                gain_w = _gain(now, curves.step_time(i, at_w + 1, at_p))
            if p < p_max:
                gain_p = _gain(now, curves.step_time(i, at_w, at_p + 1))
            if w < w_max and p < p_max:
                gain_b = _gain(now, curves.step_time(i, at_w + 1, at_p + 1))
        out[i, 6], out[i, 7], out[i, 8] = gain_w, gain_p, gain_b
        out[i, 9] = _log_rate(gain_w, cost_worker)
        out[i, 10] = _log_rate(gain_p, cost_server)
        out[i, 11] = _log_rate(gain_b, max(cost_worker, cost_server))
        shown, shown_max = (w, w_max) if p_max == 0 else (p, p_max)
        out[i, 12] = math.log1p(w) / 3.0
        out[i, 13] = math.log1p(shown) / 3.0
        out[i, 14] = math.log((w + 1.0) / (shown + 1.0)) / 2.0
        out[i, 15] = max(w * cost_worker, p * cost_server)
        out[i, 18] = 1.0 if w == 0 else 0.0
        out[i, 19] = 1.0 if p == 0 and p_max > 0 else 0.0
        out[i, 20] = 1.0 if w < w_max else 0.0
        out[i, 21] = 1.0 if shown < shown_max else 0.0


def _gain(before: float, after: float) -> float:
    return math.log(before / after) if after < before else 0.0


def _log_rate(gain: float, cost: float) -> float:
    """Logarithm of the relative gain per share of the cluster, scaled to about -2..1."""
    return math.log(max(gain, LEAST_GAIN) / max(cost, 1e-9)) / 4.0


class LogTimes:
    """Mean and standard deviation of the first n, and for each the fraction of the others that is shorter."""

    def __init__(self, log_time: Floats, n: int) -> None:
        self.shorter = new_floats(n)
        self._compute(log_time, n)

    def _compute(self, log_time: Floats, n: int) -> None:
        mean = 0.0
        for i in range(n):
            mean += log_time[i]
        mean /= max(n, 1)
        spread = 0.0
        for i in range(n):
            spread += (log_time[i] - mean) * (log_time[i] - mean)
            for j in range(n):
                if log_time[j] < log_time[i]:
                    self.shorter[i] += 1.0
            self.shorter[i] /= max(n - 1, 1)
        self.mean, self.spread = mean, math.sqrt(spread / max(n, 1))


def global_features(
    out: Singles, free_gpu: float, free_cpu: float, n_jobs: int, log_times: LogTimes, least_share: float
) -> None:
    """`free_*`: fractions of the cluster; `least_share`: what all jobs take together at their smallest size."""
    out[0] = free_gpu
    out[1] = free_cpu
    out[2] = math.log1p(n_jobs) / 4.0
    out[3] = log_times.mean / 3.0
    out[4] = log_times.spread / 2.0
    out[5] = min(least_share, 2.0)

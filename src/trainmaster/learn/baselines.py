"""DRF and Optimus in the slot simulator: the policies of those names by other means, a hundred times as fast.

Tests hold them to the engine. What differs: the engine asks Optimus again only when something has changed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainmaster.estimate.speed_fit import fit_speed, profile_sizes
from trainmaster.learn.rollout import play
from trainmaster.learn.sizing_trace import PROFILE_POINTS, TERMS, SizingTrace, with_beliefs
from trainmaster.model.errors import InputError
from trainmaster.model.scaling import Scaling
from trainmaster.model.stable_hash import stable_hash

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
NEVER, STOP = np.float32(-1e9), np.float32(-1e8)


class EqualShares:
    """DRF: a worker and a server to the job with the smallest dominant share, while they last."""

    def scores(self, rows: Singles, starts: Ints, globals_: Singles) -> tuple[Singles, Singles]:
        del globals_
        out = np.full((len(rows), 3), NEVER, np.float32)
        out[:, 2] = -rows[:, 15]
        return out, np.full(len(starts), STOP)


class TimeSaved:
    """Optimus: a worker or a server to the job that it shortens most for its dominant share, until nothing gains."""

    def scores(self, rows: Singles, starts: Ints, globals_: Singles) -> tuple[Singles, Singles]:
        del globals_
        gain, log_cost = rows[:, 6:8].astype(np.float64), 5.0 * rows[:, 16:18]
        saved = 3.0 * rows[:, 1:2] + np.log(np.maximum(-np.expm1(-gain), 1e-300))
        out = np.full((len(rows), 3), NEVER, np.float32)
        out[:, :2] = np.where(gain > 0, saved - log_cost, NEVER)
        return out, np.full(len(starts), STOP)


def optimus_beliefs(trace: SizingTrace, error: float, fitted: bool, seed: int = 0) -> SizingTrace:
    """The trace as `optimus:error=...,fitted=...` believes it, with the very draws that the policy makes."""
    believed = trace.curve.copy()
    sizes = profile_sizes((1, trace.spec.workers_max), (1, trace.spec.servers_max), PROFILE_POINTS)
    for k, job_id in enumerate(trace.ids):
        if fitted:
            rng = np.random.Generator(np.random.PCG64([seed, stable_hash(job_id), 2]))
            true = Scaling(**dict(zip(TERMS, trace.curve[k].tolist(), strict=True)))
            points = [
                (w, p, float(true.speed(w, p)) * max(1.0 + error * float(rng.standard_normal()), 0.05))
                for w, p in sizes
            ]
            curve = fit_speed(points).scaling
            believed[k] = [getattr(curve, term) for term in TERMS]
        elif error:
            rng = np.random.Generator(np.random.PCG64([seed, stable_hash(job_id), 1]))
            speed, work = 1.0 + error * (rng.integers(0, 2, size=2) * 2 - 1)
            believed[k] *= work / speed
    return with_beliefs(trace, believed)


def mean_completion_s(traces: list[SizingTrace], name: str) -> Floats:
    """By trace, for `drf`, `optimus`, `optimus:error=E` and `optimus:fitted=true,error=E`."""
    if name == "drf":
        return play(traces, EqualShares())
    head, _, options = name.partition(":")
    chosen = dict(pair.split("=", 1) for pair in options.split(",") if pair)
    if head != "optimus" or set(chosen) - {"error", "fitted"}:
        raise InputError(f"'{name}' is not simulated by slots", "drf or optimus, with error and fitted")
    error, fitted = float(chosen.get("error", "0")), chosen.get("fitted") == "true"
    return play([optimus_beliefs(trace, error, fitted) for trace in traces], TimeSaved())

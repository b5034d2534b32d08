"""DRF and Optimus in the slot simulator: the policies of those names by other means, a hundred times as fast.

Tests hold them to the engine. What differs: the engine asks Optimus again only when something has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trainmaster.core.arrays import Floats, Ints, Singles
from trainmaster.estimate.speed_fit import fit_speed, profile_sizes
from trainmaster.learn.dl2.rollout import play
from trainmaster.learn.sizing.trace import PROFILE_POINTS, TERMS, SizingTrace
from trainmaster.model.errors import InputError
from trainmaster.model.scaling import Scaling
from trainmaster.model.stable_hash import stable_hash
from trainmaster.policies.dl2.features import JOB_FEATURES
from trainmaster.policies.dl2.network import ScoringNetwork, shapes

SAME_KNOWLEDGE = "optimus, speeds as dl2 learns them"
NEVER, STOP = np.float32(-1e9), np.float32(-1e8)
LEFT, GAIN, COST = (JOB_FEATURES.index(name) for name in ("log_time_now", "gain_worker", "cost_worker"))


def equal_shares() -> ScoringNetwork:
    """DRF as fixed weights: a worker and a server to the job with the smallest dominant share, while they last."""
    weights = {name: np.zeros(shape, np.float32) for name, shape in shapes(1, 1).items()}
    weights["S"][JOB_FEATURES.index("share"), 2] = -1.0
    weights["a"][:2], weights["b"][0] = NEVER, STOP
    return ScoringNetwork(weights)


class TimeSaved:
    """Optimus: a worker or a server to the job that it shortens most for its dominant share, until nothing gains. A
    worker for a job without servers is "both", at the cost of a worker."""

    def __init__(self, servers: bool) -> None:
        self.action = [0, 1] if servers else [2]

    def scores(self, rows: Singles, starts: Ints, globals_: Singles) -> tuple[Singles, Singles]:
        del starts, globals_
        gained = rows[:, GAIN : GAIN + 3][:, self.action].astype(np.float64)
        log_left, log_cost = 3.0 * rows[:, [LEFT]], 5.0 * rows[:, COST : COST + len(self.action)]
        scores = np.full((len(rows), 3), NEVER)
        with np.errstate(divide="ignore", invalid="ignore"):
            saved = log_left + np.log(-np.expm1(-gained)) - log_cost
        scores[:, self.action] = np.where(gained > 0.0, saved, NEVER)
        return scores, np.array([STOP])


def time_saved(traces: Sequence[SizingTrace]) -> Floats:
    return np.array([play([trace], TimeSaved(trace.spec.servers_max > 0))[0] for trace in traces])


def with_beliefs(trace: SizingTrace, believed: Floats) -> SizingTrace:
    """The trace as somebody sees it who believes these curves from beginning to end."""
    return replace(trace, believed=believed, profiles=None)


def optimus_beliefs(trace: SizingTrace, error: float, fitted: bool, seed: int = 0) -> SizingTrace:
    """The trace as `optimus:error=...,fitted=...` believes it, with the very draws that the policy makes."""
    believed = trace.curve.copy()
    sizes = profile_sizes(
        (1, trace.spec.workers_max), (min(1, trace.spec.servers_max), trace.spec.servers_max), PROFILE_POINTS
    )
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


def mean_completion_s(traces: Sequence[SizingTrace], name: str) -> Floats:
    """By trace, for `drf`, `optimus`, `optimus:error=E` and `optimus:fitted=true,error=E`; `SAME_KNOWLEDGE` is Optimus
    that learns speeds as dl2 does, which no policy of that name can."""
    if name == SAME_KNOWLEDGE:
        return time_saved(traces)
    if name == "drf":
        return play(traces, equal_shares())
    head, _, options = name.partition(":")
    chosen = dict(pair.split("=", 1) for pair in options.split(",") if pair)
    if head != "optimus" or set(chosen) - {"error", "fitted"}:
        raise InputError(f"'{name}' is not simulated by slots", "drf or optimus, with error and fitted")
    error, fitted = float(chosen.get("error", "0")), chosen.get("fitted") == "true"
    return time_saved([optimus_beliefs(trace, error, fitted) for trace in traces])

"""The slot of DL2: from everyone's smallest size, one worker, server or both at a time to the job that the network
scores highest, until it says stop or nothing more fits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import njit

from trainmaster.policies.dl2.features import (
    N_GLOBAL,
    N_JOB,
    global_features,
    log_time_statistics,
    size_features,
    slot_features,
    step_time,
)
from trainmaster.policies.dl2.incremental import changed, empty_terms, pack, score
from trainmaster.policies.dl2.network import ScoringNetwork, WindowNetwork
from trainmaster.policies.pools import Demands, Pools, fits, take

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
ONE = np.zeros(1, np.int64)


@dataclass(frozen=True)
class Candidates:
    """Jobs that may grow, in order of arrival. `row` is that of the snapshot; all else is per candidate.

    `coefficients` and `work_slots` are such that the slots left with w workers and p servers are
    work_slots * step_time(coefficients, w, p)."""

    row: Ints
    kind: Ints
    coefficients: Floats
    work_slots: Floats
    age_slots: Floats
    done: Floats
    workers_least: Ints
    servers_least: Ints
    workers_max: Ints
    servers_max: Ints
    worker_cost: Floats
    server_cost: Floats


class AbsurdScores(Exception):
    """The network's answer cannot be used; the text says why."""


def grow(
    network: ScoringNetwork | WindowNetwork, jobs: Candidates, pools: Pools, need: Demands, total: Floats,
    workers: Ints, servers: Ints, grants_max: int,
) -> int:  # fmt: skip
    """Raise `workers` and `servers` (by snapshot row) in place; returns how many inferences were made.

    On clusters with more free GPUs than `grants_max` several are granted at a time."""
    n = len(jobs.row)
    features, globals_ = np.zeros((n, N_JOB), np.float32), np.zeros((1, N_GLOBAL), np.float32)
    mean, spread = _begin(features, jobs, workers, servers)
    least_share = float(np.maximum(workers[jobs.row] * jobs.worker_cost, servers[jobs.row] * jobs.server_cost).sum())
    allowed = np.zeros((n, 3), np.bool_)
    stride = max(1, int(pools.milli.sum() / 1000.0 / grants_max))
    inferences = 0
    scorer = _Stepwise(network, features)
    while _legal(
        allowed, jobs.row, jobs.kind, jobs.workers_max, jobs.servers_max, pools, need, workers, servers
    ):
        free_gpu, free_cpu = float(pools.milli.sum() / total[0]), float(pools.anywhere[0] / total[1])
        global_features(globals_[0], free_gpu, free_cpu, n, mean, spread, least_share)
        scores, void = scorer.scores(features, globals_)
        inferences += 1
        if not np.isfinite(void) or not np.isfinite(scores).all():
            raise AbsurdScores("scores that are not finite")
        scores = np.where(allowed, scores, -np.inf)
        best = int(np.argmax(scores))
        i, action = divmod(best, 3)
        if scores[i, action] <= void:
            if inferences == 1 and free_gpu > 0.5 and (features[allowed.any(axis=1), 6:9].max(initial=0.0) > 0.1):
                raise AbsurdScores("a stop at once, with half of the cluster free and jobs that would gain")
            break
        row = int(jobs.row[i])
        for _ in range(stride):
            take(pools, need, row, jobs.kind[i], int(action != 1), int(action != 0))
            workers[row] += int(action != 1)
            servers[row] += int(action != 0)
            if stride == 1 or not _may(
                row, jobs.kind[i], jobs.workers_max[i], jobs.servers_max[i], action, pools, need, workers, servers
            ):
                break
        _sized(features[i], jobs, i, int(workers[row]), int(servers[row]))
        scorer.changed(i, features[i])
    return inferences


class _Stepwise:
    """Scores of one decision after another; the shared network computes only what a grant has changed."""

    def __init__(self, network: ScoringNetwork | WindowNetwork, features: npt.NDArray[np.float32]) -> None:
        self.window = network if isinstance(network, WindowNetwork) else None
        if isinstance(network, ScoringNetwork):
            n = len(features)
            self.packed = pack(network)
            self.terms = empty_terms(n, self.packed)
            self.jobs, self.out = np.arange(n), np.zeros((n, 3), np.float32)
            for i in range(n):
                changed(i, features[i], self.packed, self.terms, True)

    def changed(self, i: int, features: npt.NDArray[np.float32]) -> None:
        if self.window is None:
            changed(i, features, self.packed, self.terms, False)

    def scores(
        self, features: npt.NDArray[np.float32], globals_: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[np.float32], float]:
        if self.window is not None:
            scores, void = self.window.scores(features, ONE, globals_)
            return scores, float(void[0])
        void = score(len(features), globals_[0], self.packed, self.terms, self.jobs, self.out)
        return self.out, float(void)


def _begin(features: npt.NDArray[np.float32], jobs: Candidates, workers: Ints, servers: Ints) -> tuple[float, float]:
    n = len(jobs.row)
    log_time = np.empty(n)
    for i in range(n):
        step = step_time(jobs.coefficients[i], max(int(jobs.workers_least[i]), 1), int(jobs.servers_least[i]))
        log_time[i] = np.log(max(jobs.work_slots[i] * step, 1e-6))
    mean, spread, shorter = log_time_statistics(log_time, n)
    for i in range(n):
        slot_features(
            features[i], log_time[i], jobs.age_slots[i], jobs.done[i], jobs.worker_cost[i], jobs.server_cost[i], mean,
            shorter[i],
        )  # fmt: skip
        _sized(features[i], jobs, i, int(workers[jobs.row[i]]), int(servers[jobs.row[i]]))
    return mean, spread


def _sized(out: npt.NDArray[np.float32], jobs: Candidates, i: int, workers: int, servers: int) -> None:
    size_features(
        out, jobs.coefficients[i], jobs.work_slots[i], workers, servers, int(jobs.workers_max[i]),
        int(jobs.servers_max[i]), jobs.worker_cost[i], jobs.server_cost[i],
    )  # fmt: skip


@njit(cache=True)
def _may(row, kind, workers_max, servers_max, action, pools, need, workers, servers):
    more_w, more_p = 0 if action == 1 else 1, 0 if action == 0 else 1
    if workers[row] + more_w > workers_max or servers[row] + more_p > servers_max:
        return False
    return fits(pools, need, row, kind, more_w, more_p)


@njit(cache=True)
def _legal(allowed, rows, kind, workers_max, servers_max, pools, need, workers, servers):
    """Mark what is possible for every candidate; whether anything is."""
    some = False
    for i in range(rows.size):
        for action in range(3):
            possible = _may(rows[i], kind[i], workers_max[i], servers_max[i], action, pools, need, workers, servers)
            allowed[i, action] = possible
            some = some or possible
    return some

"""The slot of DL2: from everyone's smallest size, one worker, server or both at a time to the job that the network
scores highest, until it says stop or nothing more fits."""

from __future__ import annotations

from typing import NamedTuple

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

USED_UP, STOPPED, NOT_FINITE, STOPPED_AT_ONCE = 0, 1, 2, 3
_ABSURD = {
    NOT_FINITE: "scores that are not finite",
    STOPPED_AT_ONCE: "a stop at once, with half of the cluster free and jobs that would gain a tenth",
}


class Candidates(NamedTuple):
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
    features = np.zeros((n, N_JOB), np.float32)
    mean, spread = _begin(features, jobs, workers, servers)
    share = np.maximum(workers[jobs.row] * jobs.worker_cost, servers[jobs.row] * jobs.server_cost)
    stride = max(1, int(pools.milli.sum() / 1000.0 / grants_max))
    state = (features, jobs, pools, need, total, workers, servers, stride, mean, spread, float(share.sum()))
    if isinstance(network, ScoringNetwork):
        packed = pack(network)
        inferences, outcome = _grow_shared(packed, empty_terms(n, packed), *state)
    else:
        inferences, outcome = _grow_window(network, *state)
    if outcome in _ABSURD:
        raise AbsurdScores(_ABSURD[outcome])
    return int(inferences)


@njit(cache=True)
def _grow_shared(q, t, features, jobs, pools, need, total, workers, servers, stride, mean, spread, least_share):
    n = jobs.row.size
    order = np.arange(n)
    scores, globals_ = np.zeros((n, 3), np.float32), np.zeros(N_GLOBAL, np.float32)
    allowed = np.zeros((n, 3), np.bool_)
    for i in range(n):
        changed(i, features[i], q, t, True)
    inferences = 0
    while _legal(allowed, jobs, pools, need, workers, servers):
        _globals(globals_, pools, total, n, mean, spread, least_share)
        void = score(n, globals_, q, t, order, scores)
        inferences += 1
        i, action, outcome = _best(scores, void, allowed, features, inferences, globals_[0])
        if outcome != USED_UP:
            return inferences, outcome
        _grant(i, action, stride, features, jobs, pools, need, workers, servers)
        changed(i, features[i], q, t, False)
    return inferences, USED_UP


def _grow_window(
    network: WindowNetwork, features: npt.NDArray[np.float32], jobs: Candidates, pools: Pools, need: Demands,
    total: Floats, workers: Ints, servers: Ints, stride: int, mean: float, spread: float, least_share: float,
) -> tuple[int, int]:  # fmt: skip
    n, inferences, start = len(jobs.row), 0, np.zeros(1, np.int64)
    globals_, allowed = np.zeros((1, N_GLOBAL), np.float32), np.zeros((n, 3), np.bool_)
    while _legal(allowed, jobs, pools, need, workers, servers):
        _globals(globals_[0], pools, total, n, mean, spread, least_share)
        scores, void = network.scores(features, start, globals_)
        inferences += 1
        i, action, outcome = _best(scores, void[0], allowed, features, inferences, globals_[0, 0])
        if outcome != USED_UP:
            return inferences, outcome
        _grant(i, action, stride, features, jobs, pools, need, workers, servers)
    return inferences, USED_UP


@njit(cache=True)
def _begin(features, jobs, workers, servers):
    n = jobs.row.size
    log_time = np.empty(n)
    for i in range(n):
        step = step_time(jobs.coefficients[i], max(jobs.workers_least[i], 1), jobs.servers_least[i])
        log_time[i] = np.log(max(jobs.work_slots[i] * step, 1e-6))
    mean, spread, shorter = log_time_statistics(log_time, n)
    for i in range(n):
        slot_features(
            features[i], log_time[i], jobs.age_slots[i], jobs.done[i], jobs.worker_cost[i], jobs.server_cost[i], mean,
            shorter[i],
        )  # fmt: skip
        _sized(features[i], jobs, i, workers, servers)
    return mean, spread


@njit(cache=True)
def _sized(out, jobs, i, workers, servers):
    row = jobs.row[i]
    size_features(
        out, jobs.coefficients[i], jobs.work_slots[i], workers[row], servers[row], jobs.workers_max[i],
        jobs.servers_max[i], jobs.worker_cost[i], jobs.server_cost[i],
    )  # fmt: skip


@njit(cache=True)
def _globals(out, pools, total, n, mean, spread, least_share):
    global_features(out, pools.milli.sum() / total[0], pools.anywhere[0] / total[1], n, mean, spread, least_share)


@njit(cache=True)
def _best(scores, void, allowed, features, inferences, free_gpu):
    """The possible action with the highest score (the earlier job in a tie), or why there is none to take: stopping
    is likelier than all of them together."""
    if not np.isfinite(void):
        return -1, -1, NOT_FINITE
    best_i, best_action, best = -1, -1, -np.inf
    gain = 0.0
    for i in range(scores.shape[0]):
        for action in range(3):
            if not np.isfinite(scores[i, action]):
                return -1, -1, NOT_FINITE
            if allowed[i, action]:
                gain = max(gain, features[i, 6 + action])
                if scores[i, action] > best:
                    best_i, best_action, best = i, action, scores[i, action]
    top = max(best, void)
    others = 0.0
    for i in range(scores.shape[0]):
        for action in range(3):
            if allowed[i, action]:
                others += np.exp(scores[i, action] - top)
    if np.exp(void - top) <= others:
        return best_i, best_action, USED_UP
    absurd = inferences == 1 and free_gpu > 0.5 and gain > 0.1
    return -1, -1, STOPPED_AT_ONCE if absurd else STOPPED


@njit(cache=True)
def _grant(i, action, stride, features, jobs, pools, need, workers, servers):
    row, kind = jobs.row[i], jobs.kind[i]
    more_w, more_p = _more(i, action, jobs)
    for _ in range(stride):
        take(pools, need, row, kind, more_w, more_p)
        workers[row] += more_w
        servers[row] += more_p
        if not _may(i, action, jobs, pools, need, workers, servers):
            break
    _sized(features[i], jobs, i, workers, servers)


@njit(cache=True)
def _more(i, action, jobs):
    """Workers and servers that an action gives; "both" gives a worker alone to a job that takes no servers."""
    return 0 if action == 1 else 1, 0 if action == 0 or jobs.servers_max[i] == 0 else 1


@njit(cache=True)
def _may(i, action, jobs, pools, need, workers, servers):
    row = jobs.row[i]
    if jobs.servers_max[i] == 0 and action != 2:
        return False
    more_w, more_p = _more(i, action, jobs)
    if workers[row] + more_w > jobs.workers_max[i] or servers[row] + more_p > jobs.servers_max[i]:
        return False
    return fits(pools, need, row, jobs.kind[i], more_w, more_p)


@njit(cache=True)
def _legal(allowed, jobs, pools, need, workers, servers):
    """Mark what is possible for every candidate; whether anything is."""
    some = False
    for i in range(jobs.row.size):
        for action in range(3):
            possible = _may(i, action, jobs, pools, need, workers, servers)
            allowed[i, action] = possible
            some = some or possible
    return some

"""The slot of DL2: from everyone's smallest size, one worker, server or both at a time to the job that the network
scores highest, until it says stop or nothing more fits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainmaster.core.arrays import Floats, Ints
from trainmaster.policies.dl2.actions import Granting
from trainmaster.policies.dl2.features import N_JOB
from trainmaster.policies.dl2.incremental import IncrementalNetwork
from trainmaster.policies.dl2.network import ScoringNetwork, WindowNetwork
from trainmaster.policies.dl2.outcomes import NOT_FINITE, STOPPED_AT_ONCE, USED_UP
from trainmaster.policies.shared.node_capacity import Room
from trainmaster.policies.shared.pools import Demands, Pools

_ABSURD = {
    NOT_FINITE: "scores that are not finite",
    STOPPED_AT_ONCE: "a stop at once, with half of the cluster free and jobs that would gain a tenth",
}


class Candidates(NamedTuple):
    """Jobs that may grow, in order of arrival. `row` is that of the snapshot; all else is per candidate.

    `coefficients` and `work_slots` are such that the slots left with w workers and p servers are
    work_slots * step_time(coefficients, w, p)."""

    row: Ints
    gpu_type: Ints
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
    network: ScoringNetwork | WindowNetwork,
    jobs: Candidates,
    pools: Pools,
    need: Demands,
    total: Floats,
    workers: Ints,
    servers: Ints,
    grants_max: int,
) -> int:
    """Raise `workers` and `servers` (by snapshot row) in place; returns how many inferences were made.

    On clusters with more free GPUs than `grants_max` several are granted at a time."""
    features = np.zeros((len(jobs.row), N_JOB), np.float32)
    share = np.maximum(workers[jobs.row] * jobs.worker_cost, servers[jobs.row] * jobs.server_cost)
    stride = max(1, int(pools.milli.sum() / 1000.0 / grants_max))
    granting = Granting(jobs, Room(pools, need), features, workers, servers, total, stride, float(share.sum()))
    if isinstance(network, ScoringNetwork):
        outcome = granting.run(IncrementalNetwork(network.weights, len(jobs.row)))
    else:
        outcome = _grow_by_window(network, granting, features)
    if outcome in _ABSURD:
        raise AbsurdScores(_ABSURD[outcome])
    return granting.inferences


def _grow_by_window(network: WindowNetwork, granting: Granting, features: npt.NDArray[np.float32]) -> int:
    start = np.zeros(1, np.int64)
    while granting.mark_legal():
        seen = np.asarray(granting.see())
        scores, void = network.scores(features, start, seen[None])
        outcome = granting.choose(np.ascontiguousarray(scores), void[0])
        if outcome != USED_UP:
            return outcome
        granting.grant()
    return USED_UP

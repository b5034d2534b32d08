"""What `policies.dl2.profiles` learns of speeds in the engine, in the slot simulator: the same steps in the same order.

A test holds the two together.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from trainmaster.policies.dl2.features import step_time
from trainmaster.policies.dl2.profiles import drawn_part
from trainmaster.policies.dl2.speed_evidence import PROGRESS_WEIGHT, add_point, likely_best, move, settle, size_near


@njit(cache=True)
def learn_speeds(b, s):
    """Progress of the last slot, profiles of the jobs that are new, then a curve for each job of the slot."""
    n = s.n_rows[b]
    kinds = s.pools.shape[1]
    changed = np.zeros(kinds, np.bool_)
    for i in range(n):
        j = s.rows[b, i]
        if s.job_factor[b, j] > 0.0 and _progressed(b, j, s):
            changed[s.kind[b, j]] = True
    for i in range(n):
        j = s.rows[b, i]
        if s.job_factor[b, j] == 0.0:
            _profile(b, j, s)
            s.job_factor[b, j] = 1.0
            move(s.pools[b, s.kind[b, j]], s.evidence[b, j], 0.0, 1.0)
            changed[s.kind[b, j]] = True
    members = np.empty(n, np.int64)
    for kind in range(kinds):
        if not changed[kind]:
            continue
        few = 0
        for i in range(n):
            if s.kind[b, s.rows[b, i]] == kind:
                members[few] = s.rows[b, i]
                few += 1
        settle(s.pools[b, kind], s.evidence[b], s.job_factor[b], members, few, s.kind_curve[b, kind])
        for i in range(few):
            j = members[i]
            for k in range(s.kind_curve.shape[2]):
                s.believed[b, j, k] = s.kind_curve[b, kind, k] * s.job_factor[b, j]


@njit(cache=True)
def _progressed(b, j, s):
    w, p = s.ran[b, j, 0], s.ran[b, j, 1]
    if w == 0 or (w == s.measured[b, j, 0] and p == s.measured[b, j, 1]):
        return False
    speed = s.factor[b, j] / step_time(s.curve[b, j], w, p)
    point = np.zeros_like(s.evidence[b, j])
    add_point(point, w, p, speed, PROGRESS_WEIGHT)
    s.evidence[b, j] += point
    move(s.pools[b, s.kind[b, j]], point, 0.0, s.job_factor[b, j])
    s.measured[b, j, 0], s.measured[b, j, 1] = w, p
    return True


@njit(cache=True)
def _profile(b, j, s):
    """Profiles are taken before a job runs, on a machine of its own: they do not know its hidden factor."""
    own = s.evidence[b, j]
    count = s.noise.shape[2]
    drawn = drawn_part(count)
    best_w, best_p = 1, 1
    least_p = min(1, s.servers_max[b])
    for k in range(count):
        w, p = s.sizes[b, j, k, 0], s.sizes[b, j, k, 1]
        if k >= drawn:
            if k == drawn:
                best_w, best_p = likely_best(
                    s.pools[b, s.kind[b, j]], own, 1, s.workers_max[b], least_p, s.servers_max[b]
                )
            w = size_near(best_w, 1, s.workers_max[b], s.near[b, j, k, 0])
            p = size_near(best_p, least_p, s.servers_max[b], s.near[b, j, k, 1])
        speed = max(1.0 + s.error[b] * s.noise[b, j, k], 0.05) / step_time(s.curve[b, j], w, p)
        add_point(own, w, p, speed, 1.0)

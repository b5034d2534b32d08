"""The scoring network one grant at a time, compiled: what a grant leaves unchanged is not computed again.

Within a slot a grant changes one job's features and the global ones. So h_i U.., h_i W and x_i S are kept per job,
the mean of h is kept as a sum, and an inference costs only the context and the last layer of each job. The
figures are those of `ScoringNetwork.scores` up to rounding.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from trainmaster.policies.dl2.features import N_ACTION
from trainmaster.policies.dl2.network import ScoringNetwork

Singles = npt.NDArray[np.float32]


class Packed(NamedTuple):
    """Weights as the kernels want them: W split in the parts for h and for the context, A transposed."""

    U: Singles
    u: Singles
    V: Singles
    v: Singles
    W_job: Singles
    W_context: Singles
    w: Singles
    A: Singles
    a: Singles
    S: Singles
    B: Singles
    b: Singles


class Terms(NamedTuple):
    """Kept between the inferences of a slot: per job h, h W and x S; the sum of h."""

    h: Singles
    hw: Singles
    xs: Singles
    sum_h: Singles


def pack(network: ScoringNetwork) -> Packed:
    q = {name: np.ascontiguousarray(value, np.float32) for name, value in network.weights.items()}
    hidden = q["u"].shape[0]
    return Packed(
        q["U"], q["u"], q["V"], q["v"], np.ascontiguousarray(q["W"][:hidden]), np.ascontiguousarray(q["W"][hidden:]),
        q["w"], np.ascontiguousarray(q["A"].T), q["a"], q["S"], np.ascontiguousarray(q["B"][:, 0]), q["b"],
    )  # fmt: skip


def empty_terms(n_jobs: int, network: Packed) -> Terms:
    hidden = network.u.shape[0]
    return Terms(
        np.zeros((n_jobs, hidden), np.float32), np.zeros((n_jobs, hidden), np.float32),
        np.zeros((n_jobs, N_ACTION), np.float32), np.zeros(hidden, np.float32),
    )  # fmt: skip


@njit(cache=True, fastmath={"contract", "reassoc"})
def changed(i, x, q, t, first):
    """Job i has new features x; `first`: it had none before."""
    hidden = q.u.size
    if not first:
        for k in range(hidden):
            t.sum_h[k] -= t.h[i, k]
    h = t.h[i]
    for k in range(hidden):
        h[k] = q.u[k]
    for f in range(x.size):
        value = x[f]
        if value != 0.0:
            for k in range(hidden):
                h[k] += value * q.U[f, k]
    hw = t.hw[i]
    for k in range(hidden):
        hw[k] = 0.0
        if h[k] < 0.0:
            h[k] = 0.0
        t.sum_h[k] += h[k]
    for f in range(hidden):
        value = h[f]
        if value != 0.0:
            for k in range(hidden):
                hw[k] += value * q.W_job[f, k]
    for a in range(3):
        t.xs[i, a] = q.a[a]
    for f in range(x.size):
        for a in range(3):
            t.xs[i, a] += x[f] * q.S[f, a]


@njit(cache=True, fastmath={"contract", "reassoc"})
def score(n, globals_, q, t, jobs, scores):
    """Scores of the jobs listed in `jobs` (the first n of them); returns that of stopping."""
    hidden, width = q.u.size, q.v.size
    context = q.v.copy()
    for f in range(hidden):
        value = t.sum_h[f] / n
        for k in range(width):
            context[k] += value * q.V[f, k]
    for f in range(globals_.size):
        for k in range(width):
            context[k] += globals_[f] * q.V[hidden + f, k]
    shared = q.w.copy()
    void = q.b[0]
    for f in range(width):
        if context[f] > 0.0:
            value = context[f]
            void += value * q.B[f]
            for k in range(hidden):
                shared[k] += value * q.W_context[f, k]
    for i in range(n):
        j = jobs[i]
        s0 = np.float32(0.0)
        s1 = np.float32(0.0)
        s2 = np.float32(0.0)
        for k in range(hidden):
            z = max(t.hw[j, k] + shared[k], np.float32(0.0))
            s0 += z * q.A[0, k]
            s1 += z * q.A[1, k]
            s2 += z * q.A[2, k]
        scores[i, 0] = s0 + t.xs[j, 0]
        scores[i, 1] = s1 + t.xs[j, 1]
        scores[i, 2] = s2 + t.xs[j, 2]
    return void

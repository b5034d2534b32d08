# cython: cdivision=True
# distutils: extra_compile_args = -O3 -fassociative-math -fno-signed-zeros
"""The scoring network one grant at a time: what a grant leaves unchanged is not computed again.

Within a slot a grant changes one job's features and the global ones. So h_i U.., h_i W and x_i S are kept per job,
the mean of h is kept as a sum, and an inference costs only the context and the last layer of each job. The
figures are those of `ScoringNetwork.scores` up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from trainmaster.core.int_list import Ints
from trainmaster.policies.dl2.features import N_ACTION

Singles = npt.NDArray[np.float32]


class IncrementalNetwork:
    """Weights (W split in the parts for h and for the context, A transposed) and what is kept between the inferences
    of a slot: per job h, h W and x S; the sum of h."""

    def __init__(self, weights: Mapping[str, Any], n_jobs: int) -> None:
        q = {name: np.ascontiguousarray(value, np.float32) for name, value in weights.items()}
        hidden = q["u"].shape[0]
        self.U, self.u, self.V, self.v, self.S = q["U"], q["u"], q["V"], q["v"], q["S"]
        self.W_job, self.W_context = np.ascontiguousarray(q["W"][:hidden]), np.ascontiguousarray(q["W"][hidden:])
        self.w, self.A, self.a = q["w"], np.ascontiguousarray(q["A"].T), q["a"]
        self.B, self.b = np.ascontiguousarray(q["B"][:, 0]), q["b"]
        self.h = np.zeros((n_jobs, hidden), np.float32)
        self.hw = np.zeros((n_jobs, hidden), np.float32)
        self.xs = np.zeros((n_jobs, N_ACTION), np.float32)
        self.sum_h = np.zeros(hidden, np.float32)
        self.context = np.zeros(len(q["v"]), np.float32)
        self.shared = np.zeros(hidden, np.float32)

    def clear(self) -> None:
        """Forget all jobs."""
        self.sum_h[:] = 0.0

    def changed(self, i: int, features: Singles, row: int, first: bool) -> None:
        """Job i has the features in a row; `first`: it had none before."""
        hidden, n_features = self.u.shape[0], features.shape[1]
        if not first:
            for k in range(hidden):
                self.sum_h[k] -= self.h[i, k]
        for k in range(hidden):
            self.h[i, k] = self.u[k]
        for f in range(n_features):
            value = features[row, f]
            if value != 0.0:
                for k in range(hidden):
                    self.h[i, k] += value * self.U[f, k]
        for k in range(hidden):
            self.hw[i, k] = 0.0
            if self.h[i, k] < 0.0:
                self.h[i, k] = 0.0
            self.sum_h[k] += self.h[i, k]
        for f in range(hidden):
            value = self.h[i, f]
            if value != 0.0:
                for k in range(hidden):
                    self.hw[i, k] += value * self.W_job[f, k]
        for k in range(3):
            self.xs[i, k] = self.a[k]
        for f in range(n_features):
            for k in range(3):
                self.xs[i, k] += features[row, f] * self.S[f, k]

    def score(self, n: int, seen: Singles, jobs: Ints, scores: Singles) -> float:
        """Scores of the jobs listed in `jobs` (the first n of them) with the global features `seen`; returns that of
        stopping."""
        hidden, width = self.u.shape[0], self.v.shape[0]
        for k in range(width):
            self.context[k] = self.v[k]
        for f in range(hidden):
            value = self.sum_h[f] / n
            for k in range(width):
                self.context[k] += value * self.V[f, k]
        for f in range(seen.shape[0]):
            for k in range(width):
                self.context[k] += seen[f] * self.V[hidden + f, k]
        for k in range(hidden):
            self.shared[k] = self.w[k]
        void = self.b[0]
        for f in range(width):
            value = self.context[f]
            if value > 0.0:
                void += value * self.B[f]
                for k in range(hidden):
                    self.shared[k] += value * self.W_context[f, k]
        for i in range(n):
            self._score_job(i, jobs[i], scores)
        return void

    def _score_job(self, i: int, job: int, scores: Singles) -> None:
        s0 = s1 = s2 = 0.0
        for k in range(self.u.shape[0]):
            z = self.hw[job, k] + self.shared[k]
            z = z if z > 0.0 else 0.0
            s0 += z * self.A[0, k]
            s1 += z * self.A[1, k]
            s2 += z * self.A[2, k]
        scores[i, 0] = s0 + self.xs[job, 0]
        scores[i, 1] = s1 + self.xs[job, 1]
        scores[i, 2] = s2 + self.xs[job, 2]

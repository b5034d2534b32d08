"""The policy network as plain NumPy: scores for (job, action) and for stopping, from rows of features.

Every job is scored by the same weights (Zaheer et al., Deep Sets, NIPS'17), so that the number of jobs is free and
their order does not matter:

    h_i = relu(x_i U + u)      m = mean_i h_i      c = relu([m, g] V + v)
    z_i = relu([h_i, c] W + w)      score(i, worker | server | both) = z_i A + x_i S + a      score(void) = c B + b

g are the global features; the direct path x_i S lets simple rules be learned at once, the rest corrects them.
Many decisions are computed at once; `starts` says where the jobs of each begin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trainmaster.core.arrays import Ints, Singles
from trainmaster.policies.dl2.features import N_ACTION, N_GLOBAL, N_JOB

SHAPES = {
    "U": ("job", "hidden"), "u": ("hidden",), "V": ("hidden+global", "context"), "v": ("context",),
    "W": ("hidden+context", "hidden"), "w": ("hidden",), "A": ("hidden", "action"), "a": ("action",),
    "S": ("job", "action"),
    "B": ("context", "one"), "b": ("one",),
}  # fmt: skip


def shapes(hidden: int, context: int) -> dict[str, tuple[int, ...]]:
    """Shape of every weight."""
    size = {
        "job": N_JOB,
        "hidden": hidden,
        "hidden+global": hidden + N_GLOBAL,
        "context": context,
        "hidden+context": hidden + context,
        "action": N_ACTION,
        "one": 1,
    }
    return {name: tuple(size[axis] for axis in axes) for name, axes in SHAPES.items()}


@dataclass(frozen=True)
class ScoringNetwork:
    """Frozen weights; `weights` holds float32 arrays by the names of the equations above."""

    weights: dict[str, Singles]

    def scores(self, rows: Singles, starts: Ints, globals_: Singles) -> tuple[Singles, Singles]:
        """Scores of actions (N x 3) and of stopping (M), for M decisions over N jobs in all."""
        q: Any = self.weights
        counts = np.diff(np.append(starts, len(rows)))
        h: Any = np.maximum(rows @ q["U"] + q["u"], 0.0)
        if len(starts) == 1:
            mean = h.mean(axis=0, keepdims=True)
        else:
            mean = np.add.reduceat(h, starts, axis=0) / counts[:, None].astype(np.float32)
        context: Any = np.maximum(np.concatenate([mean, globals_], axis=1) @ q["V"] + q["v"], 0.0)
        # [h, c] W as two products: the context is multiplied once per decision, not once per job.
        hidden = h.shape[1]
        shared = context @ q["W"][hidden:] + q["w"]
        spread = shared if len(starts) == 1 else np.repeat(shared, counts, axis=0)
        z: Any = np.maximum(h @ q["W"][:hidden] + spread, 0.0)
        return z @ q["A"] + rows @ q["S"] + q["a"], (context @ q["B"] + q["b"])[:, 0]


@dataclass(frozen=True)
class WindowNetwork:
    """The paper's network: two dense layers over the first J jobs; later ones cannot be chosen."""

    weights: dict[str, Singles]
    window: int

    def scores(self, rows: Singles, starts: Ints, globals_: Singles) -> tuple[Singles, Singles]:
        q: Any = self.weights
        n, counts = len(starts), np.diff(np.append(starts, len(rows)))
        owner = np.repeat(np.arange(n), counts)
        place = np.arange(len(rows)) - starts[owner]
        inside = place < self.window
        grid = np.zeros((n, self.window, N_JOB), np.float32)
        grid[owner[inside], place[inside]] = rows[inside]
        x = np.concatenate([grid.reshape(n, -1), globals_], axis=1)
        out: Any = np.maximum(np.maximum(x @ q["P"] + q["p"], 0.0) @ q["Q"] + q["q"], 0.0) @ q["R"] + q["r"]
        scores = np.full((len(rows), N_ACTION), -1e9, np.float32)
        by_job = out[:, 1:].reshape(n, self.window, N_ACTION)
        scores[inside] = by_job[owner[inside], place[inside]]
        return scores, out[:, 0]

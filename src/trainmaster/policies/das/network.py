"""The networks of the two agents in NumPy.

Ordering agent (S^j: pending jobs, S^c: machines):

    S^j = relu(X^j Wj + bj)     s~ = mean_k relu(X^c_k Wc + bc)     f = tanh(s~ Wf + bf)
    delta = sigmoid([S^j, f] W3 + b3)     S~^j = delta f + (1 - delta) S^j            (squeeze and communicate)
    H = S~^j + position     H' = norm(H + heads(H))     Z = norm(H' + relu(H' Wa + ba) Wb + bb)   (Transformer encoder)
    score = Z wz + X^j ws

Placement agent, for a pending job and every machine:  affinity = relu(X^p P1 + p1) p2 + X^p ps + gain * E[log speed],
the last term being the posterior of `trainmaster.policies.das.gaussian`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from trainmaster.core.arrays import Floats
from trainmaster.policies.das.features import N_JOB, N_MACHINE, N_PAIR

Arrays = Mapping[str, npt.NDArray[np.float32]]

VARIANTS: Mapping[str, tuple[bool, bool]] = {
    "da": (False, False), "da+mc": (True, False), "da+rwgp": (False, True), "da+mc+rwgp": (True, True),
}  # fmt: skip
"""Whether the cluster's state is communicated to the ordering agent, and whether the process models speeds."""
POSITION_WAVE = 1000.0
ATTENDED_MAX = 2048
"""Jobs that a job looks at, and jobs that look at once."""


def shapes(width: int, hidden: int) -> dict[str, tuple[int, ...]]:
    """Of every array, for a width of the ordering agent and a hidden layer of the placement agent."""
    d, h = width, hidden
    return {
        "Wj": (N_JOB, d),
        "bj": (d,),
        "Wc": (N_MACHINE, d),
        "bc": (d,),
        "Wf": (d, d),
        "bf": (d,),
        "W3": (2 * d, d),
        "b3": (d,),
        "Wq": (d, d),
        "Wk": (d, d),
        "Wv": (d, d),
        "Wo": (d, d),
        "Wa": (d, 2 * d),
        "ba": (2 * d,),
        "Wb": (2 * d, d),
        "bb": (d,),
        "n1": (d,),
        "m1": (d,),
        "n2": (d,),
        "m2": (d,),
        "wz": (d,),
        "ws": (N_JOB,),
        "P1": (N_PAIR, h),
        "p1": (h,),
        "p2": (h,),
        "ps": (N_PAIR,),
        "gain": (1,),
    }


@lru_cache(maxsize=64)
def positions(n: int, width: int) -> npt.NDArray[np.float32]:
    """Sinusoidal code of the place in the pending list (Vaswani et al., 2017)."""
    place = np.arange(n)[:, None]
    wave = POSITION_WAVE ** (-np.arange(0, width, 2) / width)[None, :]
    out = np.zeros((n, width), np.float32)
    out[:, 0::2] = np.sin(place * wave)
    out[:, 1::2] = np.cos(place * wave[:, : width // 2])
    return out


@dataclass(frozen=True)
class Agents:
    """Frozen weights of both agents."""

    weights: Arrays
    heads: int
    variant: str

    @property
    def communicates(self) -> bool:
        return VARIANTS[self.variant][0]

    @property
    def models_speed(self) -> bool:
        return VARIANTS[self.variant][1]

    def scores(self, jobs: Floats, machines: Floats) -> Floats:
        """Priority of every pending job; the highest goes first."""
        q: Any = self.weights
        x: Any = jobs.astype(np.float32)
        s = np.maximum(x @ q["Wj"] + q["bj"], 0.0)
        if self.communicates:
            pooled = np.maximum(machines.astype(np.float32) @ q["Wc"] + q["bc"], 0.0).mean(axis=0)
            f = np.tanh(pooled @ q["Wf"] + q["bf"])
            d = len(f)
            # [S, f] W3 as two products: that of f is the same for every job.
            delta = _sigmoid(s @ q["W3"][:d] + (f @ q["W3"][d:] + q["b3"]))
            s = delta * f + (1.0 - delta) * s
        h = s + positions(len(x), s.shape[1])
        h = _norm(h + self._attend(h), q["n1"], q["m1"])
        z = _norm(h + np.maximum(h @ q["Wa"] + q["ba"], 0.0) @ q["Wb"] + q["bb"], q["n2"], q["m2"])
        return (z @ q["wz"] + x @ q["ws"]).astype(np.float64)

    def _attend(self, h: Any) -> Any:
        """Every job looks at every other; in a queue longer than any that the agents were trained on, at some of all
        places in it, a few jobs at a time, so that neither time nor memory grows with the square of its length."""
        q: Any = self.weights
        n, d = h.shape
        each = d // self.heads
        seen = h if n <= ATTENDED_MAX else h[np.linspace(0, n - 1, ATTENDED_MAX).astype(np.int64)]
        mine, theirs, told = (
            (of @ q[name]).reshape(len(of), self.heads, each).transpose(1, 0, 2)
            for of, name in ((h, "Wq"), (seen, "Wk"), (seen, "Wv"))
        )
        out = np.empty((n, d), np.float32)
        for first in range(0, n, ATTENDED_MAX):
            near = mine[:, first : first + ATTENDED_MAX] @ theirs.transpose(0, 2, 1) / np.float32(np.sqrt(each))
            near = np.exp(near - near.max(axis=2, keepdims=True))
            near /= near.sum(axis=2, keepdims=True)
            out[first : first + ATTENDED_MAX] = (near @ told).transpose(1, 0, 2).reshape(-1, d)
        return out @ q["Wo"]

    def affinities(self, pairs: Floats, log_speed: Floats | None) -> Floats:
        """Of one job to every machine; `log_speed`: what the process expects, for the variants that have one."""
        q: Any = self.weights
        x: Any = pairs.astype(np.float32)
        out = (np.maximum(x @ q["P1"] + q["p1"], 0.0) @ q["p2"] + x @ q["ps"]).astype(np.float64)
        return out if log_speed is None else out + float(q["gain"][0]) * log_speed


def _sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-np.clip(x, -30.0, 30.0)))


def _norm(x: Any, scale: Any, shift: Any) -> Any:
    mean = x.mean(axis=-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-5) * scale + shift

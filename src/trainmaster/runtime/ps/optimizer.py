"""The rules by which a server turns a gradient into new parameters, in one pass over a block, in place.

The formulas are those of torch.optim (SGD, Adagrad, AdamW), so that a model moves as it would there. Kernels
are compiled: NumPy needs two to eight passes over memory for what is one, and the pass is what a server does.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

from trainmaster.model.errors import InputError

Floats = NDArray[np.float32]


@njit(cache=True, nogil=True, error_model="numpy")
def _sgd(p: Floats, g: Floats, rate: np.float32, decay: np.float32) -> None:
    """p <- p - rate (g + decay p)."""
    for i in range(p.size):
        p[i] -= rate * (g[i] + decay * p[i])


@njit(cache=True, nogil=True, error_model="numpy")
def _momentum(p: Floats, m: Floats, g: Floats, rate: np.float32, mu: np.float32, decay: np.float32) -> None:
    """m <- mu m + g; p <- p - rate m (as torch.optim.SGD, dampening 0)."""
    for i in range(p.size):
        m[i] = mu * m[i] + (g[i] + decay * p[i])
        p[i] -= rate * m[i]


@njit(cache=True, nogil=True, error_model="numpy")
def _adagrad(p: Floats, s: Floats, g: Floats, rate: np.float32, epsilon: np.float32) -> None:
    """s <- s + g^2; p <- p - rate g / (sqrt(s) + epsilon)."""
    for i in range(p.size):
        s[i] += g[i] * g[i]
        p[i] -= rate * g[i] / (np.sqrt(s[i]) + epsilon)


@njit(cache=True, nogil=True, error_model="numpy")
def _adam(
    p: Floats,
    m: Floats,
    v: Floats,
    g: Floats,
    step_size: np.float32,
    beta1: np.float32,
    beta2: np.float32,
    correction: np.float32,
    epsilon: np.float32,
    shrink: np.float32,
) -> None:
    """AdamW: decay is applied to p directly (`shrink` = 1 - rate decay); `correction` = sqrt(1 - beta2^t)."""
    one = np.float32(1.0)
    for i in range(p.size):
        m[i] = beta1 * m[i] + (one - beta1) * g[i]
        v[i] = beta2 * v[i] + (one - beta2) * g[i] * g[i]
        p[i] = shrink * p[i] - step_size * m[i] / (np.sqrt(v[i]) / correction + epsilon)


@njit(cache=True, nogil=True, error_model="numpy")
def accumulate(total: Floats, g: Floats) -> None:
    """total <- total + g."""
    for i in range(total.size):
        total[i] += g[i]


@dataclass(frozen=True)
class Sgd:
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    kind: ClassVar[str] = "sgd"

    def __post_init__(self) -> None:
        _check(self.lr, "lr")
        _check(self.momentum, "momentum", below=1.0)
        _check(self.weight_decay, "weight_decay")

    @property
    def slots(self) -> int:
        return 1 if self.momentum else 0

    def apply(self, p: Floats, slots: Floats, g: Floats, step: int, rate_factor: float) -> None:  # noqa: ARG002
        rate, decay = np.float32(self.lr * rate_factor), np.float32(self.weight_decay)
        if self.momentum:
            _momentum(p, slots[0], g, rate, np.float32(self.momentum), decay)
        else:
            _sgd(p, g, rate, decay)


@dataclass(frozen=True)
class Adagrad:
    lr: float
    epsilon: float = 1e-10
    kind: ClassVar[str] = "adagrad"

    def __post_init__(self) -> None:
        _check(self.lr, "lr")
        _check(self.epsilon, "epsilon")

    @property
    def slots(self) -> int:
        return 1

    def apply(self, p: Floats, slots: Floats, g: Floats, step: int, rate_factor: float) -> None:  # noqa: ARG002
        _adagrad(p, slots[0], g, np.float32(self.lr * rate_factor), np.float32(self.epsilon))


@dataclass(frozen=True)
class Adam:
    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    kind: ClassVar[str] = "adam"

    def __post_init__(self) -> None:
        _check(self.lr, "lr")
        _check(self.beta1, "beta1", below=1.0)
        _check(self.beta2, "beta2", below=1.0)
        _check(self.epsilon, "epsilon")
        _check(self.weight_decay, "weight_decay")

    @property
    def slots(self) -> int:
        return 2

    def apply(self, p: Floats, slots: Floats, g: Floats, step: int, rate_factor: float) -> None:
        """`step` counts from 1: the number of this update on the block."""
        rate = self.lr * rate_factor
        _adam(
            p,
            slots[0],
            slots[1],
            g,
            np.float32(rate / (1.0 - self.beta1**step)),
            np.float32(self.beta1),
            np.float32(self.beta2),
            np.float32(math.sqrt(1.0 - self.beta2**step)),
            np.float32(self.epsilon),
            np.float32(1.0 - rate * self.weight_decay),
        )


Optimizer = Sgd | Adagrad | Adam
_KINDS: dict[str, type[Sgd] | type[Adagrad] | type[Adam]] = {kind.kind: kind for kind in (Sgd, Adagrad, Adam)}


def optimizer_to_json(optimizer: Optimizer) -> dict[str, Any]:
    return {"kind": optimizer.kind, **asdict(optimizer)}


def optimizer_from_json(data: dict[str, Any]) -> Optimizer:
    values = dict(data)
    kind = _KINDS.get(values.pop("kind", ""))
    if kind is None:
        raise InputError(f"unknown optimizer {data.get('kind')!r}", f"one of {', '.join(sorted(_KINDS))}")
    return kind(**values)


def warm_up(optimizer: Optimizer) -> None:
    """Compile before the first gradient comes."""
    p = np.zeros(2, np.float32)
    optimizer.apply(p, np.zeros((optimizer.slots, 2), np.float32), p.copy(), 1, 1.0)
    accumulate(p, p.copy())


def _check(value: float, name: str, below: float = math.inf) -> None:
    if not (math.isfinite(value) and 0.0 <= value < below):
        limit = "at least 0" if below == math.inf else f"at least 0 and below {below:g}"
        raise InputError(f"{name} is {value!r}", f"a finite number, {limit}", column=name)

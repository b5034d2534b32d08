"""Every choice of a training run, with the paper's values as one preset and ours as the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from trainmaster.learn.numbers import RunOptions, check_numbers
from trainmaster.model.errors import InputError

REWARDS = ("completion", "progress", "per-job")
UPDATES = ("clipped", "replay", "evolution")
NETWORKS = ("shared", "window")
_POSITIVE = ("rate", "warm_up_rate", "width", "clip")
_COUNTS = ("hidden", "context", "window", "batch", "episodes", "validate_every", "validation_traces", "pairs", "passes")


@dataclass(frozen=True)
class TrainOptions(RunOptions):
    """How DL2 is trained. `paper()` gives the published recipe; the defaults are ours."""

    teacher: str = "drf"
    network: str = "shared"
    """`shared`: every job scored by the same weights; `window`: the paper's one dense network over J jobs."""
    hidden: int = 32
    context: int = 16
    window: int = 20
    warm_up: bool = True
    warm_up_traces: int = 12
    warm_up_steps: int = 500
    warm_up_rate: float = 5e-3
    warm_up_rounds: int = 0
    """How often the rule then corrects the network in states that it came to itself (teacher `rule` only)."""
    reward: str = "completion"
    """`completion`: minus the jobs in the system, so that the return is minus the sum of completion times;
    `progress`: the paper's sum of epochs trained over epochs in all; `per-job`: each action has its own job's."""
    update: str = "clipped"
    """`clipped`: PPO with bootstrapped advantages; `replay`: the paper's actor-critic on samples of a replay;
    `evolution`: compare perturbed policies on the same traces (shared network only)."""
    pairs: int = 12
    width: float = 0.5
    """Of `update=evolution`: mirrored pairs per iteration, and how far they are perturbed."""
    critic: bool = True
    exploration: float = 0.0
    """Chance of overriding the network where a job's workers and servers are badly matched (paper: 0.4)."""
    replay: int = 8192
    """Decisions kept for `update=replay`; 0: only those of the last iteration."""
    discount: float = 0.97
    trace_decay: float = 0.9
    entropy: float = 1e-3
    rate: float = 1e-3
    clip: float = 0.2
    passes: int = 3
    batch: int = 1024
    iterations: int = 100
    episodes: int = 12
    """Episodes per iteration, over all clusters together."""
    kept: float = 0.15
    """Fraction of decisions that are learned from; all of them would only repeat each slot's lesson."""
    validate_every: int = 10
    validation_traces: int = 8
    floor: bool = True
    """Each job first gets one worker and one server."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, known in (("reward", REWARDS), ("update", UPDATES), ("network", NETWORKS)):
            if getattr(self, name) not in known:
                raise InputError(f"'{name}' is '{getattr(self, name)}'", "one of " + ", ".join(known))
        check_numbers(self.to_json(), positive=_POSITIVE, counts=_COUNTS)
        if self.update == "evolution" and self.network != "shared":
            raise InputError("update 'evolution' with network 'window'", "network 'shared'")
        if self.entropy < 0:
            raise InputError(f"'entropy' is {self.entropy}", "0 or more")
        for name in ("exploration", "discount", "trace_decay", "kept"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"'{name}' is {getattr(self, name)}", "0 to 1")


def paper(**changes: Any) -> TrainOptions:
    """The published recipe: dense network over a window, progress reward, replay, exploration, no bootstrapping."""
    base = TrainOptions(
        network="window",
        hidden=256,
        context=256,
        reward="progress",
        update="replay",
        exploration=0.4,
        discount=0.9,
        trace_decay=1.0,
        entropy=0.1,
        rate=1e-4,
        batch=256,
    )
    return replace(base, **changes)

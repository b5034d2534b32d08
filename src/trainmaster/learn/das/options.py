"""Every choice of a training run of DAS."""

from __future__ import annotations

from dataclasses import dataclass

from trainmaster.learn.numbers import RunOptions, check_numbers
from trainmaster.model.errors import InputError
from trainmaster.policies.das.gaussian import Kernel
from trainmaster.policies.das.network import VARIANTS

REWARDS = ("completion", "paper")
_POSITIVE = ("warm_up_rate", "rate", "clip", "horizon_h")
_COUNTS = (
    "width", "hidden", "heads", "history", "warm_up_episodes", "episodes", "rollouts", "passes", "batch", "learned",
    "validate_every", "validation_traces",
)  # fmt: skip


@dataclass(frozen=True)
class DasOptions(RunOptions):
    variant: str = "da+mc+rwgp"
    width: int = 32
    hidden: int = 32
    heads: int = 4
    history: int = 64
    """tau: observations that the Gaussian process keeps."""
    gain: float = 4.0
    """Affinity of one unit of expected log-speed, to begin with."""
    warm_up_episodes: int = 12
    warm_up_steps: int = 500
    warm_up_rate: float = 3e-3
    iterations: int = 80
    episodes: int = 9
    """Per iteration; sites take turns."""
    varied: int = 2
    """Worlds of varied shape that have a turn beside the three sites of the study."""
    rollouts: int = 4
    """Episodes of an iteration that a site plays on the same stream; each is judged against the others."""
    jobs: int = 160
    reward: str = "completion"
    """`completion`: minus the time that all jobs spend in the system and a little of what they pay; `paper`: r_t of the
    paper, for which completion times and fees are filled in when the episode is over."""
    fee_weight: float = 0.01
    """Job-hours that a dollar weighs (`completion`)."""
    wait_weight: float = 0.002
    """alpha (`paper`): weight of hours waited times GPUs asked for."""
    horizon_h: float = 8.0
    """Time after which a cost counts 1/e."""
    trace_decay: float = 0.9
    rate: float = 3e-4
    clip: float = 0.2
    entropy: float = 0.001
    passes: int = 2
    batch: int = 128
    learned: int = 1200
    """Choices of order that an iteration learns from, and as many of placement."""
    validate_every: int = 5
    validation_traces: int = 6
    seed: int = 0

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise InputError(f"'variant' is '{self.variant}'", "one of " + ", ".join(VARIANTS))
        if self.reward not in REWARDS:
            raise InputError(f"'reward' is '{self.reward}'", "one of " + ", ".join(REWARDS))
        check_numbers(self.to_json(), positive=_POSITIVE, counts=_COUNTS)
        if self.width % self.heads or self.width % 2:
            raise InputError(f"'width' is {self.width} with {self.heads} heads", "an even multiple of the heads")
        if self.jobs < 10:
            raise InputError(f"'jobs' is {self.jobs}", "10 or more")
        if not 0 <= self.trace_decay <= 1:
            raise InputError(f"'trace_decay' is {self.trace_decay}", "0 to 1")

    def kernel(self) -> Kernel:
        return Kernel(history=self.history)

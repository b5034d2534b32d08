"""How the global batch and the learning rate follow the number of workers.

Either the global batch is kept (`global_batch`): every update is what it would be with any other number of
workers, and the learning rate stays. Or every worker has its own batch (`worker_batch`): the global batch is
`worker_batch * workers`, and the learning rate, tuned for `reference_workers`, follows it linearly (Goyal et
al. 2017, section 2.1), by the square root (Hoffer et al. 2017, section 4), or not at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainmaster.runtime.errors import MisuseError

LR_RULES = ("linear", "sqrt", "none")


@dataclass(frozen=True)
class BatchRule:
    kept: int | None
    per_worker: int | None
    lr_rule: str = "linear"
    reference_workers: int = 1

    def __post_init__(self) -> None:
        if (self.kept is None) == (self.per_worker is None):
            raise MisuseError("give either global_batch (kept at every size) or worker_batch (scaled with the size)")
        if (self.kept or self.per_worker or 0) < 1:
            raise MisuseError(f"a batch of {self.kept if self.per_worker is None else self.per_worker} samples")
        if self.lr_rule not in LR_RULES:
            raise MisuseError(f"lr_rule={self.lr_rule!r}; expected one of {', '.join(LR_RULES)}")
        if self.reference_workers < 1:
            raise MisuseError(f"reference_workers={self.reference_workers}; expected at least 1")

    def global_batch(self, workers: int) -> int:
        if self.kept is not None:
            return self.kept
        assert self.per_worker is not None
        return self.per_worker * workers

    def lr_factor(self, workers: int) -> float:
        """By what the learning rate is multiplied."""
        if self.kept is not None or self.lr_rule == "none":
            return 1.0
        ratio = workers / self.reference_workers
        return ratio if self.lr_rule == "linear" else math.sqrt(ratio)

    def work(self, taken: int) -> float:
        """What an update of `taken` samples counts, in steps of the declared batch: progress at every size."""
        return 1.0 if self.kept is not None else taken / self.global_batch(self.reference_workers)

"""What two jobs keep of their speeds when they share the same devices, from a throughput catalogue.

Relative to each job alone, so that it holds whatever unit of work a job counts in.
"""

from __future__ import annotations

import numpy as np

from trainmaster.core.arrays import Floats
from trainmaster.estimate.catalogue import ThroughputCatalogue, with_batch_size
from trainmaster.model.job import JobSpec

UNKNOWN_PAIR = 0.5
"""Part of its speed that a job keeps beside one of which nothing is known: they take turns."""


class PairSlowdowns:
    """Answers by model and size, each asked of the catalogue once."""

    def __init__(self, catalogue: ThroughputCatalogue) -> None:
        self.catalogue = catalogue
        self._kept: dict[tuple[str, str, int, str], tuple[float, float] | None] = {}
        self._by_type: dict[tuple[str, str, int, tuple[str, ...]], Floats | None] = {}

    def kept(self, spec_a: JobSpec, spec_b: JobSpec, accelerator: str) -> tuple[float, float] | None:
        """The parts of their speeds that a and b keep together on a type; None when that is not known."""
        gpus = _gpus(spec_a)
        if not spec_a.model or not spec_b.model or gpus != _gpus(spec_b):
            return None
        model_a, model_b = _named(spec_a), _named(spec_b)
        key = (model_a, model_b, gpus, accelerator)
        if key not in self._kept:
            self._kept[key] = self._look_up(model_a, model_b, gpus, accelerator)
        return self._kept[key]

    def kept_beside(self, spec: JobSpec, other: JobSpec, accelerator: str) -> float:
        """The part of its speed that a job really keeps beside another: what is not known is `UNKNOWN_PAIR`."""
        kept = self.kept(spec, other, accelerator)
        return UNKNOWN_PAIR if kept is None else kept[0]

    def kept_by_type(self, spec_a: JobSpec, spec_b: JobSpec, types: tuple[str, ...]) -> Floats | None:
        """The same for every type, J x 2, with 0 where it is not known; None when it is known nowhere."""
        key = (_named(spec_a), _named(spec_b), _gpus(spec_a), types)
        if _gpus(spec_b) != key[2]:
            return None
        if key not in self._by_type:
            kept = [self.kept(spec_a, spec_b, name) for name in types]
            known = any(pair is not None for pair in kept)
            self._by_type[key] = np.array([pair or (0.0, 0.0) for pair in kept]) if known else None
        return self._by_type[key]

    def _look_up(self, model_a: str, model_b: str, gpus: int, accelerator: str) -> tuple[float, float] | None:
        together = self.catalogue.pair_steps_per_s(model_a, gpus, model_b, gpus, accelerator)
        alone_a = self.catalogue.steps_per_s(model_a, gpus, accelerator)
        alone_b = self.catalogue.steps_per_s(model_b, gpus, accelerator)
        if together is None or not alone_a or not alone_b:
            return None
        return together[0] / alone_a, together[1] / alone_b


def _gpus(spec: JobSpec) -> int:
    return spec.workers_ref * spec.worker.devices


def _named(spec: JobSpec) -> str:
    return with_batch_size(spec.model, spec.batch_size)

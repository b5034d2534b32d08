"""Which jobs may share their devices, and how fast they are then: by what pairs measured, else by what is expected.

A pair is tried where both fit the memory of the device, both have shown how fast they are alone there, and the parts of
their speeds that they keep may well come to more than one: at one, taking turns does as well. What it measures decides:
the pair is kept or parted, and jobs of these profiles are not tried again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from trainmaster.core.arrays import Floats
from trainmaster.estimate.gpu_memory import device_mib, needed_mib
from trainmaster.estimate.speeds.knowledge import Knowledge, profile_of
from trainmaster.estimate.speeds.observations import Profile
from trainmaster.estimate.speeds.pair_model import KeptPart, PairModel, Who, measured_pairs
from trainmaster.model.job import JobSpec

WORTH = 1.0
"""Sum of the parts that both keep, from which on sharing beats taking turns."""
TRY_FROM = 0.1
"""Probability of that from which on a pair is tried: a trial costs part of a round, a good pair pays as long as its
jobs run."""
CAUTION, TRIAL_WORTH = 0.5, 1.05
"""An untried pair is offered so many standard deviations below the middle, for who picks the pairs that look best picks
those that are most overrated; but so that it keeps this much in sum, or it would never be tried."""


NINE_OF_TEN = NormalDist().inv_cdf(0.9)
KEPT_BELIEFS = 100_000
MOVED = 0.01
"""A part that is kept is another one from this difference of its logarithm on."""


class Standing(StrEnum):
    """What is held of two jobs on the devices of one type. The first two are offered to policies."""

    KEPT = "kept"
    UNTRIED = "untried"
    PARTED = "parted"
    UNLIKELY = "unlikely"
    TOO_LARGE = "too-large"
    MEMORY_UNKNOWN = "memory-unknown"
    DEVICE_UNKNOWN = "device-unknown"
    NOT_SEEN_ALONE = "not-seen-alone"
    OTHER_SIZE = "other-size"


OFFERED = (Standing.KEPT, Standing.UNTRIED)


class PairBelief(NamedTuple):
    """The parts of their speeds that two jobs keep; `low` and `high`: of each, exceeded 9 and 1 time of 10."""

    standing: Standing
    kept: tuple[float, float] = (0.0, 0.0)
    low: tuple[float, float] = (0.0, 0.0)
    high: tuple[float, float] = (0.0, 0.0)
    at_fault: int = 0
    """Whether it is the first job or the second of which something is not known."""

    @property
    def offered(self) -> bool:
        return self.standing in OFFERED

    @property
    def measured(self) -> bool | None:
        """Whether the pair has proved to be worth it; None: it was not tried."""
        return {Standing.KEPT: True, Standing.PARTED: False}.get(self.standing)

    def text(self, first: str, second: str) -> str:
        """Why these two jobs share no device."""
        job = (first, second)[self.at_fault]
        total = f"{sum(self.kept):.2f}"
        return {
            Standing.PARTED: f"{first} and {second} were tried on one GPU and keep {total} of their speeds in sum",
            Standing.UNLIKELY: f"{first} and {second} on one GPU would keep about {total} of their speeds in sum",
            Standing.TOO_LARGE: f"{first} and {second} do not fit into the memory of one GPU together",
            Standing.MEMORY_UNKNOWN: f"the GPU memory that {job} takes is not known: give --gpu-memory",
            Standing.DEVICE_UNKNOWN: "the memory of this GPU type is not known",
            Standing.NOT_SEEN_ALONE: f"{job} has not yet shown how fast it is alone on this GPU type",
            Standing.OTHER_SIZE: f"{first} and {second} have gangs of other sizes",
        }.get(self.standing, "")


class SharedSpeeds:
    """`memory_mib`: GPU memory that jobs were seen to take, by profile."""

    def __init__(
        self,
        knowledge: Callable[[], Knowledge],
        memory_mib: Callable[[], Mapping[str, float]] = dict,
        caution: float = CAUTION,
    ) -> None:
        self._knowledge, self._memory_mib, self._caution = knowledge, memory_mib, caution
        self._model = PairModel([])
        self._seen_alone: set[tuple[str, str]] = set()
        self._changes = -1
        self._memory: dict[str, float] = {}
        self._proved: dict[Who, bool] = {}
        self._version = 0
        self._beliefs: dict[tuple[_Shape, _Shape, str], PairBelief] = {}
        self._figures: dict[tuple[Profile, Profile, str], tuple[Floats, Floats, bool]] = {}

    @property
    def version(self) -> int:
        """Grows when other pairs than before may be offered."""
        self._refresh()
        return self._version

    def pair_kept(self, spec_a: JobSpec, spec_b: JobSpec, types: Sequence[str], probability: float = 0.5) -> Floats:
        """The parts of their speeds that both keep on the same devices, J x 2, that each exceeds with this probability;
        0 where they are not to share."""
        far = NormalDist().inv_cdf(probability)
        return np.array([self._offered(spec_a, spec_b, name, far) for name in types])

    def _offered(self, a: JobSpec, b: JobSpec, gpu_type: str, far: float) -> tuple[float, float]:
        belief = self.belief(a, b, gpu_type)
        if belief.standing not in OFFERED:
            return 0.0, 0.0
        mean, sigma, _ = self._figures_of(profile_of(a), profile_of(b), gpu_type)
        if belief.standing == Standing.UNTRIED:
            kept = np.exp(mean - self._caution * sigma)
            mean = np.log(kept * max(1.0, TRIAL_WORTH / float(kept.sum())))
        one, two = np.minimum(np.exp(mean - far * sigma), 1.0).tolist()
        return one, two

    def belief(self, spec_a: JobSpec, spec_b: JobSpec, gpu_type: str) -> PairBelief:
        """What is held of two jobs on one type."""
        self._refresh()
        key = (_shape(spec_a), _shape(spec_b), gpu_type)
        found = self._beliefs.get(key)
        if found is None:
            if len(self._beliefs) > KEPT_BELIEFS:
                self._beliefs.clear()
            found = self._beliefs[key] = self._refused(spec_a, spec_b, gpu_type) or self._believed(
                profile_of(spec_a), profile_of(spec_b), gpu_type
            )
        return found

    def _believed(self, a: Profile, b: Profile, gpu_type: str) -> PairBelief:
        mean, sigma, measured = self._figures_of(a, b, gpu_type)
        kept, spread = np.exp(mean), NINE_OF_TEN * sigma
        total = float(kept.sum())
        if measured:
            standing = Standing.KEPT if total > WORTH else Standing.PARTED
        else:
            doubt = max(float((kept * sigma).sum()) / total, 1e-9)  # of its logarithm, as if both erred alike
            likely = NormalDist(math.log(total), doubt).cdf(math.log(WORTH)) <= 1.0 - TRY_FROM
            standing = Standing.UNTRIED if likely else Standing.UNLIKELY
        low, high = np.exp(mean - spread).tolist(), np.exp(mean + spread).tolist()
        return PairBelief(standing, tuple(kept.tolist()), tuple(low), tuple(high))

    def _refused(self, spec_a: JobSpec, spec_b: JobSpec, gpu_type: str) -> PairBelief | None:
        """Why two jobs are not even tried together, whatever their speeds."""
        if (spec_a.workers_ref, spec_a.worker.devices) != (spec_b.workers_ref, spec_b.worker.devices):
            return PairBelief(Standing.OTHER_SIZE)
        room, total = device_mib(gpu_type), 0.0
        if room is None:
            return PairBelief(Standing.DEVICE_UNKNOWN)
        for k, spec in enumerate((spec_a, spec_b)):
            needed = needed_mib(spec, self._memory.get(profile_of(spec).key))
            if needed is None:
                return PairBelief(Standing.MEMORY_UNKNOWN, at_fault=k)
            total += needed
        if total > room:
            return PairBelief(Standing.TOO_LARGE)
        for k, spec in enumerate((spec_a, spec_b)):
            if (profile_of(spec).key, gpu_type) not in self._seen_alone:
                return PairBelief(Standing.NOT_SEEN_ALONE, at_fault=k)
        return None

    def _figures_of(self, a: Profile, b: Profile, gpu_type: str) -> tuple[Floats, Floats, bool]:
        """Mean and deviation of the logarithms of what both keep, and whether both were measured."""
        found = self._figures.get((a, b, gpu_type))
        if found is None:
            both = [Who(a, b, gpu_type), Who(b, a, gpu_type)]
            seen = [self._model.known[who] for who in both if who in self._model.known]
            mean, sigma = self._model.kept(both)
            if len(seen) == len(both):  # what they showed themselves is not drawn to what others did
                mean = np.array([one.log_kept for one in seen])
                sigma = np.sqrt([one.variance for one in seen])
            found = self._figures[a, b, gpu_type] = (mean, sigma, len(seen) == len(both))
        return found

    def _refresh(self) -> None:
        """Take notice of what was learned since the last time."""
        known = self._knowledge()
        if known.changes == self._changes:
            return
        self._changes = known.changes
        seen, memory_mib = list(known), dict(self._memory_mib())
        alone = {(one.profile.key, one.place.type) for one in seen if not one.place.partner}
        pairs = measured_pairs(seen)
        if any(self._moved(one) for one in pairs) or len(pairs) != len(self._model.known):
            self._model, self._figures = PairModel(pairs), {}
            self._beliefs.clear()
        proved = {who: self._is_worth(who) for who in self._model.known}
        if (alone, memory_mib, proved) != (self._seen_alone, self._memory, self._proved):
            self._seen_alone, self._memory, self._proved = alone, memory_mib, proved
            self._beliefs.clear()
            self._version += 1

    def _moved(self, one: KeptPart) -> bool:
        before = self._model.known.get(one.who)
        return before is None or abs(one.log_kept - before.log_kept) > MOVED

    def _is_worth(self, who: Who) -> bool:
        return bool(np.exp(self._figures_of(*who)[0]).sum() > WORTH)


_Shape = tuple[Profile, int, int, int | None]


def _shape(spec: JobSpec) -> _Shape:
    """All of a job that a belief depends on."""
    return profile_of(spec), spec.workers_ref, spec.worker.devices, spec.gpu_memory_mib

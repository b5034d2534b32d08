"""How speed depends on the number of workers and parameter servers: as declared, as measured, and as believed."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from trainmaster.core.arrays import Floats

if TYPE_CHECKING:
    from trainmaster.model.job import JobSpec


@dataclass(frozen=True, slots=True)
class Scaling:
    """Time of one step with w workers and p servers, up to a common factor:

        t(w, p) = a/w + b + c*w/p + d*w + e*p + f/p + g*p/w      (terms in p only when p > 0)

    This covers data parallelism with a serial part (a, b) and both forms that Optimus fits
    (EuroSys'18, section 3.2): synchronous 1/(t0 M/w + t1 + t2 w/p + t3 w + t4 p) and asynchronous
    w/(t0 + t1 w/p + t2 w + t3 p). `points` replaces the formula by measured (workers, speed) pairs,
    linear in between, flat beyond the last.
    `workers_per_server` (0: any number) is how many workers the bandwidth of one server feeds: with more, the gang
    is as fast as those that are fed.
    """

    a: float = 1.0
    b: float = 0.0
    c: float = 0.0
    d: float = 0.0
    e: float = 0.0
    f: float = 0.0
    g: float = 0.0
    points: tuple[tuple[int, float], ...] = ()
    workers_per_server: float = 0.0

    def speed(self, workers: npt.ArrayLike, servers: npt.ArrayLike = 0) -> Floats:
        """Speed in arbitrary units (0 for no workers); compare sizes by ratios of it."""
        w, p = np.asarray(workers, dtype=np.float64), np.asarray(servers, dtype=np.float64)
        if self.workers_per_server:
            w = np.where(p > 0, np.minimum(w, p * self.workers_per_server), w)
        if self.points:
            known = ((0, 0.0), *self.points)
            return np.interp(w, [k for k, _ in known], [v for _, v in known])
        safe_w = np.maximum(w, 1e-9)
        safe_p = np.maximum(p, 1e-9)
        with_servers = self.c * w / safe_p + self.e * p + self.f / safe_p + self.g * p / safe_w
        time = self.a / safe_w + self.b + self.d * w + np.where(p > 0, with_servers, 0.0)
        return np.where(w > 0, 1.0 / time, 0.0)


LINEAR = Scaling()


def amdahl(serial_fraction: float) -> Scaling:
    """Speed-up limited by a serial part: t(w) = (1 - s)/w + s."""
    return Scaling(a=1.0 - serial_fraction, b=serial_fraction)


class News(IntEnum):
    """Whose speeds are believed to be others after a measurement."""

    NONE = 0
    OF_THE_JOB = 1
    OF_JOBS_ALIKE = 2


class Measurement(NamedTuple):
    """Speed of a job at the size that it had; `beside`: the job with which it shared its devices. `seconds`: for how
    long it had been working there."""

    spec: JobSpec
    accelerator: str
    workers: int
    servers: int
    spread: bool
    steps_per_s: float
    generation: int = 0
    beside: JobSpec | None = None
    seconds: float = 0.0


@dataclass(frozen=True, eq=False)
class SpeedTable:
    """Gaussian over the logarithm of steps per second. `mean` and `sigma` by level (one node, several), accelerator
    type, workers and servers, at the sizes listed; in between linear in the logarithms of the sizes. `node_workers`:
    by type, most workers on one node. `scaling`: the mean on one node, or on several where one is too small, up to a
    factor; policies that read curves read this. Not `known`: nothing says how fast the job is, only how its speed
    changes."""

    workers: tuple[int, ...]
    servers: tuple[int, ...]
    node_workers: tuple[int, ...]
    mean: Floats
    sigma: Floats
    scaling: Scaling = LINEAR
    known: bool = True
    group: str = ""
    """The same for jobs that are as fast as each other."""
    crossed: bool = False
    """Whether their speed on more than one node was ever measured."""

    @cached_property
    def version(self) -> int:
        """Tells two beliefs apart; never 0."""
        return zlib.crc32(self.sigma.tobytes(), zlib.crc32(self.mean.tobytes())) + 1

    def speed(
        self, accelerator: int, workers: int, servers: int = 0, spread: bool = False, probability: float = 0.5
    ) -> float:
        """Steps per second that are exceeded with this probability."""
        mean, sigma = self.log_speed(accelerator, workers, servers, spread)
        far = NormalDist().inv_cdf(probability) if probability != 0.5 else 0.0
        return float(np.exp(mean - far * sigma))

    def log_speed(self, accelerator: int, workers: int, servers: int = 0, spread: bool = False) -> tuple[float, float]:
        """Mean and standard deviation of the logarithm."""
        kind = max(accelerator, 0)
        level = int(spread or workers > self.node_workers[kind])
        w, into_w = _between(self._log_workers, np.log2(max(workers, 1)))
        p, into_p = _between(self._log_servers, np.log2(1 + servers))
        weights = np.outer([1.0 - into_w, into_w], [1.0 - into_p, into_p])
        here = (level, kind, slice(w, w + 2), slice(p, p + 2))
        mean, sigma = self.mean[here], self.sigma[here]
        weights = weights[: mean.shape[0], : mean.shape[1]]
        return float((weights * mean).sum()), float((weights * sigma).sum())

    @cached_property
    def _log_workers(self) -> Floats:
        return np.log2(self.workers)

    @cached_property
    def _log_servers(self) -> Floats:
        return np.log2(1 + np.array(self.servers))


def _between(marks: Floats, at: float) -> tuple[int, float]:
    """The mark below, and how far the value is on its way to the next one."""
    k = int(np.searchsorted(marks, at, side="right")) - 1
    if k < 0 or k + 1 >= len(marks):
        return max(min(k, len(marks) - 1), 0), 0.0
    return k, float((at - marks[k]) / (marks[k + 1] - marks[k]))

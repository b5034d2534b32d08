"""How speed depends on the number of workers and parameter servers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainmaster.core.arrays import Floats


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

"""The eight kinds of training job of the DL2 evaluation, and how fast each runs with w workers and p servers.

`MEASURED` is fitted to what the authors measured and published; `ANALYTIC` is built from the constants of their paper.
`DATA_PARALLEL` are kinds of our own that take no servers.

Analytic. Compute time L of a step, model size S and the bandwidth B seen between nodes are those of the paper. Workers
exchange the model with p servers over links that they share, in the form that Optimus fits (EuroSys'18, 3.2):

    step(w, p) = L + K (m + (1 - m) w/p) + s (L + K) (w + p),     K = 2 S / B
    speed      = w / step(w, p)   steps per second

m is the part of the exchange that the worker's own link bounds, the rest is bound by the servers' links; s is
what every further worker or server costs the others (stragglers, connections). So returns diminish; kinds with
K >> L want as many servers as workers or more, the others few.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainmaster.model.scaling import Scaling

REFERENCE_SIZE = 20
"""Workers, and servers, at which an analytic job's length is stated: about a fifth of the small cluster, which keeps
some twenty jobs in it at once, the paper's window."""
OWN_LINK = 0.3
CROWDING = 0.002


@dataclass(frozen=True)
class JobKind:
    """One kind of model: seconds of compute per step, MB of parameters, MB/s between nodes."""

    name: str
    compute_s: float
    model_mb: float
    link_mb_per_s: float

    @property
    def exchange_s(self) -> float:
        """K: seconds to send gradients and fetch parameters over one undisturbed link."""
        return 2.0 * self.model_mb / self.link_mb_per_s

    def scaling(self) -> Scaling:
        """Seconds per step of the whole job, step(w, p) / w, in the terms of `Scaling`."""
        crowding_s = CROWDING * (self.compute_s + self.exchange_s)
        return Scaling(
            a=self.compute_s + OWN_LINK * self.exchange_s,
            b=crowding_s,
            f=(1.0 - OWN_LINK) * self.exchange_s,
            g=crowding_s,
        )

    def length_size(self, workers_max: int, servers_max: int) -> tuple[int, int]:
        """Workers and servers at which a job's length is stated."""
        del workers_max, servers_max
        return REFERENCE_SIZE, REFERENCE_SIZE


@dataclass(frozen=True)
class ProfiledKind:
    """A kind known by a fitted curve, in seconds per step. A length is the time alone at the best size."""

    name: str
    curve: Scaling

    def scaling(self) -> Scaling:
        return self.curve

    def length_size(self, workers_max: int, servers_max: int) -> tuple[int, int]:
        workers, servers = np.meshgrid(np.arange(1, workers_max + 1), np.arange(1, servers_max + 1), indexing="ij")
        best = int(np.argmax(self.curve.speed(workers, servers)))
        return int(workers.flat[best]), int(servers.flat[best])


@dataclass(frozen=True)
class ParallelKind:
    """A kind without servers: every step is split among the workers but for a serial part, and each further worker
    costs a little more. A length is the time alone with `LENGTH_WORKERS`."""

    name: str
    serial: float = 0.0
    crowding: float = 0.0

    def scaling(self) -> Scaling:
        return Scaling(a=1.0 - self.serial, b=self.serial, d=self.crowding)

    def length_size(self, workers_max: int, servers_max: int) -> tuple[int, int]:
        del servers_max
        return min(LENGTH_WORKERS, workers_max), 0


LENGTH_WORKERS = 4

Kind = JobKind | ProfiledKind | ParallelKind


ANALYTIC: tuple[Kind, ...] = (
    JobKind("resnet-50", 0.449, 102.2, 91.9),
    JobKind("vgg-16", 0.535, 553.4, 233.0),
    JobKind("resnext-110", 0.226, 6.92, 59.5),
    JobKind("inception-bn", 0.815, 42.1, 145.9),
    JobKind("seq2seq", 0.075, 36.5, 120.1),
    JobKind("cnn-text", 0.585, 24.0, 60.8),
    JobKind("dssm", 0.567, 6.0, 92.1),
    JobKind("wlm", 0.154, 19.2, 10.4),
)

# Non-negative least squares on relative errors to the throughputs that the authors measured on their testbed with
# synchronous training and published with their code (`config_speed.txt` of github.com/pengyanghua/DL2): 54 to 75 of
# the 1..23 servers x 1..23 workers of each kind, zeros (failed runs) left out. Median error 2 to 6 %, 90 % of the
# points within 5 to 15 %. The whole batch is fixed, so a worker more means smaller parts, not more samples per step:
# beyond a few workers every kind becomes slower.
MEASURED: tuple[Kind, ...] = (
    ProfiledKind("resnet-50", Scaling(a=0.1146, b=0.3093, c=0.2910, d=0.02454, f=1.063)),
    ProfiledKind("vgg-16", Scaling(a=0.3729, b=0.5786, c=0.4220, d=0.1364, f=2.109)),
    ProfiledKind("resnext-110", Scaling(a=0.04318, b=0.1713, c=0.1086, d=0.01994, g=0.002074)),
    ProfiledKind("inception-bn", Scaling(0.3320, 0.1731, 0.1537, 0.02050, 0.0008373, 0.06196, 0.005095)),
    ProfiledKind("seq2seq", Scaling(0.06873, 0.02253, 0.007036, 0.01627, 0.0008899, 0.1297)),
    ProfiledKind("cnn-text", Scaling(0.3603, 0.3093, 0.01642, 0.01883, 0.001101, 0.1154, 0.001190)),
    ProfiledKind("dssm", Scaling(a=0.4010, b=0.1146, d=0.007626, e=0.0002246)),
    ProfiledKind("wlm", Scaling(0.02877, 0.09246, 0.05971, 0.04633, 0.002970, 0.7594, 0.007072)),
)

LINEAR: tuple[Kind, ...] = (ParallelKind("linear"),)
DATA_PARALLEL: tuple[Kind, ...] = (
    *LINEAR,
    ParallelKind("serial-2%", serial=0.02),
    ParallelKind("serial-5%", serial=0.05),
    ParallelKind("serial-15%", serial=0.15),
    ParallelKind("saturating-8", serial=0.03, crowding=0.015),
    ParallelKind("saturating-16", serial=0.01, crowding=0.004),
)

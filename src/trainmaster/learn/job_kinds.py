"""The eight kinds of training job of the DL2 evaluation, and how fast each runs with w workers and p servers.

Compute time L of a step, model size S and the bandwidth B seen between nodes are those of the paper. Workers
exchange the model with p servers over links that they share, in the form that Optimus fits (EuroSys'18, 3.2):

    step(w, p) = L + K (m + (1 - m) w/p) + s (L + K) (w + p),     K = 2 S / B
    speed      = w / step(w, p)   steps per second

m is the part of the exchange that the worker's own link bounds, the rest is bound by the servers' links; s is
what every further worker or server costs the others (stragglers, connections). So returns diminish; kinds with
K >> L want as many servers as workers or more, the others few.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainmaster.model.scaling import Scaling

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


KINDS: tuple[JobKind, ...] = (
    JobKind("resnet-50", 0.449, 102.2, 91.9),
    JobKind("vgg-16", 0.535, 553.4, 233.0),
    JobKind("resnext-110", 0.226, 6.92, 59.5),
    JobKind("inception-bn", 0.815, 42.1, 145.9),
    JobKind("seq2seq", 0.075, 36.5, 120.1),
    JobKind("cnn-text", 0.585, 24.0, 60.8),
    JobKind("dssm", 0.567, 6.0, 92.1),
    JobKind("wlm", 0.154, 19.2, 10.4),
)

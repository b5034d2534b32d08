"""How a simulated job's training loss falls.

    l(k) = 1 / (b0 k + b1) + b2,   l(0) = 1

b2 is drawn for each job from seed and id. b0 is such that the job's declared work is where it has converged: there an
epoch lowers the loss by `CONVERGED` of the first one. Policies see only what is reported (`Progressed.loss`).
"""

from __future__ import annotations

import math

from trainmaster.core.arithmetic import mixed, normal, uniform
from trainmaster.estimate.loss_fit import LossCurve
from trainmaster.model.job import JobSpec
from trainmaster.model.stable_hash import stable_hash

CONVERGED = 0.01
EPOCHS = 15.0
"""Epochs of a job that does not say how many it takes."""
FLOOR = (0.05, 0.3)
"""Range of b2."""


def true_curve(spec: JobSpec, seed: int) -> LossCurve | None:
    """None: of a job without an end nothing is known."""
    if not spec.work_total:
        return None
    floor = FLOOR[0] + (FLOOR[1] - FLOOR[0]) * uniform(mixed(stable_hash(spec.id), seed), 31)
    b1 = 1.0 / (1.0 - floor)
    steps = spec.work_total
    epoch = steps / (spec.epochs_total or EPOCHS)
    # 1/u - 1/(u + d) = CONVERGED with u = b0 steps + b1 and d = b0 epoch, as in `LossCurve.converged_step`:
    # CONVERGED u (u + d) = d is quadratic in b0. Without a root (beyond some 20 epochs) no curve falls so much at the
    # end; it is then the one that falls most there, and has converged by that measure before.
    a = CONVERGED * steps * (steps + epoch)
    b = CONVERGED * b1 * (2.0 * steps + epoch) - epoch
    c = CONVERGED * b1 * b1
    inside = b * b - 4.0 * a * c
    b0 = (-b + math.sqrt(inside)) / (2.0 * a) if inside >= 0.0 and b < 0.0 else math.sqrt(c / a)
    return LossCurve(b0, b1, floor)


def measured_loss(spec: JobSpec, work: float, seed: int, noise: float) -> float | None:
    """The loss after this much work, with measuring noise that depends on seed, job and work alone."""
    curve = true_curve(spec, seed)
    if curve is None:
        return None
    above = float(curve.at(work)) - curve.b2
    if noise:
        key = mixed(stable_hash(f"{spec.id} {work!r}"), seed)
        above *= max(1.0 + noise * normal(key, 0), 0.05)
    return curve.b2 + above

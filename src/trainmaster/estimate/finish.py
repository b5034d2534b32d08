"""When the jobs of a snapshot finish: p10, p50 and p90 for what runs and for what waits.

One job's predictor is `completion.CompletionModel`; this puts it on what a snapshot knows. The prior is the
declared (or catalogued) speed and scaling, moved and narrowed by similar jobs when a pool is given; a running job's
measured speed updates it. What waits is predicted at the size and type it would start with, after a delay that the
caller knows best (a reservation's planned start, a forecast of the queue).
"""

from __future__ import annotations

import numpy as np

from trainmaster.estimate.completion import CompletionModel, Eta, RatioPool, prior_of_scaling
from trainmaster.model.job import PhaseCode
from trainmaster.model.snapshot import Snapshot

_SAME = 1e-9
"""A rate this close to the declared one is the declaration, not a measurement."""


def predict_finish(view: Snapshot, row: int, starts_in_ms: int = 0, pool: RatioPool | None = None) -> Eta | None:
    """When one job finishes if it keeps (or, waiting, gets) its size; None when its work or speed is unknown.

    `starts_in_ms` counts for jobs that hold nothing yet.
    """
    jobs = view.jobs
    left = float(jobs.work_total[row] - jobs.work_done[row])
    allowed = np.flatnonzero(jobs.allowed[row])
    if np.isnan(left) or allowed.size == 0:
        return None
    holds = bool(jobs.holding[row]) and int(jobs.held_type[row]) >= 0
    if holds:
        gpu_type, size = int(jobs.held_type[row]), int(jobs.workers[row])
        spread = int(jobs.nodes_held[row]) > 1
        delay_ms = max(int(jobs.productive_ms[row]) - view.now_ms, 0)
    else:
        gpu_type = int(allowed[np.argmax(jobs.throughput[row, allowed])])
        size, spread, delay_ms = int(jobs.workers_ask[row]), False, starts_in_ms
    declared = float((jobs.throughput_spread if spread else jobs.throughput)[row, gpu_type])
    if not declared > 0.0:
        return None
    reference = int(jobs.workers_ref[row])
    fit = prior_of_scaling(declared, reference, jobs.scaling(row), servers=int(jobs.servers_ref[row]))
    model = CompletionModel(fit if pool is None else pool.prior(fit, reference))
    rate = float(jobs.rate[row])
    if int(jobs.phase[row]) == PhaseCode.RUNNING and rate > 0.0:
        believed = jobs.rate_at(row, gpu_type, size, int(jobs.servers[row]), spread)
        if abs(rate - believed) > _SAME * rate:
            model = model.measured(size, rate)
    return model.eta(view.now_ms, left, size, delay_ms=delay_ms)


def predict_all(view: Snapshot, pool: RatioPool | None = None) -> dict[str, Eta]:
    """The finish of every job of which it can be said, by id, each as if it started now when it waits."""
    found = ((str(view.jobs.id(row)), predict_finish(view, row, pool=pool)) for row in range(len(view.jobs)))
    return {name: eta for name, eta in found if eta is not None}

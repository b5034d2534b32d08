"""Who gets a smallest size when not every job that waits can have one.

What counts is the mean completion time, so the smallest area comes first: the time left at the smallest size, times the
share of the cluster that it takes. The longer a job has waited the less its area counts, so that every job is the first
in the end. Small jobs could still take every place that a large gang waits for: so nobody else begins, or grows, where
a job could run that has waited `PATIENCE` times as long as it will run, and a day at least.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainmaster.core.arrays import Bools, Floats, Ints
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import MS_PER_S
from trainmaster.policies.shared.optimus_estimates import Estimates
from trainmaster.policies.shared.pools import Demands
from trainmaster.policies.shared.speed_curves import SpeedCurves

DAY_S = 86_400.0
PATIENCE = 10.0
UNKNOWN_S = 1200.0


class Turns(NamedTuple):
    """Waiting rows in the order in which they get their smallest size; the row for which places are kept, or -1."""

    rows: Ints
    kept_for: int


def discounted_area(time_s: Floats, share: Floats | float, waited_s: Floats) -> Floats:
    """The smaller, the sooner. An area counts half when its job has waited as long as it will run."""
    return time_s * share * time_s / (time_s + waited_s + 1e-9)


def take_turns(
    view: Snapshot,
    waiting: Ints,
    beliefs: Estimates,
    growable: Bools,
    need: Demands,
    total: Floats,
    start_servers: Ints,
) -> Turns:
    jobs = view.jobs
    waited_s = np.maximum(view.now_ms - jobs.waiting_since_ms[waiting], 0) / MS_PER_S
    time_s = least_time_s(view, waiting, beliefs, growable, start_servers)
    share = _share(waiting, jobs.workers_min, start_servers, need, total)
    order = np.argsort(discounted_area(time_s, share, waited_s), kind="stable")
    late = waited_s / np.maximum(PATIENCE * time_s, DAY_S)
    latest = int(np.argmax(late))
    if late[latest] <= 1.0:
        return Turns(waiting[order], -1)
    return Turns(waiting[np.concatenate([[latest], order[order != latest]])], int(waiting[latest]))


def least_time_s(view: Snapshot, rows: Ints, beliefs: Estimates, growable: Bools, start_servers: Ints) -> Floats:
    """Time left at the smallest size on the fastest type. Work of unknown amount: as long again as it has run so far,
    and `UNKNOWN_S` at least."""
    jobs = view.jobs
    time_s = np.where(
        np.isfinite(jobs.remaining_s[rows]), jobs.remaining_s[rows], np.maximum(jobs.run_s[rows], UNKNOWN_S)
    )
    curves = SpeedCurves(beliefs.coefficients)
    speed = np.where(jobs.allowed, jobs.throughput, 0.0)
    for i in np.flatnonzero(growable[rows] & np.isfinite(beliefs.remaining[rows])).tolist():
        row = int(rows[i])
        gpu_type = int(np.argmax(speed[row]))
        least = max(int(jobs.workers_min[row]), 1)
        if beliefs.table[row] >= 0:
            by_workers = beliefs.tables[beliefs.table[row]]
            step = 1.0 / max(float(by_workers[min(least, len(by_workers) - 1)]), 1e-12)
        else:
            step = curves.step_time(row, least, int(start_servers[row]))
        time_s[i] = beliefs.remaining[row] * step / max(float(beliefs.scale[row, gpu_type]), 1e-12)
    return time_s


def _share(rows: Ints, workers: Ints, servers: Ints, need: Demands, total: Floats) -> Floats:
    """The share of the resource of which a smallest size takes most."""
    w, p = workers[rows], servers[rows]
    return np.maximum.reduce(
        [
            w * need.gpu[rows] / total[0],
            (w * need.cpu[rows] + p * need.server_cpu[rows]) / total[1],
            (w * need.mem[rows] + p * need.server_mem[rows]) / total[2],
        ]
    )

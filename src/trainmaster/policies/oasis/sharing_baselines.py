"""Baselines that re-divide the cluster among all jobs present: `drf` and `dorm`.

Both serve every job (no admission control); workers of a job may change from slot to slot. A job counts as
admitted when it completes before the horizon; what one that does not complete has used is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from trainmaster.model.utility import FloatArray
from trainmaster.policies.oasis.baselines import place
from trainmaster.policies.oasis.dorm_program import Share, dorm_counts
from trainmaster.policies.oasis.fair_filling import FairFilling
from trainmaster.policies.oasis.formulation import (
    AdmissionJob,
    Cluster,
    Instance,
    Schedule,
)

Placement = tuple[np.ndarray, np.ndarray]


@dataclass
class Run:
    """A job in the system: what is left of its work, where it runs, and where it has run."""

    job: AdmissionJob
    left: int
    placement: Placement | None = None
    worker_rows: list[tuple[int, int, int]] = field(default_factory=list)
    ps_rows: list[tuple[int, int, int]] = field(default_factory=list)

    def serve(self, slot: int) -> None:
        """Use `placement` for one slot."""
        if self.placement is None:
            return
        on_workers, on_ps = self.placement
        self.worker_rows += [(slot, int(s), int(on_workers[s])) for s in np.flatnonzero(on_workers)]
        self.ps_rows += [(slot, int(s), int(on_ps[s])) for s in np.flatnonzero(on_ps)]
        self.left -= int(on_workers.sum())

    @property
    def workers_now(self) -> int:
        return 0 if self.placement is None else int(self.placement[0].sum())

    def held(self) -> FloatArray:
        assert self.placement is not None
        on_workers, on_ps = self.placement
        return np.outer(on_workers, self.job.worker_demand) + np.outer(on_ps, self.job.server_demand)


def fill_fairly(runs: list[Run], most: list[int], cluster: Cluster) -> tuple[list[Placement], FloatArray]:
    """Progressive filling for `runs`, each with at most `most` workers; since b <= B one PS per step
    suffices.
    """
    filling = FairFilling(cluster.capacity, cluster.hosts_workers, cluster.hosts_ps)
    filling.run(
        np.array([run.job.worker_demand for run in runs]).reshape(len(runs), -1),
        np.array([run.job.server_demand for run in runs]).reshape(len(runs), -1),
        np.array([run.job.worker_mb_per_slot / run.job.server_mb_per_slot for run in runs]),
        np.array(most, dtype=np.int64),
    )
    on_workers, on_ps = np.asarray(filling.on_workers), np.asarray(filling.on_ps)
    return [(on_workers[i], on_ps[i]) for i in range(len(runs))], np.asarray(filling.share)


def run_drf(instance: Instance, workers: dict[str, int]) -> tuple[dict[str, Schedule], dict[str, int]]:
    """DRF in every slot; a job asks for its fixed number of workers and may get fewer."""
    system = _System(instance)
    for slot in range(instance.horizon):
        system.arrive(slot)
        if system.present:
            caps = [min(workers[run.job.id], run.left) for run in system.present]
            placements, _ = fill_fairly(system.present, caps, instance.cluster)
            for run, placement in zip(system.present, placements, strict=True):
                run.placement = placement if placement[0].any() else None
        system.serve(slot)
    return system.results()


class _System:
    """Jobs present, in arrival order. Those that can no longer complete, even with N workers, leave."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.present: list[Run] = []
        self.done: list[Run] = []
        self.lost: list[Run] = []
        self.changed = False
        self._arrivals = instance.arrivals()

    def arrive(self, slot: int) -> None:
        while self._arrivals and self._arrivals[0].arrival <= slot:
            job = self._arrivals.pop(0)
            self.present.append(Run(job, job.worker_slots))
            self.changed = True
        for run in list(self.present):
            if run.left > (self.instance.horizon - slot) * run.job.chunks:
                self.present.remove(run)
                self.lost.append(run)
                self.changed = True

    def serve(self, slot: int) -> None:
        for run in list(self.present):
            run.serve(slot)
            if run.left <= 0:
                self.present.remove(run)
                self.done.append(run)
                self.changed = True

    def results(self) -> tuple[dict[str, Schedule], dict[str, int]]:
        schedules = {run.job.id: Schedule(tuple(run.worker_rows), tuple(run.ps_rows)) for run in self.done}
        return schedules, {run.job.id: run.left for run in [*self.lost, *self.present]}


def run_dorm(instance: Instance, theta1: float, theta2: float) -> tuple[dict[str, Schedule], dict[str, int]]:
    """Dorm (Sun et al., 2017): on every arrival and completion a MILP maximises utilisation over worker
    counts, within bounds on fairness loss and on the number of running jobs adjusted; jobs not adjusted
    stay in place."""
    system = _System(instance)
    for slot in range(instance.horizon):
        system.arrive(slot)
        if system.changed and system.present:
            _redivide(system.present, instance.cluster, theta1, theta2)
            system.changed = False
        system.serve(slot)
    return system.results()


def _redivide(runs: list[Run], cluster: Cluster, theta1: float, theta2: float) -> None:
    """New counts and placements. Jobs wait in arrival order when not even one worker each fits."""
    most = [min(run.job.chunks, run.left) for run in runs]
    minimum, _ = fill_fairly(runs, [1] * len(runs), cluster)
    taken = [run for run, placement in zip(runs, minimum, strict=True) if placement[0].any()]
    fair, fair_share = fill_fairly(taken, [most[runs.index(run)] for run in taken], cluster)
    shares = [
        Share(run.job, run.workers_now, 1, most[runs.index(run)], float(fair))
        for run, fair in zip(taken, fair_share, strict=True)
    ]
    counts = dorm_counts(shares, cluster, theta1, theta2)
    if counts is None:
        counts = [int(placement[0].sum()) for placement in fair]
    for run in runs:
        if run not in taken:
            run.placement = None
    used = np.zeros_like(cluster.capacity)
    moving: list[tuple[Run, int]] = []
    for run, count in zip(taken, counts, strict=True):
        if run.placement is not None and run.workers_now == count:
            used += run.held()
        else:
            moving.append((run, count))
    for run, count in moving:
        # Pooled capacity may promise more than single servers can host: take what fits, by bisection.
        low, high = 0, count
        run.placement = None
        while low < high:
            middle = (low + high + 1) // 2
            placement = place(run.job, middle, cluster, used)
            if placement is None:
                high = middle - 1
            else:
                low, run.placement = middle, placement
        if run.placement is not None:
            used += run.held()

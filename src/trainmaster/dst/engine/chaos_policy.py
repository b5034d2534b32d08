"""A policy that is hard on the engine: it starts, preempts, moves and resizes jobs at random, and lets
them share devices.

Not registered: it is of no use to anybody but the fault simulation, which needs every command exercised.
It draws from the snapshot's own generator, and counts in its memo what it has seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainmaster.model.job import PhaseCode
from trainmaster.model.plan import Plan
from trainmaster.model.plan_builder import PlanBuilder
from trainmaster.model.policy_state import PolicyState
from trainmaster.model.reasons import Why
from trainmaster.model.snapshot import Snapshot


@dataclass(frozen=True)
class ChaosPolicy:
    """Every job runs in the end, for what is preempted keeps its checkpoint."""

    quantum_ms: int = 20_000
    shares: bool = True
    """Whether jobs share devices."""

    def decide(self, view: Snapshot) -> Plan:
        rng = view.rng()
        builder = view.draft()
        jobs = view.jobs
        rows = view.movable_rows()
        rows = rows[rng.permutation(len(rows))]
        for row in rows.tolist():
            if jobs.phase[row] != PhaseCode.PENDING:
                self._disturb(view, builder, row, rng)
        hosts = [row for row in rows.tolist() if jobs.phase[row] == PhaseCode.RUNNING]
        for row in rows.tolist():
            if jobs.phase[row] == PhaseCode.PENDING:
                if (
                    self.shares
                    and hosts
                    and rng.random() < 0.3
                    and builder.place_beside(row, hosts[int(rng.integers(len(hosts)))])
                ):
                    continue
                builder.place(row, workers=_size(view, row, rng))
        seen = view.memo.columns.get("seen", np.zeros(len(jobs)))
        memo = PolicyState({"decisions": view.memo.values.get("decisions", 0) + 1}, {"seen": seen + 1.0})
        wake_ms = view.now_ms + int(rng.integers(1, self.quantum_ms))
        return builder.plan(memo=memo, wake_at_ms=wake_ms, default=Why.OUTRANKED)

    def _disturb(self, view: Snapshot, builder: PlanBuilder, row: int, rng: np.random.Generator) -> None:
        dice = rng.random()
        if dice < 0.06:
            builder.release(row)
        elif dice < 0.12:
            builder.release(row)
            builder.place(row, workers=_size(view, row, rng))
        elif dice < 0.35 and view.jobs.phase[row] == PhaseCode.RUNNING:
            builder.resize(row, _size(view, row, rng))
        elif self.shares and dice < 0.5 and view.jobs.phase[row] == PhaseCode.RUNNING:
            whole = int(view.jobs.share_milli[row])
            if not view.jobs.workers_min[row] <= view.jobs.workers[row] <= view.jobs.workers_max[row]:
                return  # its user has changed the range: its size is to change with the share
            builder.reshare(row, whole if view.jobs.held_gpu_milli[row] < _asked_milli(view, row) else whole // 2)


def _size(view: Snapshot, row: int, rng: np.random.Generator) -> int:
    return int(rng.integers(view.jobs.workers_min[row], view.jobs.workers_max[row] + 1))


def _asked_milli(view: Snapshot, row: int) -> int:
    return int(view.jobs.workers[row] * view.jobs.worker_gpu_milli[row])

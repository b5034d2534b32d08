"""Wrappers that watch a policy: which jobs it admitted, which finishes were foreseen, one that hands over."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from trainmaster.engine.records import Ended
from trainmaster.estimate.completion import RatioPool, quantile_z
from trainmaster.estimate.speeds.model import BETWEEN_RUNS
from trainmaster.model.job import JobId, PhaseCode
from trainmaster.model.plan import Plan
from trainmaster.model.policy import Policy, PolicyTraits, traits_of
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import MS_PER_S


class Promises:
    """Notes every job that the policy admitted: for deadline policies, whose deadline it promised."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.traits = PolicyTraits(own_rounds=traits_of(policy).own_rounds)
        self.admitted: set[JobId] = set()

    def decide(self, view: Snapshot) -> Plan:
        plan = self.policy.decide(view)
        self.admitted.update(view.jobs.id(row) for row in plan.admissions)
        return plan


FIFTHS = 5


class Foreseen:
    """Notes, decision by decision, when the jobs that run are predicted to finish."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.traits = PolicyTraits(own_rounds=traits_of(policy).own_rounds)
        self.noted: list[tuple[JobId, int, list[int]]] = []

    def decide(self, view: Snapshot) -> Plan:
        pool = RatioPool(*view.memo.values["ratios"]) if "ratios" in view.memo.values else None
        for row in np.flatnonzero(view.jobs.phase == PhaseCode.RUNNING).tolist():
            self.noted.append((view.jobs.id(row), view.now_ms, _finish_ms(view, row, pool)))
        return self.policy.decide(view)

    def against(self, ends: Mapping[JobId, Ended]) -> list[list[list[float]]]:
        """By fifth of the run (first start to end), of the first prediction in each: in the 10-90 % band, before p90,
        and the error of the median as a part of the run."""
        found: list[list[list[float]]] = [[] for _ in range(FIFTHS)]
        seen: set[tuple[JobId, int]] = set()
        for job_id, now_ms, finish_ms in self.noted:
            end = ends.get(job_id)
            if end is None or end.ended_ms <= end.first_start_ms:
                continue
            run_ms = end.ended_ms - end.first_start_ms
            fifth = min(int(FIFTHS * (now_ms - end.first_start_ms) / run_ms), FIFTHS - 1)
            if (job_id, fifth) not in seen:
                seen.add((job_id, fifth))
                p10_ms, p50_ms, p90_ms = finish_ms
                inside = p10_ms <= end.ended_ms <= p90_ms
                error = abs(p50_ms - end.ended_ms) / run_ms
                found[fifth].append([float(inside), float(end.ended_ms <= p90_ms), error])
        return found


def _finish_ms(view: Snapshot, row: int, pool: RatioPool | None) -> list[int]:
    """p10, p50 and p90 at the present speed, which is measured or presumed."""
    jobs = view.jobs
    rate = float(jobs.rate[row])
    believed = jobs.rate_at(
        row, int(jobs.held_type[row]), int(jobs.workers[row]), int(jobs.servers[row]), int(jobs.nodes_held[row]) > 1
    )
    measured = abs(rate - believed) > 1e-9 * rate
    sigma = BETWEEN_RUNS if measured or pool is None else max(pool.sigma, BETWEEN_RUNS)
    begin_ms = max(int(jobs.productive_ms[row]), view.now_ms)
    left_ms = MS_PER_S * float(jobs.work_total[row] - jobs.work_done[row]) / rate
    return [begin_ms + math.ceil(left_ms * math.exp(quantile_z(p) * sigma)) for p in (0.1, 0.5, 0.9)]


class UntilDue:
    """A policy until the last deadline, then another: for those under which jobs may wait for ever."""

    def __init__(self, policy: Policy, afterwards: Policy, last_due_ms: int) -> None:
        self.policy, self.afterwards, self.last_due_ms = policy, afterwards, last_due_ms

    def decide(self, view: Snapshot) -> Plan:
        return (self.policy if view.now_ms <= self.last_due_ms else self.afterwards).decide(view)

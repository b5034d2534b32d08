"""Wrappers that watch a policy: which jobs it admitted, which finishes were foreseen, one that hands over."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from trainmaster.engine.records import Ended
from trainmaster.estimate.completion import Eta, RatioPool
from trainmaster.estimate.finish import predict_finish
from trainmaster.model.job import JobId, PhaseCode
from trainmaster.model.plan import Plan
from trainmaster.model.policy import Policy, PolicyTraits, traits_of
from trainmaster.model.snapshot import Snapshot


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
        self.noted: list[tuple[JobId, int, Eta]] = []

    def decide(self, view: Snapshot) -> Plan:
        pool = RatioPool(*view.memo.values["ratios"]) if "ratios" in view.memo.values else None
        for row in np.flatnonzero(view.jobs.phase == PhaseCode.RUNNING).tolist():
            eta = predict_finish(view, row, pool=pool)
            if eta is not None:
                self.noted.append((view.jobs.id(row), view.now_ms, eta))
        return self.policy.decide(view)

    def against(self, ends: Mapping[JobId, Ended]) -> list[list[list[float]]]:
        """By fifth of the run (first start to end), of the first prediction in each: in the 10-90 % band, before p90,
        and the error of the median as a part of the run."""
        found: list[list[list[float]]] = [[] for _ in range(FIFTHS)]
        seen: set[tuple[JobId, int]] = set()
        for job_id, now_ms, eta in self.noted:
            end = ends.get(job_id)
            if end is None or end.ended_ms <= end.first_start_ms:
                continue
            run_ms = end.ended_ms - end.first_start_ms
            fifth = min(int(FIFTHS * (now_ms - end.first_start_ms) / run_ms), FIFTHS - 1)
            if (job_id, fifth) not in seen:
                seen.add((job_id, fifth))
                inside = eta.p10_ms <= end.ended_ms <= eta.p90_ms
                error = abs(eta.p50_ms - end.ended_ms) / run_ms
                found[fifth].append([float(inside), float(end.ended_ms <= eta.p90_ms), error])
        return found


class UntilDue:
    """A policy until the last deadline, then another: for those under which jobs may wait for ever."""

    def __init__(self, policy: Policy, afterwards: Policy, last_due_ms: int) -> None:
        self.policy, self.afterwards, self.last_due_ms = policy, afterwards, last_due_ms

    def decide(self, view: Snapshot) -> Plan:
        return (self.policy if view.now_ms <= self.last_due_ms else self.afterwards).decide(view)

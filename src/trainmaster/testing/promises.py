"""Wrappers that watch a policy: which jobs it admitted, and one that hands over once every deadline is past."""

from __future__ import annotations

from trainmaster.model.job import JobId
from trainmaster.model.plan import Plan
from trainmaster.model.policy import Policy
from trainmaster.model.snapshot import Snapshot


class Promises:
    """Notes every job that the policy admitted: for deadline policies, whose deadline it promised."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.own_rounds = bool(getattr(policy, "own_rounds", False))
        self.admitted: set[JobId] = set()

    def decide(self, view: Snapshot) -> Plan:
        plan = self.policy.decide(view)
        self.admitted.update(view.jobs.id(row) for row in plan.admissions)
        return plan


class UntilDue:
    """A policy until the last deadline, then another: for those under which jobs may wait for ever."""

    own_rounds = False

    def __init__(self, policy: Policy, afterwards: Policy, last_due_ms: int) -> None:
        self.policy, self.afterwards, self.last_due_ms = policy, afterwards, last_due_ms

    def decide(self, view: Snapshot) -> Plan:
        return (self.policy if view.now_ms <= self.last_due_ms else self.afterwards).decide(view)

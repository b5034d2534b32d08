"""A policy that fails must not take the service with it: its fault is noted and FIFO decides instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from trainmaster.model.plan import Plan
from trainmaster.model.policy import Policy, PolicyTraits, traits_of
from trainmaster.model.snapshot import Snapshot
from trainmaster.policies.fifo import Fifo


class FallbackPolicy:
    """Decides as the policy it guards. `failed` is told of every fault."""

    def __init__(self, policy: Policy, failed: Callable[[Exception], None] = lambda _: None) -> None:
        self.policy = policy
        self._failed = failed

    @property
    def traits(self) -> PolicyTraits:
        return traits_of(self.policy)

    def decide(self, view: Snapshot) -> Plan:
        try:
            return self.policy.decide(view)
        except Exception as error:
            self._failed(error)
            plan = Fifo(backfill=True).decide(view)
            note = f"the policy failed ({type(error).__name__}: {error}); this decision was made by fifo:backfill=true"
            return replace(plan, notes=(*plan.notes, note))

"""The policy protocol: a pure function from snapshot to plan."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from trainmaster.model.plan import Plan
from trainmaster.model.snapshot import Snapshot


@runtime_checkable
class Policy(Protocol):
    """Decides. It may keep nothing between calls except what it puts into `Plan.memo`.

    `own_rounds`: the policy looks at `view.round_ms` itself and wants to see every event; the engine calls
    the others only at round boundaries when a round length is set. A policy whose memory rests on which nodes there
    are says so by an attribute `remembers_nodes`: it begins anew when nodes are added.
    """

    @property
    def own_rounds(self) -> bool: ...

    def decide(self, view: Snapshot) -> Plan: ...

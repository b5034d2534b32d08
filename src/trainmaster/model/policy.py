"""The policy protocol: a pure function from snapshot to plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from trainmaster.core.engine.decision_pass import Pass
from trainmaster.model.plan import Plan
from trainmaster.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class PolicyTraits:
    """What others must know of a policy besides its decisions. A policy states it as its attribute `traits`; one that
    states nothing has the traits of `PolicyTraits()`."""

    own_rounds: bool = False
    """It looks at `view.round_ms` itself and wants to see every event. The engine asks the others only at the beginning
    of a round, when a round length is set."""
    remembers_nodes: bool = False
    """Its memory rests on which nodes there are: it begins anew when nodes are added."""
    strict: bool = False
    """It keeps an order so strictly that a job which cannot run holds up the others."""
    fair: bool | None = None
    """Whether no job that could run waits for ever, where its options decide that; None: as it is registered."""
    fixed_sizes: bool = False
    """It starts jobs at the size that they ask for and never resizes them: idle GPUs are left to `engine.elastic_fill`,
    where the settings want it."""
    shares_devices: bool = False
    """It puts two jobs that ask for whole devices on the same ones."""
    own_priority: bool = False
    """It weighs priorities itself and is shown all jobs at once. The engine asks the others band by band
    (`engine.priority_bands`)."""
    placement: str | None = None
    """The placement strategy that it is made for, where that is not the default."""
    compiled_pass: Callable[[], Pass | None] | None = None
    """Makes the decision as a compiled pass, which decides as `decide` does; None: there is none."""


@runtime_checkable
class Policy(Protocol):
    """Decides. It may keep nothing between calls except what it puts into `Plan.memo`. See `PolicyTraits`."""

    def decide(self, view: Snapshot) -> Plan: ...


def traits_of(policy: Policy) -> PolicyTraits:
    return getattr(policy, "traits", _NO_TRAITS)


def pass_of(policy: Policy) -> Pass | None:
    """A new compiled pass of the policy, if it has one."""
    make = traits_of(policy).compiled_pass
    return None if make is None else make()


_NO_TRAITS = PolicyTraits()

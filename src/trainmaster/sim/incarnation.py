"""What the simulated backend keeps of a run of a gang: while it lives, and after its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainmaster.model.allocation import Allocation
from trainmaster.model.job import JobId, JobSpec
from trainmaster.model.units import NEVER_MS


@dataclass(slots=True, eq=False)
class Incarnation:
    """One run of a job's gang. `alive` are the nodes on which its members still exist."""

    spec: JobSpec
    generation: int
    allocation: Allocation
    allocation_seq: int
    work: float
    work_at_start: float
    as_of_ms: int
    rate: float
    alive: set[int] = field(default_factory=set)
    started: bool = False
    stopping: bool = False
    told_to_stop: bool = False
    epoch: int = 0
    """Counts changes of speed; a scheduled finish of an older epoch is void."""
    finish_ms: int = NEVER_MS
    finish_order: int = 0
    """When it will have done its work at its present speed, and its place among those that end then."""

    def __lt__(self, other: Incarnation) -> bool:
        """Any order will do: of two scheduled ends with the same time and number all but one are void."""
        return False

    @property
    def whole(self) -> bool:
        return len(self.alive) == len(self.allocation.parts)

    @property
    def nodes(self) -> frozenset[int]:
        return frozenset(part.node for part in self.allocation.parts)


@dataclass(slots=True)
class Record:
    """What agents know of an incarnation that has ended. `nodes` are those whose agents still know."""

    generation: int
    nodes: set[int]
    work_saved: float
    exit_code: int | None
    blamed_node: int | None = None
    failed_to_start: bool = False


def companions(incarnation: Incarnation, running: Mapping[JobId, Incarnation]) -> list[Incarnation]:
    """Those that live on devices which this one would have to itself, had it all that it asks for.

    A job that has all it asks for, a fraction of a device included, has none: it gets what was measured.
    """
    allocation = incarnation.allocation
    if allocation.share_milli >= incarnation.spec.worker.share_milli:
        return []
    devices = {part.node: set(part.devices) for part in allocation.parts}
    found = []
    for other in running.values():
        if other is not incarnation and any(
            part.node in other.alive and not devices.get(part.node, set()).isdisjoint(part.devices)
            for part in other.allocation.parts
        ):
            found.append(other)
    return found

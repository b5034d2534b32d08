"""A plan as numbers: which jobs change, to what, and why the others wait."""

from __future__ import annotations

from trainmaster.core.int_list import IntList


class PlanArrays:
    """The gang of `jobs[k]` begins at `first[k]` of `flat`; -1: it is stopped. Stops come first, so that devices come
    free as early as possible, then in order of arrival. Who
    arrived after `blocker` (-1: nobody) waits for it."""

    def __init__(self) -> None:
        self.jobs, self.first, self.flat = IntList(64), IntList(64), IntList(1024)
        self.default = 0
        """Why a job waits of which nothing else is known."""
        self.stated = IntList(64)
        """Pairs of a job and why it waits."""
        self.blocker = -1
        self.wake_at_ms = -1
        """When the policy wants to be asked again (-1: it does not mind)."""
        self.broken = self.broken_part = -1
        """Where a rule is broken (`core.verify`): a position in `jobs`, and a part of its gang."""

    def clear(self) -> None:
        self.jobs.n = self.first.n = self.flat.n = self.stated.n = 0
        self.blocker = self.wake_at_ms = -1

"""A plan as numbers: which jobs change, to what, and why the others wait."""

from __future__ import annotations

from trainmaster.core.int_list import IntList


class PlanArrays:
    """The gang of `jobs[k]` begins at `first[k]` of `flat`; -1: it is stopped. Stops come first, so that devices come
    free as early as possible, then in order of arrival. `misfits` wait because what is free has the wrong shape; who
    arrived after `blocker` (-1: nobody) waits for it."""

    def __init__(self) -> None:
        self.jobs, self.first, self.flat, self.misfits = IntList(64), IntList(64), IntList(1024), IntList(64)
        self.blocker = -1
        self.wake_at_ms = -1
        """When the policy wants to be asked again (-1: it does not mind)."""

    def clear(self) -> None:
        self.jobs.n = self.first.n = self.flat.n = self.misfits.n = 0
        self.blocker = self.wake_at_ms = -1

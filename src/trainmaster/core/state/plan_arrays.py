"""A plan as numbers: which jobs change, to what, and why the others wait."""

from __future__ import annotations

from trainmaster.core.int_list import IntList
from trainmaster.core.state.job_arrays import JobArrays


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
        """Where a rule is broken (`core.engine.verify`): a position in `jobs`, and a part of its gang."""

    def clear(self) -> None:
        self.jobs.n = self.first.n = self.flat.n = self.stated.n = 0
        self.blocker = self.wake_at_ms = -1

    def insert(self, jobs: JobArrays, i: int, first: int, begin: int) -> None:
        """Add a change where it belongs by arrival, not before position `begin`; there is room."""
        at = self.jobs.n
        self.jobs.n = self.first.n = at + 1
        while at > begin and jobs.arrival[self.jobs.values[at - 1]] > jobs.arrival[i]:
            self.jobs.values[at], self.first.values[at] = self.jobs.values[at - 1], self.first.values[at - 1]
            at -= 1
        self.jobs.values[at], self.first.values[at] = i, first

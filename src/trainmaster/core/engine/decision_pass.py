"""A decision that needs no Python: what the run loop calls in place of `Policy.decide`."""

from __future__ import annotations

from typing import Any

from trainmaster.core.engine.placement import Placer
from trainmaster.core.int_list import IntList
from trainmaster.core.state.cluster_arrays import ClusterArrays
from trainmaster.core.state.free_resources import FreeResources
from trainmaster.core.state.job_arrays import JobArrays
from trainmaster.core.state.plan_arrays import PlanArrays


class Pass:
    """Subclasses write the plan. `for_waiting`: while nobody waits there is nothing to decide, and jobs that are gone
    (-1)
    may stand in the list."""

    def __init__(self) -> None:
        self.for_waiting = False

    def decide(
        self,
        jobs: JobArrays,
        which: IntList,
        now_ms: int,
        cluster: ClusterArrays,
        free: FreeResources,
        placer: Placer,
        plan: PlanArrays,
    ) -> bool:
        """Write the plan for the jobs in `which`, which are in order of arrival; `free` is left as it was. False: it is
        not made, the policy's `decide` shall do it."""
        return False

    def follow(self, jobs: JobArrays) -> None:
        """From now on only the changes of these jobs are looked at. What is asked to decide on them must be all of
        them, and while a job waits nothing changes what it asks for, its speed or its work."""

    def bind(self, engine: Any) -> None:
        """Read what the engine remembers for the policy; called before a run and whenever Python has written there."""

    def store(self, engine: Any) -> None:
        """Write back what the pass has changed of it; called before Python reads it."""

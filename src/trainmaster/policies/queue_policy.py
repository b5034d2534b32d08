"""Policies that go down a list of jobs in the order of a key: what fits runs. The decision is a compiled pass.

A policy names a key column of the core, or overrides `keys`, which is evaluated at each decision: by time of
submission,
`def keys(self, jobs): return jobs.submit_ms`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from trainmaster.core.codes import BY_ARRIVAL, BY_DEADLINE, BY_GIVEN_KEY, BY_QUEUE, BY_REMAINING, BY_SERVICE
from trainmaster.core.engine.queue_pass import QueuePass
from trainmaster.core.int_list import IntList
from trainmaster.core.state.plan_arrays import PlanArrays
from trainmaster.model.plan import Plan
from trainmaster.model.policy import PolicyTraits
from trainmaster.model.reasons import Why
from trainmaster.model.snapshot import Snapshot

_KEYS = {
    "arrival": BY_ARRIVAL, "remaining_s": BY_REMAINING, "service_gpu_s": BY_SERVICE, "deadline_ms": BY_DEADLINE,
    "queue": BY_QUEUE,
}  # fmt: skip


class QueuePolicy:
    """The jobs with the smallest key first; ties in order of arrival."""

    key: ClassVar[str] = "arrival"
    """arrival, remaining_s, service_gpu_s, deadline_ms or queue (levels of attained service)."""
    preemptive: ClassVar[bool] = False
    """Jobs that run are in the list too, and stop for those before them."""
    strict: bool = False
    """Who does not fit holds up all behind it that could use the same nodes."""
    default_reason: ClassVar[Why] = Why.CAPACITY
    """Why a job waits of which nothing else is known."""

    keys: Any = None
    """`keys(jobs)`: the key of each row, for policies whose key is no column of the core."""

    @property
    def traits(self) -> PolicyTraits:
        return PolicyTraits(strict=self.strict, fixed_sizes=True, compiled_pass=self.compiled_pass)

    def compiled_pass(self) -> QueuePass | None:
        """The decision for a loop that needs no Python; None: `decide` is asked each time."""
        return self.queue_pass() if self.keys is None else None

    def queue_pass(self) -> QueuePass:
        """The decision; a policy with more to say sets its fields."""
        key = _KEYS[self.key] if self.keys is None else BY_GIVEN_KEY
        return QueuePass(key, self.preemptive, self.strict, int(self.default_reason))

    def decide(self, view: Snapshot) -> Plan:
        jobs, columns = view.jobs, view.jobs.columns
        queue, arrays, which = self.queue_pass(), PlanArrays(), IntList(len(jobs))
        which.values[:] = jobs.job_indices[np.argsort(jobs.arrival, kind="stable")]
        which.n = len(jobs)
        if self.keys is not None:
            by_index = np.zeros(columns.capacity)
            by_index[jobs.job_indices] = self.keys(jobs)
            queue.set_keys(by_index)
        queue.decide(columns, which, view.now_ms, view.nodes, view.free_capacity, view.placer, arrays)
        return self._plan(view, arrays)

    def _plan(self, view: Snapshot, arrays: PlanArrays) -> Plan:
        """The plan of the pass in terms of the snapshot's rows."""
        jobs, builder = view.jobs, view.draft()
        row_of = np.full(jobs.columns.capacity, -1, np.int64)
        row_of[jobs.job_indices] = np.arange(len(jobs))
        rows = row_of[np.asarray(arrays.jobs.values)[: arrays.jobs.n]]
        first = np.asarray(arrays.first.values)[: arrays.first.n]
        builder.changes.stop(rows[first < 0].tolist())
        given = first >= 0
        if given.any():
            flat = np.asarray(arrays.flat.values)[: arrays.flat.n].copy()
            builder.changes.place(rows[given].tolist(), first[given].tolist(), flat)
        stated = np.asarray(arrays.stated.values)[: arrays.stated.n].reshape(-1, 2)
        if arrays.blocker >= 0:
            behind = jobs.waiting & (jobs.not_before_ms <= view.now_ms)
            behind &= jobs.arrival > jobs.columns.ints["arrival"][arrays.blocker]
            behind[row_of[stated[:, 0]]] = False
            builder.wait_rows(np.flatnonzero(behind), Why.BEHIND, blocker=int(row_of[arrays.blocker]))
        for job_index, why in stated.tolist():
            builder.wait(int(row_of[job_index]), Why(why))
        wake_at_ms = arrays.wake_at_ms if arrays.wake_at_ms >= 0 else None
        return builder.plan(wake_at_ms=wake_at_ms, default=Why(arrays.default))

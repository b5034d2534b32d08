"""The engine's state as data. The modules beside this one are functions that change it.

What is a number lives in arrays (`core.engine.engine_core`); here is what has names, or is rare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from trainmaster.core.codes import WORDS
from trainmaster.core.engine.engine_core import EngineCore, is_current, list_pending
from trainmaster.core.state.cluster_arrays import ClusterArrays
from trainmaster.core.state.message_kinds import LAUNCH, OTHER, RESIZE
from trainmaster.engine.lifecycle import NEXT_PHASE
from trainmaster.engine.ports import Estimator
from trainmaster.engine.records import Ended, Notice, PairVerdict, Settings
from trainmaster.model.allocation import Allocation
from trainmaster.model.cluster import Cluster
from trainmaster.model.command import Command, Launch, Resize, Stop
from trainmaster.model.free_resources import FreeCapacity
from trainmaster.model.job import JobId, Phase
from trainmaster.model.job_table import JobColumns
from trainmaster.model.packed_allocation import unpacked
from trainmaster.model.plan import Rejection
from trainmaster.model.policy import Policy
from trainmaster.model.reasons import Why
from trainmaster.model.scaling import Measurement


class State(EngineCore):
    """Everything an engine knows. Jobs are named by their job index in `columns`."""

    columns: JobColumns
    planned: FreeCapacity
    physical: FreeCapacity

    def __init__(self, cluster: Cluster, policy: Policy, estimator: Estimator, settings: Settings) -> None:
        self.up = np.ones(len(cluster.nodes), np.bool_)
        super().__init__(
            JobColumns(cluster), nodes_of(cluster, self.up), FreeCapacity.full(cluster), FreeCapacity.full(cluster),
            NEXT_PHASE.copy(),
            settings.resend_ms, settings.backoff_ms,
        )  # fmt: skip
        self.round_ms = settings.round_ms or 0
        self.asks_after_start = settings.ask_after_start
        self.cluster = cluster
        self.policy = policy
        self.estimator = estimator
        self.settings = settings
        self.node_sets: dict[str, frozenset[int]] = {}
        """Nodes that jobs of each set may be given."""
        self.used: dict[int, tuple[int, int, int]] = {}
        """GPUs, CPU and memory that others use, by node."""
        self.foreign_usage: dict[int, tuple[tuple[int, ...], int, int]] = {}
        """What of it is taken from planned and physical capacity: devices, CPU, memory. Less than `used` while our jobs
        are there."""

        self.memo_values: Mapping[str, Any] = {}
        self.memo_columns: set[str] = set()
        self.details: dict[int, Mapping[str, Any]] = {}
        self.rejections: dict[int, Rejection] = {}
        self.rejected: dict[int, Rejection] = {}
        """By number, of jobs without a name."""
        self.known: set[JobId] = set()
        self.ended_as: dict[JobId, int] = {}
        """The phase in which a job ended, for those that wait for it."""
        self.waits_for: dict[int, set[JobId]] = {}
        """Jobs that must finish before this one may start."""
        self.gated: dict[int, Why] = {}
        """Jobs that policies do not see yet, and why."""
        self.no_room: dict[int, str] = {}
        """Why the nodes that there are could not take a job even if they were empty; such jobs do not compete."""
        self.caps: dict[int, int] = {}
        """Largest number of workers that a team's quota leaves a job, where that is less than it takes."""
        self.halted: dict[int, str] = {}
        """Jobs whose attempt the service ends, and why."""
        self.notices: dict[int, Notice] = {}
        """What jobs were told before a preemption that would cost them much."""
        self.new_notices: list[Notice] = []
        """Those that nobody has been told of yet."""
        self.shared_reports: dict[int, tuple[int, Measurement]] = {}
        """What jobs that share devices said last of their speeds, and when, by job index."""
        self.pair_verdicts: list[PairVerdict] = []
        """The same, of jobs that shared devices."""
        self.saves_at_stop: set[JobId] = set()
        """Jobs that have been seen to save when they were stopped."""
        self.entity_weights: dict[str, float] = dict(settings.entity_weights)
        self.entity_policies: dict[str, str] = dict(settings.entity_policies)
        self.quotas: dict[str, int] = {}
        """GPU thousandths that a team's jobs may use at a time; teams that are absent have no limit."""
        self.ended: list[Ended] = []
        self.notes: list[str] = []
        self.plans_refused = 0
        self.decide_cpu_s = 0.0
        self._decide_clock: Callable[[], float] | None = None

    def set_up(self, node: int, up: bool) -> None:
        """A node is up, or down, from now on."""
        self.up[node] = up
        self.nodes.changes += 1

    def by_arrival(self, job_indices: Iterable[int]) -> list[int]:
        """Slots in the order in which the jobs came: job indices are reused, so their own order means nothing."""
        arrival = self.columns.ints["arrival"]
        return sorted(job_indices, key=lambda job_index: int(arrival[job_index]))

    def current(self, job_id: JobId, generation: int) -> int | None:
        """The job index that a report speaks of, or None when it is not about a live attempt: the fence."""
        job_index = self.columns.job_index_of.get(job_id)
        return job_index if job_index is not None and is_current(self, job_index, generation) else None

    def holders(self) -> list[int]:
        """Slots whose processes may occupy something, in order of arrival."""
        columns = self.columns
        rows = columns.rows
        return rows[np.asarray(columns.physical.values)[rows * columns.width] > 0].tolist()

    @property
    def held(self) -> dict[int, Allocation]:
        """What processes of live attempts may occupy, by job index."""
        return {job_index: self.holding(job_index) for job_index in self.holders()}

    def holding(self, job_index: int) -> Allocation:
        """What processes of a live attempt may occupy."""
        allocation = self.columns.held[job_index]
        assert allocation is not None
        return allocation

    @property
    def outstanding(self) -> dict[int, tuple[Command, int]]:
        """By job index: the command that has no answer yet, and when it was last sent; in the order of issue."""
        list_pending(self)
        return {
            int(job_index): (self.pending_command(int(job_index)), self.columns.ints["pending_sent_ms"].item(job_index))
            for job_index in np.asarray(self.pending.values)[: self.pending.n]
        }

    def pending_command(self, job_index: int) -> Command:
        ints, columns = self.columns.ints, self.columns
        kind = ints["pending_kind"].item(job_index)
        gang = columns.held[job_index] if kind == LAUNCH else columns.allocations[job_index] if kind == RESIZE else None
        return self._command(
            kind,
            job_index,
            ints["generation"].item(job_index),
            ints["pending_seq"].item(job_index),
            ints["pending_why"].item(job_index),
            gang,
        )

    def drain_commands(self) -> list[Command]:
        """The commands of this step, as objects."""
        decoded = self.commands_so_far()
        self.commands.clear()
        return decoded

    def commands_so_far(self) -> list[Command]:
        return [self._command_at(k) for k in range(self.commands.n)]

    def _command_at(self, k: int) -> Command:
        rows = self.commands
        if rows.kind[k] == OTHER:
            return rows.others[rows.extra[k]]
        gang = unpacked(rows.numbers.values, rows.extra[k]) if rows.extra[k] >= 0 else None
        return self._command(rows.kind[k], rows.job[k], rows.generation[k], rows.seq[k], rows.code[k], gang)

    def _decode_commands_of(self, job_index: int) -> None:
        """The job's index will be another job's: commands of this step that name it become objects."""
        rows = self.commands
        for k in range(rows.n):
            if rows.kind[k] != OTHER and rows.job[k] == job_index:
                command = self._command_at(k)
                rows.kind[k], rows.extra[k] = OTHER, len(rows.others)
                rows.others.append(command)

    def _command(
        self, kind: int, job_index: int, generation: int, seq: int, why: int, gang: Allocation | None
    ) -> Command:
        spec = self.columns.spec(job_index)
        generation, seq = int(generation), int(seq)
        if kind == LAUNCH:
            assert gang is not None
            return Launch(spec.id, generation, seq, gang, spec)
        if kind == RESIZE:
            assert gang is not None
            return Resize(spec.id, generation, seq, gang)
        return Stop(spec.id, generation, seq, WORDS[why])

    def job_ended(self, i: int, phase: int) -> None:
        """The last word on a job, and an end to what is kept of it by name."""
        columns, job_index = self.columns, i
        ints, floats = columns.ints, columns.floats
        spec = columns.spec(job_index)
        self._decode_commands_of(job_index)
        self.details.pop(job_index, None)
        self.shared_reports.pop(job_index, None)
        self.halted.pop(job_index, None)
        self.saves_at_stop.discard(spec.id)
        self.ended.append(
            Ended(
                spec=spec,
                phase=Phase(phase),
                ended_ms=int(self.now_ms),
                first_start_ms=int(ints["first_start_ms"][job_index]),
                service_gpu_s=float(floats["service_gpu_s"][job_index]),
                run_s=float(floats["run_s"][job_index]),
                work_done=float(floats["work_done"][job_index]),
                preemptions=int(ints["preemptions"][job_index]),
                attempts=int(ints["attempts"][job_index]),
                cost=float(floats["cost"][job_index]),
                rejection=self.rejections.pop(job_index, None),
            )
        )
        self.ended_as[spec.id] = phase
        if self.waits_for or self.quotas or self.gated or self.no_room:
            for book in (self.gated, self.waits_for, self.caps, self.no_room):
                book.pop(job_index, None)
            self.gate_changed = True
        columns.forget(job_index)


def nodes_of(cluster: Cluster, up: np.ndarray) -> ClusterArrays:
    """The machines as arrays; `up` is shared, not copied."""
    return ClusterArrays(cluster.type_of, cluster.gpus, cluster.rack_of, len(cluster.types), up)

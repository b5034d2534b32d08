"""The engine: a synchronous state machine. Events go in, commands come out; it reads no clock.

It owns the jobs' life cycle, asks the policy when something changed that matters, verifies the plan, and
sends commands only when the devices they need are physically free. Two ledgers: `planned` is what policies
see (devices of jobs being stopped count as free), `physical` is what processes may really occupy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainmaster.engine.lifecycle import LIVE, T, Trigger, next_phase
from trainmaster.engine.ports import Estimator
from trainmaster.engine.verify import PlanError, verify
from trainmaster.model import event as ev
from trainmaster.model.allocation import Allocation
from trainmaster.model.cluster import Cluster
from trainmaster.model.command import Command, Launch, Resize, Stop
from trainmaster.model.job import TERMINAL, JobId, JobSpec, P, Phase
from trainmaster.model.lease import LeaseRule
from trainmaster.model.ledger import Ledger, union
from trainmaster.model.memo import EMPTY_MEMO, Memo
from trainmaster.model.placement import Strategy
from trainmaster.model.plan import Plan, Rejection
from trainmaster.model.policy import Policy
from trainmaster.model.reasons import Reason, Why, explain, why_phase
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.table import JobColumns, JobTable
from trainmaster.model.units import NEVER_MS


@dataclass(frozen=True)
class Settings:
    """Choices of the operator that hold for the whole life of an engine."""

    placement: Strategy = Strategy.PACK
    round_ms: int | None = None
    seed: int = 0
    lease: LeaseRule = field(default_factory=LeaseRule)
    resend_ms: int = 5_000
    """A command without an answer is sent again after this time."""
    backoff_ms: int = 10_000
    """Pause after the first failure of a job; doubles with each further one."""
    restart_cost_ms: int = 0
    """What policies are told a restart costs."""
    resize_cost_ms: int = 0
    """What policies are told a resize in place costs."""
    entity_weights: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ended:
    """The last word on a job."""

    spec: JobSpec
    phase: Phase
    ended_ms: int
    first_start_ms: int
    service_gpu_s: float
    run_s: float
    work_done: float
    preemptions: int
    attempts: int
    cost: float = 0.0
    """Dollars; NaN when a type it ran on has no price."""
    rejection: Rejection | None = None


_CAPACITY = int(Why.CAPACITY)


class Engine:
    """See the module's text. `step` is the only way in; `drain_ended` tells which jobs are over."""

    def __init__(self, cluster: Cluster, policy: Policy, estimator: Estimator, settings: Settings) -> None:
        self.cluster = cluster
        self.policy = policy
        self.estimator = estimator
        self.settings = settings
        self.now_ms = 0
        self.columns = JobColumns(cluster)
        self.up = np.ones(len(cluster.nodes), np.bool_)
        self.planned = Ledger.full(cluster)
        self.physical = Ledger.full(cluster)
        self.held: dict[int, Allocation] = {}
        self.outstanding: dict[int, tuple[Command, int]] = {}
        self.reserved: list[int] = []
        self.lost: set[int] = set()
        self.memo_values: Mapping[str, Any] = {}
        self.wake_at_ms = NEVER_MS
        self.details: dict[int, Mapping[str, Any]] = {}
        self.notes: list[str] = []
        self.plans_refused = 0
        self.decisions = 0
        self.seq = 0
        self.dirty: set[JobId] = set()
        self.known: set[JobId] = set()
        self._ended: list[Ended] = []
        self._rejections: dict[int, Rejection] = {}
        self._commands: list[Command] = []
        self._changed = False
        self._next_resend_ms = NEVER_MS
        self._next_backoff_ms = NEVER_MS
        self._memo_columns: set[str] = set()
        self._decide_clock: Callable[[], float] | None = None
        self.decide_cpu_s = 0.0

    # -- the way in ----------------------------------------------------------------------------------

    def step(self, now_ms: int, *events: ev.Event) -> list[Command]:
        """Take events that are known at `now_ms`, decide if needed, and return what backends shall do."""
        assert now_ms >= self.now_ms, "time runs forward"
        self.now_ms = now_ms
        self.columns.version += 1
        self._commands = []
        for event in events:
            _HANDLERS[type(event)](self, event)
        if self.lost:
            self._expire_leases()
        if now_ms >= self._next_backoff_ms:
            self._end_backoffs()
        if self.reserved:
            self._launch_reserved()
        if self._changed or now_ms >= self.wake_at_ms:
            self._decide_if_due()
        if now_ms >= self._next_resend_ms:
            self._resend()
        return self._commands

    def drain_ended(self) -> list[Ended]:
        ended, self._ended = self._ended, []
        return ended

    @property
    def next_wake_ms(self) -> int:
        """When the engine wants a `Woken` event at the latest (NEVER_MS: no need)."""
        wake = min(self.wake_at_ms, self._next_resend_ms, self._next_backoff_ms)
        if self.lost:
            wake = min(wake, int(self.columns.ints["lease_end_ms"][list(self.lost)].min()))
        return wake

    def snapshot(self) -> Snapshot:
        columns = self.columns
        table = JobTable(columns, self.now_ms)
        memo = EMPTY_MEMO
        if self.memo_values or self._memo_columns:
            memo = Memo(self.memo_values, {name: columns.memo[name][table.slots] for name in self._memo_columns})
        s = self.settings
        return Snapshot(
            version=columns.version,
            now_ms=self.now_ms,
            cluster=self.cluster,
            up=self.up,
            ledger=self.planned,
            jobs=table,
            memo=memo,
            placement=s.placement,
            round_ms=s.round_ms,
            seed=s.seed,
            entity_weights=s.entity_weights,
            restart_cost_ms=s.restart_cost_ms,
            resize_cost_ms=s.resize_cost_ms,
            any_backoff=self._next_backoff_ms < NEVER_MS,
        )

    def reason(self, job_id: JobId) -> Reason | None:
        """Why a job waits, in full; None when it does not exist or does not wait."""
        slot = self.columns.slot_of.get(job_id)
        if slot is None:
            return None
        view = self.snapshot()
        row = int(np.flatnonzero(view.jobs.slots == slot)[0])
        ints = self.columns.ints
        why = why_phase(int(ints["phase"][slot])) or Why(int(ints["reason"][slot]))
        blocker = int(ints["blocker"][slot])
        rows = np.flatnonzero(view.jobs.slots == blocker) if blocker >= 0 else []
        return explain(view, row, why, int(rows[0]) if len(rows) else -1, self.details.get(slot))

    # -- deciding ------------------------------------------------------------------------------------

    def _decide_if_due(self) -> None:
        round_ms = self.settings.round_ms
        if round_ms and not self.policy.own_rounds and self.now_ms % round_ms:
            self.wake_at_ms = min(self.wake_at_ms, (self.now_ms // round_ms + 1) * round_ms)
            if self.wake_at_ms <= self.now_ms:
                self.wake_at_ms = (self.now_ms // round_ms + 1) * round_ms
            return
        self._changed = False
        self.wake_at_ms = NEVER_MS
        if len(self.columns.rows) == 0:
            return
        view = self.snapshot()
        clock = self._decide_clock
        begun = clock() if clock else 0.0
        plan = self.policy.decide(view)
        if clock:
            self.decide_cpu_s += clock() - begun
        self.decisions += 1
        try:
            ledger = verify(view, plan)
        except PlanError as error:
            # Nothing of a bad plan is carried out; the jobs keep what they have and the operator is told.
            self.plans_refused += 1
            self.notes.append(f"plan refused: {error}")
            return
        self._apply(view, plan, ledger)

    def _apply(self, view: Snapshot, plan: Plan, ledger: Ledger) -> None:
        columns, ints = self.columns, self.columns.ints
        slots = view.jobs.slots
        self.planned = ledger
        if plan.wake_at_ms is not None and plan.wake_at_ms > self.now_ms:
            self.wake_at_ms = plan.wake_at_ms
        ints["reason"][slots] = plan.why
        if plan.blocker is not None:
            ints["blocker"][slots] = np.where(plan.blocker >= 0, slots[plan.blocker], -1)
        if self.details or plan.details:
            self.details = {int(slots[row]): details for row, details in plan.details.items()}
        for row in plan.admissions:
            ints["admitted"][slots[row]] = 1
            self.dirty.add(view.jobs.id(row))
        self._remember(plan.memo, slots)
        self.notes.extend(plan.notes)
        for row, rejection in sorted(plan.rejections.items()):
            slot = int(slots[row])
            self._rejections[slot] = rejection
            self._move(slot, T.REJECT)
        # Stops first, so that devices come free as early as possible; then in row order.
        ordered = sorted(plan.changes.items(), key=lambda item: (item[1] is not None, item[0]))
        for row, allocation in ordered:
            self._carry_out(int(slots[row]), allocation)
        if self.reserved:
            self._launch_reserved()
        columns.version += 1

    def _remember(self, memo: Memo, slots: Any) -> None:
        self.memo_values = memo.values
        for name, column in memo.columns.items():
            values = np.asarray(column, np.float64)
            store = self.columns.memo.get(name)
            if store is None or store.shape[1:] != values.shape[1:]:
                store = self.columns.memo[name] = np.zeros((self.columns.capacity, *values.shape[1:]))
            store[slots] = values
        self._memo_columns = set(memo.columns)

    def _carry_out(self, slot: int, allocation: Allocation | None) -> None:
        """Turn one verified change into a reservation, resize or stop. The ledger is already up to date."""
        phase = int(self.columns.ints["phase"][slot])
        old = self.columns.allocations[slot]
        if allocation is None:
            self._set_allocation(slot, None)
            if phase == P.RESERVED:
                self.reserved.remove(slot)
                self._move(slot, T.UNRESERVE)
            else:
                self.columns.ints["preemptions"][slot] += 1
                self._stop(slot, P.PENDING, "preempted")
        elif phase == P.PENDING:
            self._set_allocation(slot, allocation)
            self._move(slot, T.RESERVE)
            self.reserved.append(slot)
        elif phase == P.RESERVED:
            self._set_allocation(slot, allocation)
        elif _in_place(self.columns.spec(slot), old, allocation):
            self._resize(slot, allocation)
        else:
            self.columns.ints["preemptions"][slot] += 1
            self.columns.settle(slot, self.now_ms)
            self._set_allocation(slot, allocation)
            self._stop(slot, P.RESERVED, "moved")

    def _set_allocation(self, slot: int, allocation: Allocation | None) -> None:
        self.columns.settle(slot, self.now_ms)
        ints = self.columns.ints
        self.columns.allocations[slot] = allocation
        ints["held_type"][slot] = -1 if allocation is None else allocation.accelerator
        ints["workers"][slot] = 0 if allocation is None else allocation.workers
        ints["servers"][slot] = 0 if allocation is None else allocation.servers
        ints["nodes_held"][slot] = 0 if allocation is None else len(allocation.parts)

    # -- commands ------------------------------------------------------------------------------------

    def _send(self, slot: int, command: Command) -> None:
        self._commands.append(command)
        self.outstanding[slot] = (command, self.now_ms)
        self._next_resend_ms = min(self._next_resend_ms, self.now_ms + self.settings.resend_ms)

    def _next_seq(self) -> int:
        self.seq += 1
        return self.seq

    def _launch_reserved(self) -> None:
        """Send the launches whose devices are physically free, in the order of reservation."""
        waiting = []
        for slot in self.reserved:
            allocation = self.columns.allocations[slot]
            spec = self.columns.spec(slot)
            assert allocation is not None
            if not self.physical.fits(allocation, spec.worker, spec.server) or not self._reachable(allocation):
                waiting.append(slot)
                continue
            self.physical.take(allocation, spec.worker, spec.server)
            self.held[slot] = allocation
            ints = self.columns.ints
            ints["generation"][slot] += 1
            ints["attempts"][slot] += 1
            ints["stop_confirmed"][slot] = 0
            ints["lease_end_ms"][slot] = NEVER_MS
            self._move(slot, T.LAUNCH)
            self._send(slot, Launch(spec.id, int(ints["generation"][slot]), self._next_seq(), allocation, spec))
        self.reserved = waiting

    def _reachable(self, allocation: Allocation) -> bool:
        return all(self.up[part.node] for part in allocation.parts)

    def _resize(self, slot: int, allocation: Allocation) -> None:
        spec = self.columns.spec(slot)
        both = union(self.held[slot], allocation)
        self.physical.give(self.held[slot], spec.worker, spec.server)
        if not self.physical.fits(both, spec.worker, spec.server):
            # The devices it grows onto are still being freed: stay as it is, the next decision tries again.
            self.physical.take(self.held[slot], spec.worker, spec.server)
            present = self.columns.allocations[slot]
            assert present is not None
            self.planned.give(allocation, spec.worker, spec.server)
            self.planned.take(present, spec.worker, spec.server)
            self._changed = True
            return
        self.physical.take(both, spec.worker, spec.server)
        self.held[slot] = both
        self._set_allocation(slot, allocation)
        self._move(slot, T.RESIZE)
        generation = int(self.columns.ints["generation"][slot])
        self._send(slot, Resize(spec.id, generation, self._next_seq(), allocation))

    def _stop(self, slot: int, after: int, why: str) -> None:
        ints = self.columns.ints
        ints["after_stop"][slot] = after
        self.columns.settle(slot, self.now_ms)
        if int(ints["phase"][slot]) != P.STOPPING:
            self._move(slot, T.STOP)
            self._send(slot, Stop(self.columns.spec(slot).id, int(ints["generation"][slot]), self._next_seq(), why))

    def _resend(self) -> None:
        due = self.now_ms - self.settings.resend_ms
        self._next_resend_ms = NEVER_MS
        for slot, (command, sent_ms) in sorted(self.outstanding.items()):
            if sent_ms <= due:
                self._commands.append(command)
                sent_ms = self.now_ms
                self.outstanding[slot] = (command, sent_ms)
            self._next_resend_ms = min(self._next_resend_ms, sent_ms + self.settings.resend_ms)

    # -- life cycle ----------------------------------------------------------------------------------

    def _move(self, slot: int, trigger: Trigger) -> int:
        ints = self.columns.ints
        phase = next_phase(int(ints["phase"][slot]), trigger)
        self.columns.settle(slot, self.now_ms)
        ints["phase"][slot] = phase
        self.dirty.add(self.columns.spec(slot).id)
        if phase in TERMINAL:
            self._bury(slot, phase)
        elif phase == P.PENDING:
            ints["waiting_since_ms"][slot] = self.now_ms
            ints["reason"][slot] = _CAPACITY
        return phase

    def _bury(self, slot: int, phase: int) -> None:
        columns = self.columns
        spec = columns.spec(slot)
        allocation = columns.allocations[slot]
        if allocation is not None:
            self.planned.give(allocation, spec.worker, spec.server)
        self._release_held(slot)
        if slot in self.reserved:
            self.reserved.remove(slot)
        self.lost.discard(slot)
        self.details.pop(slot, None)
        ints, floats = columns.ints, columns.floats
        self._ended.append(
            Ended(
                spec=spec,
                phase=Phase(phase),
                ended_ms=self.now_ms,
                first_start_ms=int(ints["first_start_ms"][slot]),
                service_gpu_s=float(floats["service_gpu_s"][slot]),
                run_s=float(floats["run_s"][slot]),
                work_done=float(floats["work_done"][slot]),
                preemptions=int(ints["preemptions"][slot]),
                attempts=int(ints["attempts"][slot]),
                cost=float(floats["cost"][slot]),
                rejection=self._rejections.pop(slot, None),
            )
        )
        columns.remove(slot)
        self._changed = True

    def _release_held(self, slot: int) -> None:
        held = self.held.pop(slot, None)
        if held is not None:
            spec = self.columns.spec(slot)
            self.physical.give(held, spec.worker, spec.server)
        self.outstanding.pop(slot, None)

    def _drop_allocation(self, slot: int) -> None:
        """Give planned devices back (the job will wait, or is over)."""
        allocation = self.columns.allocations[slot]
        if allocation is not None:
            spec = self.columns.spec(slot)
            self.planned.give(allocation, spec.worker, spec.server)
            self._set_allocation(slot, None)

    def _current(self, job_id: JobId, generation: int) -> int | None:
        """The slot that a report speaks of, or None when it is not about a live incarnation: the fence."""
        slot = self.columns.slot_of.get(job_id)
        if slot is None or self.columns.ints["generation"][slot] != generation:
            return None
        return slot if int(self.columns.ints["phase"][slot]) in LIVE else None

    def _gone(self, slot: int, work_saved: float) -> None:
        """The present incarnation has certainly ended without finishing: go where the job was to go."""
        columns, ints = self.columns, self.columns.ints
        columns.settle(slot, self.now_ms)
        columns.floats["work_done"][slot] = columns.floats["work_saved"][slot] = max(work_saved, 0.0)
        after = int(ints["after_stop"][slot]) if int(ints["phase"][slot]) in (P.STOPPING, P.LOST) else P.PENDING
        self._release_held(slot)
        self.lost.discard(slot)
        ints["lease_end_ms"][slot] = NEVER_MS
        ints["after_stop"][slot] = P.PENDING
        if after == P.RESERVED and columns.allocations[slot] is not None:
            self._move(slot, T.MOVE)
            self.reserved.append(slot)
            return
        self._drop_allocation(slot)
        if after == P.CANCELLED:
            self._move(slot, T.CANCEL)
        elif after == P.PAUSED:
            self._move(slot, T.PAUSE)
        else:
            self._move(slot, T.REQUEUE)
            if ints["worker_gpu_milli"][slot] == 0 or self.planned.device_milli.any():
                self._changed = True  # there may be room for it elsewhere

    def _failed(self, slot: int, work_saved: float) -> None:
        """The incarnation ended by its own fault: try again after a pause, or give up."""
        ints = self.columns.ints
        spec = self.columns.spec(slot)
        ints["failures"][slot] += 1
        failures = int(ints["failures"][slot])
        wanted = int(ints["after_stop"][slot]) if int(ints["phase"][slot]) == P.STOPPING else P.PENDING
        if failures >= spec.max_attempts and wanted not in (P.CANCELLED, P.PAUSED):
            self.columns.settle(slot, self.now_ms)
            self._release_held(slot)
            self._move(slot, T.GIVE_UP)
            return
        if wanted == P.RESERVED:
            ints["after_stop"][slot] = P.PENDING
        self._gone(slot, work_saved)
        if spec.id in self.columns.slot_of and int(ints["phase"][slot]) == P.PENDING:
            ints["not_before_ms"][slot] = self.now_ms + self.settings.backoff_ms * 2 ** min(failures - 1, 6)
            self._next_backoff_ms = min(self._next_backoff_ms, int(ints["not_before_ms"][slot]))
            self._changed = True

    def _end_backoffs(self) -> None:
        rows = self.columns.rows
        until = self.columns.ints["not_before_ms"][rows]
        later = until[until > self.now_ms]
        self._next_backoff_ms = int(later.min()) if len(later) else NEVER_MS
        self._changed = True

    def _expire_leases(self) -> None:
        lease_end = self.columns.ints["lease_end_ms"]
        for slot in sorted(self.lost):
            if lease_end[slot] <= self.now_ms:
                self._lease_over(slot)

    def _lease_over(self, slot: int) -> None:
        """What ran on cut-off nodes has ended. What runs on reachable ones must be told to stop first."""
        self.lost.discard(slot)
        ints = self.columns.ints
        ints["lease_end_ms"][slot] = NEVER_MS
        reachable = any(self.up[part.node] for part in self.held[slot].parts)
        if reachable and not ints["stop_confirmed"][slot]:
            if int(ints["phase"][slot]) == P.LOST:
                self._stop(slot, int(ints["after_stop"][slot]), "a node of the gang was lost")
            return
        self._gone(slot, float(self.columns.floats["work_saved"][slot]))

    # -- events of users -----------------------------------------------------------------------------

    def _on_submitted(self, event: ev.JobSubmitted) -> None:
        spec = event.spec
        if spec.id in self.known:
            return
        self.known.add(spec.id)
        here, spread = self.estimator.profile(spec, self.cluster.types)
        self.columns.add(spec, self.now_ms, here, spread)
        self.dirty.add(spec.id)
        self._changed = True

    def _on_cancelled(self, event: ev.JobCancelled) -> None:
        self._end_by_user(event.job_id, P.CANCELLED, T.CANCEL)

    def _on_paused(self, event: ev.JobPaused) -> None:
        self._end_by_user(event.job_id, P.PAUSED, T.PAUSE)

    def _end_by_user(self, job_id: JobId, after: int, trigger: Trigger) -> None:
        slot = self.columns.slot_of.get(job_id)
        if slot is None:
            return
        phase = int(self.columns.ints["phase"][slot])
        if phase == after:
            return
        self._changed = True
        self._drop_allocation(slot)
        if phase not in LIVE:
            if phase == P.RESERVED:
                self.reserved.remove(slot)
            self._move(slot, trigger)
        elif phase == P.LOST:
            self.columns.ints["after_stop"][slot] = after
        elif phase != P.STOPPING or self.columns.ints["after_stop"][slot] != P.CANCELLED:
            self._stop(slot, after, "cancelled" if after == P.CANCELLED else "paused")
        self.dirty.add(job_id)

    def _on_resumed(self, event: ev.JobResumed) -> None:
        slot = self.columns.slot_of.get(event.job_id)
        if slot is None:
            return
        ints = self.columns.ints
        if int(ints["phase"][slot]) == P.PAUSED:
            self._move(slot, T.RESUME)
            self._changed = True
        elif int(ints["phase"][slot]) in (P.STOPPING, P.LOST) and ints["after_stop"][slot] == P.PAUSED:
            ints["after_stop"][slot] = P.PENDING
            self.dirty.add(event.job_id)

    def _on_range_changed(self, event: ev.JobRangeChanged) -> None:
        slot = self.columns.slot_of.get(event.job_id)
        if slot is not None:
            self.columns.ints["workers_min"][slot] = event.workers_min
            self.columns.ints["workers_max"][slot] = event.workers_max
            self.dirty.add(event.job_id)
            self._changed = True

    def _on_policy_changed(self, _: ev.PolicyChanged) -> None:
        self.memo_values = {}
        self._memo_columns = set()
        self._changed = True

    def _on_woken(self, _: ev.Woken) -> None:
        pass

    # -- reports of backends -------------------------------------------------------------------------

    def _on_started(self, event: ev.Started) -> None:
        slot = self._current(event.job_id, event.generation)
        if slot is None or int(self.columns.ints["phase"][slot]) != P.LAUNCHING:
            return
        self._answered(slot)
        columns = self.columns
        columns.floats["work_done"][slot] = columns.floats["work_saved"][slot] = event.work_done
        columns.ints["productive_ms"][slot] = event.productive_ms
        columns.ints["as_of_ms"][slot] = self.now_ms
        if columns.ints["first_start_ms"][slot] < 0:
            columns.ints["first_start_ms"][slot] = self.now_ms
        self._move(slot, T.STARTED)
        self._set_rate(slot)

    def _set_rate(self, slot: int) -> None:
        allocation = self.columns.allocations[slot]
        if allocation is not None:
            self.columns.floats["rate"][slot] = self.columns.rate_of(
                slot, allocation.accelerator, allocation.workers, allocation.servers, allocation.spread
            )

    def _answered(self, slot: int) -> None:
        self.outstanding.pop(slot, None)

    def _on_start_failed(self, event: ev.StartFailed) -> None:
        slot = self._current(event.job_id, event.generation)
        if slot is not None:
            self._failed(slot, float(self.columns.floats["work_saved"][slot]))

    def _on_resized(self, event: ev.Resized) -> None:
        slot = self._current(event.job_id, event.generation)
        if slot is None or int(self.columns.ints["phase"][slot]) != P.RESIZING:
            return
        command = self.outstanding.get(slot)
        if command is None or command[0].seq != event.seq:
            return
        self._answered(slot)
        spec = self.columns.spec(slot)
        allocation = self.columns.allocations[slot]
        assert allocation is not None
        self.physical.give(self.held[slot], spec.worker, spec.server)
        self.physical.take(allocation, spec.worker, spec.server)
        self.held[slot] = allocation
        self._move(slot, T.RESIZED)
        self.columns.floats["work_done"][slot] = event.work_done
        self.columns.ints["productive_ms"][slot] = event.productive_ms
        self._set_rate(slot)
        self._changed = True

    def _on_progressed(self, event: ev.Progressed) -> None:
        slot = self._current(event.job_id, event.generation)
        if slot is None:
            return
        columns = self.columns
        columns.settle(slot, self.now_ms)
        columns.floats["work_done"][slot] = event.work_done
        if event.rate is not None and event.rate >= 0:
            columns.floats["rate"][slot] = event.rate

    def _on_exited(self, event: ev.Exited) -> None:
        slot = self._current(event.job_id, event.generation)
        if slot is None:
            return
        if event.code == 0:
            columns = self.columns
            columns.settle(slot, self.now_ms)
            total = columns.floats["work_total"][slot]
            columns.floats["work_done"][slot] = total if total == total else event.work_saved
            self._release_held(slot)
            self._move(slot, T.FINISH)
        else:
            self._failed(slot, event.work_saved)

    def _on_stopped(self, event: ev.Stopped) -> None:
        slot = self._current(event.job_id, event.generation)
        if slot is None or int(self.columns.ints["phase"][slot]) not in (P.STOPPING, P.LOST):
            return
        ints = self.columns.ints
        if ints["lease_end_ms"][slot] < NEVER_MS:
            ints["stop_confirmed"][slot] = 1  # the reachable part has ended; the rest ends with its lease
            self.columns.floats["work_saved"][slot] = event.work_saved
            self._answered(slot)
            return
        self._gone(slot, event.work_saved)

    # -- nodes ---------------------------------------------------------------------------------------

    def _on_node_joined(self, event: ev.NodeJoined) -> None:
        if not self.up[event.node]:
            self.up[event.node] = True
            self._changed = True

    def _on_node_lost(self, event: ev.NodeLost) -> None:
        node = event.node
        if not self.up[node] and not event.confirmed:
            return
        self.up[node] = False
        self._changed = True
        for slot in list(self.reserved):
            allocation = self.columns.allocations[slot]
            if allocation is not None and any(part.node == node for part in allocation.parts):
                self.reserved.remove(slot)
                self._drop_allocation(slot)
                self._move(slot, T.UNRESERVE)
        for slot in sorted(self.held):
            if any(part.node == node for part in self.held[slot].parts):
                self._lose(slot, event)

    def _lose(self, slot: int, event: ev.NodeLost) -> None:
        ints = self.columns.ints
        phase = int(ints["phase"][slot])
        # A move or plain run becomes a requeue; a wish of the user (pause, cancel) stays.
        after = int(ints["after_stop"][slot]) if phase in (P.STOPPING, P.LOST) else P.PENDING
        if after == P.RESERVED:
            after = P.PENDING
            self._drop_allocation(slot)
        ints["after_stop"][slot] = after
        others_cut = [p.node for p in self.held[slot].parts if p.node != event.node and not self.up[p.node]]
        if event.confirmed and not others_cut:
            self.columns.ints["lease_end_ms"][slot] = NEVER_MS
            self.lost.discard(slot)
            if phase != P.LOST and phase != P.STOPPING:
                self.columns.settle(slot, self.now_ms)
                self._move(slot, T.LOSE)
            elif phase == P.STOPPING and any(self.up[p.node] for p in self.held[slot].parts):
                return  # the stop of the reachable part is under way
            self._lease_over(slot)
            return
        end = self.settings.lease.certainly_over_ms(min(event.last_renewed_ms, self.now_ms))
        known = int(ints["lease_end_ms"][slot])
        if not event.confirmed:
            ints["lease_end_ms"][slot] = end if known == NEVER_MS else max(known, end)
        if phase not in (P.LOST, P.STOPPING):
            self.columns.settle(slot, self.now_ms)
            self._move(slot, T.LOSE)
            self.outstanding.pop(slot, None)
        self.lost.add(slot)
        self.dirty.add(self.columns.spec(slot).id)

    # -- inventory -----------------------------------------------------------------------------------

    def _on_inventory(self, event: ev.Inventory) -> None:
        """Believe the backend where it can know: what it lists is there, what it should list is not."""
        listed: set[JobId] = set()
        for entry in event.entries:
            slot = self._current(entry.job_id, entry.generation)
            if slot is None:
                self._stray(entry)
                continue
            listed.add(entry.job_id)
            self._reconcile(slot, entry, event)
        for slot in sorted(self.held):
            spec = self.columns.specs[slot]
            if spec is None or spec.id in listed or int(self.columns.ints["phase"][slot]) not in LIVE:
                continue
            if all(part.node in event.nodes for part in self.held[slot].parts) and self._heard(slot, event):
                self._gone(slot, float(self.columns.floats["work_saved"][slot]))

    def _heard(self, slot: int, event: ev.Inventory) -> bool:
        """Whether the backend had seen the job's last command when it made the inventory."""
        command = self.outstanding.get(slot)
        return command is None or command[0].seq <= event.seen_up_to

    def _stray(self, entry: ev.Observed) -> None:
        """An incarnation that is over for us but still runs: end it."""
        slot = self.columns.slot_of.get(entry.job_id)
        newer = slot is not None and entry.generation > self.columns.ints["generation"][slot]
        if entry.exit_code is None and not entry.stopped and not newer:
            self._commands.append(Stop(entry.job_id, entry.generation, self._next_seq(), "superseded"))

    def _reconcile(self, slot: int, entry: ev.Observed, event: ev.Inventory) -> None:
        job_id, generation = entry.job_id, entry.generation
        if entry.exit_code is not None:
            self._on_exited(ev.Exited(job_id, generation, entry.exit_code, entry.work))
            return
        if entry.stopped:
            if int(self.columns.ints["phase"][slot]) in (P.STOPPING, P.LOST):
                self._on_stopped(ev.Stopped(job_id, generation, entry.work))
            elif self._heard(slot, event):
                self._gone(slot, entry.work)
            return
        phase = self.columns.ints["phase"][slot]
        if phase == P.LAUNCHING and not entry.starting:
            self._on_started(ev.Started(job_id, generation, entry.work, self.now_ms))
        elif phase == P.RESIZING:
            command = self.outstanding.get(slot)
            if command is not None and entry.allocation_seq >= command[0].seq:
                self._on_resized(ev.Resized(job_id, generation, command[0].seq, entry.work, self.now_ms))
        elif phase == P.LOST and self.columns.ints["after_stop"][slot] == P.PENDING:
            parts = self.held[slot].parts
            if all(self.up[p.node] and p.node in event.nodes for p in parts) and self.columns.allocations[slot]:
                self._find(slot, entry)
        elif phase == P.LOST:
            parts = self.held[slot].parts
            if all(self.up[p.node] and p.node in event.nodes for p in parts):
                self.lost.discard(slot)
                self.columns.ints["lease_end_ms"][slot] = NEVER_MS
                self._stop(slot, int(self.columns.ints["after_stop"][slot]), "cancelled or paused while cut off")

    def _find(self, slot: int, entry: ev.Observed) -> None:
        self.lost.discard(slot)
        self.columns.ints["lease_end_ms"][slot] = NEVER_MS
        self._move(slot, T.FIND)
        self.columns.floats["work_done"][slot] = entry.work
        if self.columns.ints["first_start_ms"][slot] < 0:
            self.columns.ints["first_start_ms"][slot] = self.now_ms
        self._set_rate(slot)
        # A resize that was under way when the node was lost may or may not have happened: what is held
        # covers both, so plan with the union and let the policy shrink it.
        held = self.held[slot]
        if self.columns.allocations[slot] != held:
            self._gone_to_requeue(slot)

    def _gone_to_requeue(self, slot: int) -> None:
        self._drop_allocation(slot)
        self._stop(slot, P.PENDING, "its size is uncertain after a cut")


def _in_place(spec: JobSpec, old: Allocation | None, new: Allocation) -> bool:
    """Whether a running job can be brought to its new allocation without stopping it."""
    if old is None or not spec.elastic or old.accelerator != new.accelerator or old.share_milli != new.share_milli:
        return False
    before = {(part.node, device) for part in old.parts for device in part.devices}
    return any((part.node, device) in before for part in new.parts for device in part.devices)


_HANDLERS: dict[type, Callable[[Engine, Any], None]] = {
    ev.JobSubmitted: Engine._on_submitted,
    ev.JobCancelled: Engine._on_cancelled,
    ev.JobPaused: Engine._on_paused,
    ev.JobResumed: Engine._on_resumed,
    ev.JobRangeChanged: Engine._on_range_changed,
    ev.PolicyChanged: Engine._on_policy_changed,
    ev.Woken: Engine._on_woken,
    ev.Started: Engine._on_started,
    ev.StartFailed: Engine._on_start_failed,
    ev.Resized: Engine._on_resized,
    ev.Progressed: Engine._on_progressed,
    ev.Exited: Engine._on_exited,
    ev.Stopped: Engine._on_stopped,
    ev.NodeJoined: Engine._on_node_joined,
    ev.NodeLost: Engine._on_node_lost,
    ev.Inventory: Engine._on_inventory,
}

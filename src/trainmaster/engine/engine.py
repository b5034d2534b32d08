"""The engine: a synchronous state machine. Events go in, commands come out; it reads no clock.

It owns the jobs' life cycle, asks the policy when something changed that matters, verifies the plan, and
sends commands only when the devices they need are physically free. The work is done by the functions of
the modules beside this one; here is the order in which they act.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from trainmaster.core.arrays import Ints
from trainmaster.core.codes import NOT_MADE, SOUND
from trainmaster.core.engine.decision_pass import Pass
from trainmaster.core.engine.engine_core import (
    carry_out,
    decision_is_due,
    end_backoffs,
    launch_reserved,
    move,
    next_wake_ms,
    resend,
)
from trainmaster.core.engine.placement import Placer
from trainmaster.core.pass_decision import decide_by
from trainmaster.core.state.plan_arrays import PlanArrays
from trainmaster.engine import (
    admission_gate,
    backend_reports,
    elastic_fill,
    foreign_usage,
    grow,
    halts,
    inventory,
    learned_speeds,
    node_sets,
    nodes,
    preemption_notice,
    priority_bands,
    user_events,
)
from trainmaster.engine.lifecycle import Trigger
from trainmaster.engine.ports import Estimator
from trainmaster.engine.queue_reasons import QueueReasons
from trainmaster.engine.records import Ended, Notice, PairVerdict, Settings
from trainmaster.engine.state import State
from trainmaster.engine.verify import PlanError, apply_plan, in_words
from trainmaster.model import event as ev
from trainmaster.model.cluster import Cluster
from trainmaster.model.command import Command
from trainmaster.model.job import PhaseCode
from trainmaster.model.job_table import JobTable
from trainmaster.model.plan import Plan
from trainmaster.model.policy import Policy, pass_of, traits_of
from trainmaster.model.policy_state import EMPTY_POLICY_STATE, PolicyState
from trainmaster.model.reasons import Why, why_phase
from trainmaster.model.snapshot import Snapshot

__all__ = ["Ended", "Engine", "Settings"]


AGAIN_MS = 60_000
"""After a plan that was refused, the policy is asked again at the latest so long after."""


class Engine(State):
    """See the module's text. `step` is the only way in; `drain_ended` tells which jobs are over."""

    def __init__(self, cluster: Cluster, policy: Policy, estimator: Estimator, settings: Settings) -> None:
        super().__init__(cluster, policy, estimator, settings)
        self.queue_reasons: QueueReasons | None = None
        """Why jobs wait, if a compiled pass decided last; else the columns have it."""
        self._pass: tuple[Policy, Pass | None] | None = None
        """Of which policy it is."""
        self._plan = PlanArrays()

    def step(self, now_ms: int, *events: ev.Event) -> list[Command]:
        """Take events that are known at `now_ms`, decide if needed, and return what backends shall do."""
        assert now_ms >= self.now_ms, "time runs forward"
        self.now_ms = now_ms
        self.columns.version += 1
        self.commands.clear()
        for event in events:
            HANDLERS[type(event)](self, event)
        if self.halted:
            halts.give_up(self)
        if self.doubts:
            nodes.expire_leases(self)
        if self.short:
            foreign_usage.make_good(self)
        if now_ms >= self.next_backoff_ms:
            end_backoffs(self)
        if self.notices:
            preemption_notice.review(self)
        if self.no_room:
            admission_gate.hold_back_without_room(self)
        while True:
            if self.gate_changed:
                admission_gate.review(self)
            if self.reserved.n:
                launch_reserved(self)
            self.own_rounds = traits_of(self.policy).own_rounds
            if (self.changed or now_ms >= self.wake_at_ms) and decision_is_due(self):
                self.decide()
            if not self.gate_changed:  # else the plan rejected a job that others wait for, or make room for
                break
        if now_ms >= self.next_resend_ms:
            resend(self)
        return self.drain_commands()

    def drain_ended(self) -> list[Ended]:
        ended, self.ended = self.ended, []
        return ended

    def drain_notices(self) -> list[Notice]:
        notices, self.new_notices = self.new_notices, []
        return notices

    def drain_pair_verdicts(self) -> list[PairVerdict]:
        verdicts, self.pair_verdicts = self.pair_verdicts, []
        return verdicts

    def pending_commands(self) -> list[Command]:
        """Commands without an answer, in the order of their issue: what a restart sends first."""
        return [command for command, _ in self.outstanding.values()]

    @property
    def next_wake_ms(self) -> int:
        """When the engine wants a `Woken` event at the latest (NEVER_MS: no need)."""
        return next_wake_ms(self)

    def lease_end_ms(self) -> int:
        return nodes.next_lease_end_ms(self)

    def snapshot(self) -> Snapshot:
        """What a policy sees now."""
        columns = self.columns
        table = JobTable(columns, self.now_ms)
        if self.gated:
            shown = np.ones(columns.capacity, np.bool_)
            shown[list(self.gated)] = False
            table.job_indices = table.job_indices[shown[table.job_indices]]
        memo = EMPTY_POLICY_STATE
        if self.memo_values or self.memo_columns:
            names = sorted(self.memo_columns)
            memo = PolicyState(self.memo_values, {name: columns.memo[name][table.job_indices] for name in names})
        s = self.settings
        return Snapshot(
            version=columns.version,
            now_ms=int(self.now_ms),  # a NumPy number where the core is not compiled
            cluster=self.cluster,
            up=self.up,
            free_capacity=self.planned,
            jobs=table,
            memo=memo,
            placement=s.placement,
            round_ms=s.round_ms,
            seed=s.seed,
            entity_weights=self.entity_weights,
            entity_policies=self.entity_policies,
            restart_cost_ms=s.restart_cost_ms,
            resize_cost_ms=s.resize_cost_ms,
            pair_source=getattr(self.estimator, "pair_kept", None),
            pairs_version=getattr(self.estimator, "pairs_version", 0),
            node_sets=node_sets.masks(self) if self.node_sets else {},
        )

    def placer(self) -> Placer:
        """Places gangs as the settings say, each on the nodes that its job may use."""
        placer = Placer(int(self.settings.placement), self.nodes)
        masks = node_sets.masks(self)
        if masks:
            for name in masks:
                self.columns.intern_node_set(name)
            everywhere = np.ones(len(self.cluster.nodes), np.bool_)
            placer.set_masks(np.stack([masks.get(name, everywhere) for name in self.columns.node_set_names]))
        return placer

    def reasons(self) -> tuple[Ints, Ints]:
        """Why each pending job waits (0 for the others) and which job it waits for (-1: none), by job index."""
        ints = self.columns.ints
        why, blocker = ints["reason"] * (ints["phase"] == PhaseCode.PENDING), ints["blocker"].copy()
        if self.queue_reasons is not None:
            self.queue_reasons.write(self.columns, why, blocker)
        for job_index, details in self.details.items():  # preempted by a higher band, and not decided on since
            waits = why[job_index] == Why.CAPACITY and ints["reasoned"][job_index] == self.decisions
            if waits and "priority" in details:
                why[job_index] = Why.PRIORITY
        return why, blocker

    def why(self, job_index: int) -> Why:
        """Why the job of a job index waits; NONE when it does not."""
        return self.why_among(job_index, self.reasons()[0])

    def why_among(self, job_index: int, why: Ints) -> Why:
        """The same, where the reasons of all are known."""
        phase = int(self.columns.ints["phase"][job_index])
        if phase == PhaseCode.PENDING and job_index in self.gated:
            return self.gated[job_index]
        return why_phase(phase) or Why(int(why[job_index]))

    def reason_details(self, job_index: int) -> Mapping[str, Any] | None:
        """The figures behind the reason, as the policy (or the engine itself) stated them."""
        return admission_gate.details(self, job_index) if job_index in self.gated else self.details.get(job_index)

    # -- deciding ------------------------------------------------------------------------------------

    def decide(self) -> None:
        """Ask the policy, verify its plan and carry it out; then offer idle GPUs to elastic jobs."""
        if not self._decide_by_pass():
            self._decide_by_plan()
        if self._fills:
            self._fill()

    @property
    def _fills(self) -> bool:
        return self.settings.elastic_fill and traits_of(self.policy).fixed_sizes

    @property
    def in_bands(self) -> bool:
        """Whether there are jobs of several priorities, and the policy leaves it to the engine what that means."""
        priority = self.columns.ints["priority"][self.columns.rows]
        return bool((priority != priority[:1]).any()) and not traits_of(self.policy).own_priority

    def _fill(self) -> None:
        view = self.snapshot()
        plan = elastic_fill.fill(view, self.reasons()[0][view.jobs.job_indices]) if len(view.jobs) else None
        if plan is None:
            return
        try:
            arrays = apply_plan(view, plan, self.planned)
        except PlanError as error:
            self._refuse(error)
            return
        self._carry_out(arrays)
        self.columns.version += 1

    def _ask(self, view: Snapshot) -> Plan:
        """The policy's decision, with every job on nodes that it may use."""
        plan = self.policy.decide(view)
        return node_sets.mended(view, plan) if view.node_sets else plan

    def _decide_by_plan(self) -> None:
        in_bands = self.in_bands
        if not in_bands and priority_bands.MEMORY in self.memo_values and len(self.columns.rows):
            band = int(self.columns.ints["priority"][self.columns.rows[0]])
            self.memo_values = priority_bands.memory_of(self.memo_values, band)
        if not self.settings.notice_ms:
            self._make_plan(in_bands)
            return
        with preemption_notice.spared(self) as give_notice:
            self._make_plan(in_bands, give_notice)

    def _make_plan(self, in_bands: bool, give_notice: Callable[[Snapshot, Plan], bool] = lambda *_: False) -> None:
        while True:
            view = self.snapshot()
            if len(view.jobs) == 0:
                return
            clock = self._decide_clock
            begun = clock() if clock else 0.0
            plan = priority_bands.decide(self._ask, view, self.settings.min_run_ms) if in_bands else self._ask(view)
            if clock:
                self.decide_cpu_s += clock() - begun
            if self._fills:
                plan = elastic_fill.spared(view, plan)
            if not give_notice(view, plan):
                break
        self.decisions += 1
        try:
            arrays = apply_plan(view, plan, self.planned)
        except PlanError as error:
            self._refuse(error)
            return
        self._apply(view, plan, arrays)

    def _decide_by_pass(self) -> bool:
        """Let a queue's compiled pass decide. False: there is none, or not all jobs are its business."""
        columns = self.columns
        if self.gated or self.in_bands or (self._fills and columns.ints["elastic"][columns.rows].any()):
            # A pass sees all jobs, as one band, and stops gangs that may shrink.
            self._pass, columns.logs_phases = None, False
            return False
        if self._pass is None or self._pass[0] is not self.policy:
            self._pass = self.policy, pass_of(self.policy)
            columns.logs_phases = False
            if self._pass[1] is not None and self._pass[1].for_waiting:
                self._pass[1].follow(columns)
        decision, plan = self._pass[1], self._plan
        if decision is None or not decision.for_waiting:
            return False
        if self.settings.notice_ms and getattr(decision, "preemptive", True) and len(preemption_notice.costly(self)):
            self._pass, columns.logs_phases = None, False
            return False
        clock = self._decide_clock
        begun = clock() if clock else 0.0
        rule = decide_by(decision, self, self.placer(), plan)
        if clock:
            self.decide_cpu_s += clock() - begun
        if rule == SOUND:
            self.queue_reasons = QueueReasons.of(plan, columns, self.decisions, self.now_ms)
        elif rule != NOT_MADE:
            self._refuse(in_words(columns, plan, rule))
        return rule != NOT_MADE

    def _refuse(self, why: object) -> None:
        """Nothing of a bad plan is carried out; the jobs keep what they have and the operator is told. The policy is
        asked again: it may be the last thing that happens."""
        self.plans_refused += 1
        self.wake_at_ms = self.now_ms + AGAIN_MS
        self.notes.append(f"plan refused: {why}")

    def _apply(self, view: Snapshot, plan: Plan, arrays: PlanArrays) -> None:
        ints = self.columns.ints
        if self.queue_reasons is not None:  # jobs that this plan does not speak of keep what the last pass said
            ints["reason"][:], ints["blocker"][:] = self.reasons()
            self.queue_reasons = None
        job_indices = view.jobs.job_indices
        if plan.wake_at_ms is not None and plan.wake_at_ms > self.now_ms:
            self.wake_at_ms = plan.wake_at_ms
        ints["reason"][job_indices], ints["reasoned"][job_indices] = plan.why, self.decisions
        blocker = plan.blocker
        ints["blocker"][job_indices] = -1 if blocker is None else np.where(blocker >= 0, job_indices[blocker], -1)
        if self.details or plan.details:
            self.details = {int(job_indices[row]): details for row, details in plan.details.items()}
        for row in plan.admissions:
            ints["admitted"][job_indices[row]] = 1
        self.remember(plan.memo, job_indices)
        self.notes.extend(plan.notes)
        for row, rejection in sorted(plan.rejections.items()):
            job_index = int(job_indices[row])
            if self.named:
                self.rejections[job_index] = rejection
            else:
                self.rejected[int(ints["number"][job_index])] = rejection
            move(self, job_index, Trigger.REJECT)
        self._carry_out(arrays)
        self.columns.version += 1

    def _carry_out(self, arrays: PlanArrays) -> None:
        for k in range(arrays.jobs.n):
            carry_out(self, arrays.jobs.values[k], arrays.flat, arrays.first.values[k])
        if arrays.jobs.n and self.reserved.n:
            launch_reserved(self)

    def remember(self, memo: PolicyState, job_indices: Any) -> None:
        """Keep what a policy wants to see again; `job_indices` are those of the rows that it saw."""
        self.memo_values = memo.values
        for name, column in memo.columns.items():
            values = np.asarray(column, np.float64)
            store = self.columns.memo.get(name)
            if store is None or store.shape[1:] != values.shape[1:]:
                store = self.columns.memo[name] = np.zeros((self.columns.capacity, *values.shape[1:]))
            store[job_indices] = values
        self.memo_columns = set(memo.columns)


HANDLERS: dict[type, Callable[[Engine, Any], None]] = {
    ev.JobSubmitted: user_events.submitted,
    ev.JobCancelled: user_events.cancelled,
    ev.JobPaused: user_events.paused,
    ev.JobResumed: user_events.resumed,
    ev.JobRangeChanged: user_events.size_range_changed,
    ev.JobTermsChanged: user_events.terms_changed,
    ev.JobRoomChanged: admission_gate.room_changed,
    ev.JobHalted: halts.halted,
    ev.EntityChanged: admission_gate.entity_changed,
    ev.PolicyChanged: user_events.policy_changed,
    ev.Woken: user_events.woken,
    ev.SpeedsLearned: learned_speeds.told,
    ev.Started: backend_reports.started,
    ev.StartFailed: backend_reports.start_failed,
    ev.Resized: backend_reports.resized,
    ev.Progressed: backend_reports.progressed,
    ev.Exited: backend_reports.exited,
    ev.Stopped: backend_reports.stopped,
    ev.NodeJoined: nodes.joined,
    ev.NodeSet: node_sets.told,
    ev.ClusterGrew: grow.grew,
    ev.NodeUsed: foreign_usage.used,
    ev.NodeLost: nodes.lost,
    ev.Inventory: inventory.taken,
}

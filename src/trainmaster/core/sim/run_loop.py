"""A run from event to event: the simulated backend, the engine's functions and a policy's pass in one compiled loop.

It serves every policy and every world. What needs Python is returned as a code, and `go` goes on from there: a decision
of a policy without a pass, a report or an arrival that has a name or more to say than numbers, nodes that fail, leases.
"""

from __future__ import annotations

from trainmaster.core.codes import NEVER_MS, NOT_MADE, SOUND
from trainmaster.core.engine.decision_pass import Pass
from trainmaster.core.engine.engine_core import (
    EngineCore,
    decision_is_due,
    end_backoffs,
    exited,
    is_current,
    launch_reserved,
    next_wake_ms,
    progressed,
    resend,
    resized,
    start_failed,
    started,
    stopped,
)
from trainmaster.core.engine.placement import Placer
from trainmaster.core.pass_decision import decide_by
from trainmaster.core.sim.arrivals import Arrivals, submit
from trainmaster.core.sim.backend import SimBackend
from trainmaster.core.sim.run_codes import (
    AT_ADVANCE,
    AT_BACKOFFS,
    AT_BEGIN,
    AT_COMMANDS,
    AT_DECISION,
    AT_LEASES,
    AT_NEXT,
    AT_REPORTS,
    AT_RESEND,
    AT_SUBMIT,
    DECIDE,
    FAIL_NODES,
    GATE,
    HEARD,
    LEASES,
    OVER,
    PAUSED_RUN,
    REPORT,
    RESTLESS,
    SENT,
    SUBMIT,
)
from trainmaster.core.state.message_kinds import EXITED, OTHER, PROGRESSED, RESIZED, START_FAILED, STARTED, STOPPED
from trainmaster.core.state.messages import Messages
from trainmaster.core.state.plan_arrays import PlanArrays


class RunLoop:
    """`decision`: the policy's pass (None: Python decides); `watched`: Python wants to see every report and command."""

    def __init__(
        self,
        e: EngineCore,
        backend: SimBackend,
        arrivals: Arrivals,
        decision: Pass | None,
        placer: Placer,
        watched: bool,
    ) -> None:
        self.e, self.backend, self.arrivals, self.decision = e, backend, arrivals, decision
        self.placer, self.plan, self.watched = placer, PlanArrays(), watched
        self.now_ms = self.events = self.idle = self.still = self.report_at = 0
        self.stage = AT_NEXT
        self.n_jobs = arrivals.n
        """After so many ends it is over."""
        self.failure_ms = NEVER_MS
        """When nodes fail or come back next."""
        self.steps_at_once_max = self.idle_max = NEVER_MS
        """Steps at one and the same moment, and wakes in which nothing happens, after which a run ends."""
        self.until_over = self.until_decided = NEVER_MS
        """Pause when so many jobs are over, or so many decisions made."""

    def go(self) -> int:
        """Go on until Python is needed; says for what."""
        e, backend, arrivals = self.e, self.backend, self.arrivals
        while True:
            if self.stage == AT_NEXT:
                if e.n_over >= self.n_jobs:
                    return OVER
                if e.n_over >= self.until_over or e.decisions >= self.until_decided:
                    return PAUSED_RUN
                upcoming_ms = min(min(backend.next_due_ms(), next_wake_ms(e)), self.failure_ms)
                if arrivals.next < arrivals.n:
                    upcoming_ms = min(upcoming_ms, arrivals.submit_ms[arrivals.next])
                if upcoming_ms >= NEVER_MS // 4:
                    return OVER
                self.now_ms = max(self.now_ms, upcoming_ms)
                self.stage = AT_ADVANCE
                if self.failure_ms <= self.now_ms:
                    return FAIL_NODES
            if self.stage == AT_ADVANCE:
                code = self._advance()
                if code:
                    return code
                if self.stage == AT_NEXT:
                    continue
                if self.watched:
                    return HEARD
            if self.stage == AT_BEGIN:
                e.now_ms = self.now_ms
                e.columns.version += 1
                e.commands.clear()
                self.report_at = 0
                self.stage = AT_REPORTS
            if self.stage == AT_REPORTS:
                while self.report_at < backend.reports.n:
                    self.report_at += 1
                    if not handle(e, backend.reports, self.report_at - 1):
                        return REPORT
                backend.reports.clear()
                self.stage = AT_SUBMIT
            if self.stage == AT_SUBMIT:
                while arrivals.next < arrivals.n and arrivals.submit_ms[arrivals.next] <= self.now_ms:
                    if e.named:
                        return SUBMIT
                    number, capacity = arrivals.next, e.columns.capacity
                    backend.arrived(submit(e, arrivals), number)
                    if e.columns.capacity != capacity and self.decision is not None:
                        self.decision.store(e)  # arrays have grown
                        self.decision.bind(e)
                self.stage = AT_LEASES
            if self.stage == AT_LEASES:
                self.stage = AT_BACKOFFS
                if e.doubts or e.short:
                    return LEASES
            if self.stage == AT_BACKOFFS:
                if self.now_ms >= e.next_backoff_ms:
                    end_backoffs(e)
                self.stage = AT_DECISION
            if self.stage == AT_DECISION:
                if e.gate_changed:
                    return GATE
                if e.reserved.n:
                    launch_reserved(e)
                self.stage = AT_RESEND
                due = (e.changed or self.now_ms >= e.wake_at_ms) and decision_is_due(e)
                if due and not self._decide():
                    return DECIDE
            if self.stage == AT_RESEND:
                if e.gate_changed:
                    self.stage = AT_DECISION
                    continue
                if self.now_ms >= e.next_resend_ms:
                    resend(e)
                self.stage = AT_COMMANDS
                if self.watched:
                    return SENT
            if self.stage == AT_COMMANDS:
                self._perform()
                self.stage = AT_NEXT

    def _advance(self) -> int:
        """Let the world go on; nothing may have happened. Returns why the run cannot go on (0: it can)."""
        e, backend, arrivals = self.e, self.backend, self.arrivals
        backend.advance_rows(self.now_ms)
        n_events, k = backend.reports.n, arrivals.next
        while k < arrivals.n and arrivals.submit_ms[k] <= self.now_ms:
            n_events += 1
            k += 1
        self.events += n_events
        if n_events == 0 and next_wake_ms(e) > self.now_ms:
            self.stage = AT_NEXT  # the end of an attempt that was stopped before: nobody hears of it
            return 0
        self.still = self.still + 1 if self.now_ms == e.now_ms else 0
        if self.still > self.steps_at_once_max:
            return RESTLESS
        self.idle = 0 if n_events else self.idle + 1
        if self.idle > self.idle_max:
            return OVER
        self.stage = AT_BEGIN
        return 0

    def _decide(self) -> bool:
        """Decide by the pass and carry its plan out. False: Python has to."""
        if self.decision is None:
            return False
        rule = decide_by(self.decision, self.e, self.placer, self.plan)
        if rule == NOT_MADE:
            return False
        if rule != SOUND:
            raise AssertionError(f"a pass broke a rule for job {self.plan.jobs.values[self.plan.broken]}")
        return True

    def _perform(self) -> None:
        commands = self.e.commands
        for k in range(commands.n):
            if commands.kind[k] != OTHER:
                self.backend.perform_row(
                    commands.kind[k],
                    commands.job[k],
                    commands.generation[k],
                    commands.seq[k],
                    commands.numbers,
                    commands.extra[k],
                )
        commands.clear()


def handle(e: EngineCore, rows: Messages, k: int) -> bool:
    """Take a report; the fence comes first. False: it has more to say than numbers."""
    kind, i = rows.kind[k], rows.job[k]
    if kind == OTHER:
        return False
    if i < 0 or not is_current(e, i, rows.generation[k]):
        return True
    if kind == STARTED:
        started(e, i, rows.work[k], rows.at_ms[k])
    elif kind == EXITED:
        exited(e, i, rows.code[k], rows.work[k])
    elif kind == STOPPED:
        if rows.extra[k] >= 0 and rows.code[k] > 0:
            return False
        stopped(e, i, rows.work[k])
    elif kind == RESIZED:
        resized(e, i, rows.seq[k], rows.work[k], rows.at_ms[k])
    elif kind == PROGRESSED:
        if e.named:
            return False
        progressed(e, i, rows.work[k], rows.rate[k])
    elif kind == START_FAILED:
        start_failed(e, i, rows.code[k])
    return True

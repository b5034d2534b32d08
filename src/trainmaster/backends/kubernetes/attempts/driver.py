"""Drives attempts: carries out what they want, feeds them what launchers say, and lets time pass for them."""

from __future__ import annotations

import logging
import math
import time

from trainmaster.backends.kubernetes.attempts.observations import RunKey
from trainmaster.backends.kubernetes.attempts.pod_actions import PodWork
from trainmaster.backends.kubernetes.attempts.pod_attempt import Member, Run
from trainmaster.backends.kubernetes.attempts.registry import AttemptRegistry
from trainmaster.backends.kubernetes.attempts.reports import RunReports
from trainmaster.backends.kubernetes.attempts.slow_starts import SlowStarts
from trainmaster.gang.actions import (
    START_FAILED,
    Action,
    Attached,
    Detached,
    Over,
    Report,
    Resized,
    Running,
    Send,
    Silent,
    Start,
    Terminate,
)
from trainmaster.gang.protocol import EXIT_CANNOT_RUN, EXIT_NOT_RUN, Ended, Hello, Message, Progress, StopNotice

log = logging.getLogger(__name__)
REMEMBER_S = 120.0
"""So long after its end was passed on, an attempt without pods stays in inventories."""


class RunDriver:
    """See also `agent_hub.HubListener`, which it is."""

    def __init__(self, registry: AttemptRegistry, reports: RunReports, work: PodWork, slow: SlowStarts) -> None:
        self._registry = registry
        self._reports = reports
        self._work = work
        self._slow = slow
        work.advance = slow.advance = self.advance

    # -- attempts ----------------------------------------------------------------------------------------

    def advance(self, run: Run) -> None:
        """Let the attempt draw every conclusion that can be drawn now, and do what it wants."""
        if self._registry.halted or self._registry.adopting or run.over:
            return
        if run.attempt.outcome is not None:
            self._give_up_stranded(run)
        while not run.over and (actions := run.attempt.advance(time.monotonic())):
            for action in actions:
                self._carry_out(run, action)
        self._work.tend(run)
        if run.timer is not None:
            run.timer.cancel()
        due_s = run.attempt.next_due_s()
        run.timer = (
            None
            if due_s == math.inf or run.over
            else self._registry.loop.call_later(max(0.0, due_s - time.monotonic()) + 0.001, self.advance, run)
        )

    def advance_all(self) -> None:
        for run in list(self._registry.runs.values()):
            with self._registry.faults.alone(f"attempt of {run.key.job_id}"):
                self.advance(run)

    def _carry_out(self, run: Run, action: Action) -> None:
        launchers, key = self._registry.launchers, run.key
        if isinstance(action, Start):
            member = run.enlist(action)
            if run.facts.launcher:
                launchers.admit(key, member.name)
        elif isinstance(action, Send):
            launchers.send(key, action.member, action.message)
        elif isinstance(action, Terminate):
            launchers.send(key, action.member, StopNotice(action.why, action.grace_s))
            self._work.terminate(run, run.members[action.member], action.grace_s)
        else:
            self._report(run, action)

    def _report(self, run: Run, report: Report) -> None:
        what = report.what
        if isinstance(what, Resized):
            self._reports.resized(run, what.seq)
        elif isinstance(what, Silent):
            self._reports.silent(run, what.nodes)
        elif isinstance(what, Over):
            self._slow.forget(run)
            if what.outcome.kind == START_FAILED:
                self._slow.refused(run, what.outcome.why)
            self._registry.launchers.close_run(run.key)
            self._reports.ended(run)
            if what.outcome.code and not run.started:
                log.info("attempt %d of %s:\n%s", run.key.generation, run.key.job_id, run.attempt.story())
            self._registry.loop.call_later(REMEMBER_S, self._forget, run.key)
        else:
            self.tell_started(run)

    def tell_started(self, run: Run) -> None:
        self._slow.forget(run)
        self._reports.started(run)

    def stranded(self, run: Run) -> list[Member]:
        """Members on nodes whose kubelets are silent that never had a lease: their commands have not begun, and will
        not once they are fenced."""
        if not run.facts.launcher:
            return []
        leased_ms, is_ready = self._registry.launchers.last_renewed_ms, self._registry.watch.is_ready
        bound = [member for member in run.alive if member.bound and not is_ready(member.node)]
        return [member for member in bound if leased_ms(run.key, member.name) is None]

    def _give_up_stranded(self, run: Run) -> None:
        for member in [member for member in self.stranded(run) if member.delete_asked or member.gone]:
            self._registry.launchers.fence(run.key, [member.name])
            run.certainly_over(member, why="its node is not ready")

    def _forget(self, key: RunKey) -> None:
        """An attempt that is over and has no pods left; its generation stays fenced."""
        run = self._registry.runs.get(key)
        if run is None:
            return
        if all(member.pod is None or member.gone for member in run.members.values()):
            del self._registry.runs[key]
            self._registry.fence(key)
        elif not self._registry.is_newest(key):
            self._registry.loop.call_later(REMEMBER_S, self._forget, key)

    # -- launchers ---------------------------------------------------------------------------------------

    def attached(self, key: RunKey, member: str, host: str, begun: bool) -> None:
        run, found = self._find(key, member)
        if run is None or found is None:
            return
        if begun:
            run.attempt.on_member(member, Running())
        run.attempt.on_member(member, Attached(host))
        self.advance(run)

    def detached(self, key: RunKey, member: str) -> None:
        run, found = self._find(key, member)
        if run is not None and found is not None:
            run.attempt.on_member(member, Detached())
            self.advance(run)

    def said(self, key: RunKey, member: str, message: Message) -> None:
        run, found = self._find(key, member)
        if run is None or found is None:
            return
        if isinstance(message, Ended):
            self._ended(run, found, message)
        else:
            found.heard = found.heard or isinstance(message, Hello)
            run.attempt.on_message(member, message)
        if isinstance(message, Progress):
            self._reports.progressed(run)
        else:
            self.advance(run)

    def lapsed(self, key: RunKey, member: str) -> None:
        """No renewal for so long that it has certainly ended itself."""
        run, found = self._find(key, member)
        if run is None or found is None:
            return
        if found.alive:
            run.certainly_over(found)
            if found.pod is not None and not found.gone:
                if self._registry.launchers.has_spoken(key, member):
                    log.warning("%s went silent: nothing is started on %s for now", found.pod_name, found.node)
                    self._registry.watch.distrust(found.node)
                self._work.delete_by_force(run, found)
        self.advance(run)

    def _ended(self, run: Run, member: Member, message: Ended) -> None:
        if message.started:
            code = message.code
        else:  # its command was not started, and will not be: that is an end, too
            code = EXIT_NOT_RUN
            if message.code == EXIT_CANNOT_RUN and not run.started and not member.gone and not member.leaving:
                run.attempt.fail_start(f"{member.name}: {message.why}")
        run.said_ended(member, code, message.why, self._registry.watch.is_ready(member.node))

    def _find(self, key: RunKey, member: str) -> tuple[Run | None, Member | None]:
        run = self._registry.runs.get(key)
        return run, None if run is None else run.members.get(member)

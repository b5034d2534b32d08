"""What follows from what is known of a run: that it has started, that a resize is done, that it is over."""

from __future__ import annotations

import time
from collections.abc import Callable

from trainmaster.backends.kubernetes.facts import RunKey
from trainmaster.backends.kubernetes.run import Member, Run
from trainmaster.backends.kubernetes.run_book import RunBook
from trainmaster.backends.kubernetes.run_reports import RunReports
from trainmaster.backends.kubernetes.slow_starts import SlowStarts

REMEMBER_S = 120.0
"""So long after its end was passed on, an incarnation without pods stays in inventories."""
RELEASE_S = 5.0
"""So long after the last container has ended, a kubelet that does not say that its devices are free is believed to have
freed them."""


class Conclusions:
    def __init__(self, book: RunBook, reports: RunReports, slow: SlowStarts) -> None:
        self._book = book
        self._reports = reports
        self._slow = slow
        self.tend: Callable[[Run], None] = lambda _: None
        """Lets be done what is left to do (see `pod_work`)."""

    def judge(self, run: Run) -> None:
        """Draw every conclusion that can be drawn now, and let the rest be done."""
        book = self._book
        if book.halted or book.adopting or run.over:
            return
        if run.restarting and not run.alive:
            run.restarting = run.begun = False
        dead = run.conclude(run.facts.spec.max_attempts * 10)
        if run.ending is None:
            for member in dead:
                assert member.end is not None
                member.leaving = True
                run.replaced += 1
                book.launchers.dismiss(run.key, [member.name], member.end.why, died=True)
            if not run.started and run.is_started(book.options.hello_wait_s, time.monotonic()):
                run.started = True
            if run.started and not run.told_started and run.seq:
                self.tell_started(run)
            if run.started and run.seq > run.applied_seq and run.is_applied():
                run.applied_seq = run.seq
                self._reports.resized(run, run.seq)
        elif not run.creating:
            self._check_over(run)
        if not run.over:
            self.tend(run)

    def judge_all(self) -> None:
        for run in list(self._book.runs.values()):
            self.judge(run)

    def tell_started(self, run: Run) -> None:
        self._slow.forget(run)
        self._reports.started(run)

    def stranded(self, run: Run) -> list[Member]:
        """Members on nodes whose kubelets are silent that never had a lease: their commands have not begun, and will
        not once they are fenced."""
        if not run.facts.launcher:
            return []
        leased_ms, is_ready = self._book.launchers.last_renewed_ms, self._book.watch.is_ready
        bound = [member for member in run.alive if member.bound and not is_ready(member.slot.node)]
        return [member for member in bound if leased_ms(run.key, member.name) is None]

    def _check_over(self, run: Run) -> None:
        for member in [member for member in self.stranded(run) if member.delete_asked or member.gone]:
            self._book.launchers.fence(run.key, [member.name])
            run.certainly_over(member, why="its node is not ready")
        alive = run.alive
        silent = run.silent_nodes()
        if not alive:
            now_s = time.monotonic()
            run.emptied_s = now_s if run.emptied_s is None else run.emptied_s
            if not run.is_released() and now_s < run.emptied_s + RELEASE_S:
                self._book.loop.call_later(RELEASE_S + 0.01, self.judge, run)
                return
            run.over = True
            run.ended_s = time.monotonic()
            self._slow.forget(run)
            self._book.launchers.close_run(run.key)
            self._reports.ended(run)
            self._book.loop.call_later(REMEMBER_S, self._forget, run.key)
        elif all(member.severed for member in alive) and silent != run.reported_silent:
            run.reported_silent = silent
            self._reports.silent(run, silent)

    def _forget(self, key: RunKey) -> None:
        """A run that is over and has no pods left; its generation stays fenced."""
        run = self._book.runs.get(key)
        if run is None:
            return
        if all(member.pod is None or member.gone for member in run.members.values()):
            del self._book.runs[key]
            self._book.fence(key)
        elif not self._book.is_newest(key):
            self._book.loop.call_later(REMEMBER_S, self._forget, key)

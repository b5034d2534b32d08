"""The engine's commands about TrainingJobs: what a run shall be from now on, or that it shall end.

Commands may come twice, late or out of order; each is answered again if it was answered before.
"""

from __future__ import annotations

from dataclasses import replace

from trainmaster.backends.kubernetes.conclusions import Conclusions
from trainmaster.backends.kubernetes.facts import RunKey
from trainmaster.backends.kubernetes.pod_work import PodWork
from trainmaster.backends.kubernetes.run import Run
from trainmaster.backends.kubernetes.run_book import RunBook
from trainmaster.backends.kubernetes.run_reports import RunReports
from trainmaster.model.command import Command, Launch, Resize, Stop


class Orders:
    def __init__(self, book: RunBook, reports: RunReports, conclusions: Conclusions, work: PodWork) -> None:
        self._book = book
        self._reports = reports
        self._conclusions = conclusions
        self._work = work

    def take(self, command: Command) -> None:
        if isinstance(command, Launch):
            self._launch(command)
        elif isinstance(command, Stop):
            self._stop(command)
        else:
            self._resize(command)

    def expect(self, launch: Launch) -> None:
        """An incarnation that an earlier leader has answered for."""
        key = RunKey(launch.job_id, launch.generation)
        facts = self._book.facts(launch.spec, key, launch.seq)
        if facts is not None:
            run = self._book.enter(Run(key, facts, started=True, told_started=True))
            run.applied_seq = launch.seq
            run.aim(self._book.slots(launch.spec, launch.allocation), launch.seq)

    def _launch(self, command: Launch) -> None:
        key = RunKey(command.job_id, command.generation)
        run = self._book.runs.get(key)
        if run is not None and run.over:
            self._reports.ended(run)
            return
        if run is not None and run.seq >= command.seq:  # it is only said again
            if run.started:
                self._conclusions.tell_started(run)
            elif stranded := self._conclusions.stranded(run):
                # Others there may be heard for days: this gang begins sooner elsewhere.
                why = f"node {stranded[0].slot.node} is not ready"
                run.stop(why)
                self._book.launchers.stop(key, why, run.facts.grace_s)
            self._conclusions.judge(run)
            return
        if self._book.is_fenced(key):
            self._reports.never_was(command)
            return
        facts = self._book.facts(command.spec, key, command.seq)
        if facts is None:
            self._reports.without_object(command)
            return
        slots = self._book.slots(command.spec, command.allocation)
        if run is None:
            run = self._book.enter(Run(key, facts))
            self._fence(RunKey(key.job_id, key.generation - 1))
        else:
            run.facts = replace(facts, seq=max(facts.seq, run.facts.seq))
        if run.seq == 0:
            run.applied_seq = max(run.applied_seq, command.seq)
        run.aim(slots, command.seq)
        if run.started:
            self._conclusions.tell_started(run)
        self._conclusions.judge(run)

    def _stop(self, command: Stop) -> None:
        key = RunKey(command.job_id, command.generation)
        self._book.note(key)
        run = self._book.runs.get(key)
        if run is None:
            self._fence(key)
            self._reports.never_was(command)
            return
        if run.over:
            self._reports.ended(run)
            return
        run.stop(command.why)
        run.reported_silent = frozenset()  # it is asked again, so it is answered again
        self._book.launchers.stop(key, command.why, run.facts.grace_s)
        self._conclusions.judge(run)

    def _resize(self, command: Resize) -> None:
        key = RunKey(command.job_id, command.generation)
        run = self._book.runs.get(key)
        if run is None:
            return  # an inventory tells that it is gone
        if run.over:
            self._reports.ended(run)
            return
        if run.applied_seq >= command.seq:
            self._reports.resized(run, command.seq)
            return
        if run.seq == 0:  # an earlier leader began with it: who is resized has started
            run.started = run.told_started = True
        run.facts = replace(run.facts, seq=max(run.facts.seq, command.seq))
        run.aim(self._book.slots(run.facts.spec, command.allocation), command.seq)
        self._conclusions.judge(run)

    def _fence(self, key: RunKey) -> None:
        """Incarnations up to this one are over for the engine: what is left of them goes."""
        if self._book.is_fenced(key):
            return
        self._book.fence(key)
        runs = self._book.runs
        for old in [old for old in runs if old.job_id == key.job_id and old.generation <= key.generation]:
            run = runs[old]
            left = [m for m in run.members.values() if m.pod is not None and not m.gone]
            if not run.over:
                run.stop("superseded")
                self._conclusions.judge(run)
            elif left:
                self._book.spawn(self._work.delete(run, left))
            else:
                del runs[old]

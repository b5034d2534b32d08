"""The engine's commands about TrainingJobs: what a run shall be from now on, or that it shall end.

Commands may come twice, late or out of order; each is answered again if it was answered before.
"""

from __future__ import annotations

from dataclasses import replace

from trainmaster.backends.kubernetes.attempts.driver import RunDriver
from trainmaster.backends.kubernetes.attempts.observations import RunKey
from trainmaster.backends.kubernetes.attempts.pod_actions import PodWork
from trainmaster.backends.kubernetes.attempts.registry import AttemptRegistry
from trainmaster.backends.kubernetes.attempts.reports import RunReports
from trainmaster.model.command import Command, Launch, Resize, Stop


class CommandHandler:
    def __init__(self, registry: AttemptRegistry, reports: RunReports, driver: RunDriver, work: PodWork) -> None:
        self._registry = registry
        self._reports = reports
        self._driver = driver
        self._work = work

    def take(self, command: Command) -> None:
        if isinstance(command, Launch):
            self._launch(command)
        elif isinstance(command, Stop):
            self._stop(command)
        else:
            self._resize(command)

    def expect(self, launch: Launch) -> None:
        """An attempt that an earlier leader has answered for."""
        key = RunKey(launch.job_id, launch.generation)
        facts = self._registry.facts(launch.spec, key, launch.seq)
        if facts is not None:
            run = self._registry.new_run(key, facts)
            run.attempt.assume_started()
            run.aim(self._registry.seats(launch.allocation), launch.seq, launch=True)

    def _launch(self, command: Launch) -> None:
        key = RunKey(command.job_id, command.generation)
        run = self._registry.runs.get(key)
        if run is not None and run.over:
            self._reports.ended(run)
            return
        if run is not None and run.seq >= command.seq:  # it is only said again
            if run.started:
                self._driver.tell_started(run)
            elif stranded := self._driver.stranded(run):
                # Others there may be heard for days: this gang begins sooner elsewhere.
                run.attempt.stop(f"node {stranded[0].node} is not ready")
            self._driver.advance(run)
            return
        if self._registry.is_fenced(key):
            self._reports.never_was(command)
            return
        facts = self._registry.facts(command.spec, key, command.seq)
        if facts is None:
            self._reports.without_object(command)
            return
        if run is None:
            run = self._registry.new_run(key, facts)
            self._fence(RunKey(key.job_id, key.generation - 1))
        else:
            run.facts = replace(facts, seq=max(facts.seq, run.facts.seq))
        run.aim(self._registry.seats(command.allocation), command.seq, launch=True)
        if run.started:
            self._driver.tell_started(run)
        self._driver.advance(run)

    def _stop(self, command: Stop) -> None:
        key = RunKey(command.job_id, command.generation)
        self._registry.note(key)
        run = self._registry.runs.get(key)
        if run is None:
            self._fence(key)
            if key in self._registry.orphans:
                self._registry.unanswered[key] = command
            else:
                self._reports.never_was(command)
            return
        if run.over:
            self._reports.ended(run)
            return
        run.attempt.stop(command.why)
        self._work.ask_again(run)
        self._driver.advance(run)

    def _resize(self, command: Resize) -> None:
        key = RunKey(command.job_id, command.generation)
        run = self._registry.runs.get(key)
        if run is None:
            return  # an inventory tells that it is gone
        if run.over:
            self._reports.ended(run)
            return
        if run.attempt.applied_seq >= command.seq:
            self._reports.resized(run, command.seq)
            return
        if run.seq == 0:  # an earlier leader began with it: who is resized has started
            run.attempt.assume_started()
        run.facts = replace(run.facts, seq=max(run.facts.seq, command.seq))
        run.aim(self._registry.seats(command.allocation), command.seq)
        self._driver.advance(run)

    def _fence(self, key: RunKey) -> None:
        """Attempts up to this one are over for the engine: what is left of them goes."""
        if self._registry.is_fenced(key):
            return
        self._registry.fence(key)
        runs = self._registry.runs
        for old in [old for old in runs if old.job_id == key.job_id and old.generation <= key.generation]:
            run = runs[old]
            left = [m for m in run.members.values() if m.pod is not None and not m.gone]
            if not run.over:
                run.attempt.stop("superseded")
                self._driver.advance(run)
            elif left:
                self._registry.spawn(self._work.delete(run, left))
            else:
                del runs[old]

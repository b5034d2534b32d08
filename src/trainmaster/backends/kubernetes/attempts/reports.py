"""What the engine is told of attempts: started, resized, ended, and all that is there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from trainmaster.backends.kubernetes.attempts.observations import RunKey
from trainmaster.backends.kubernetes.attempts.pod_attempt import Run
from trainmaster.backends.kubernetes.attempts.pod_objects import output_of
from trainmaster.backends.kubernetes.attempts.pod_writer import QUOTA
from trainmaster.backends.kubernetes.attempts.registry import AttemptRegistry
from trainmaster.gang.actions import EXITED, START_FAILED, STOPPED
from trainmaster.model import event as ev
from trainmaster.model.command import Command, Launch
from trainmaster.model.job import JobId

NAN = float("nan")
PATIENCE = 10
"""Starts in a row that nodes refuse a job; further ones count as its own failures, so that it does not try for ever."""


class RunReports:
    def __init__(
        self, registry: AttemptRegistry, deliver: Callable[[ev.Event], None], now_ms: Callable[[], int]
    ) -> None:
        self._registry = registry
        self._deliver = deliver
        self.now_ms = now_ms
        self._refused: dict[str, int] = {}
        """Refused starts in a row, by job."""

    def tell(self, event: ev.Event) -> None:
        if not self._registry.halted:
            self._deliver(event)

    def started(self, run: Run) -> None:
        saved = run.attempt.work.saved
        self._refused.pop(run.key.job_id, None)
        self.tell(ev.Started(JobId(run.key.job_id), run.key.generation, saved, self.now_ms()))

    def progressed(self, run: Run) -> None:
        work = run.attempt.work
        saved = work.saved if work.checkpoints and math.isfinite(work.saved) else None
        told = (work.done, work.rate, work.loss, work.checkpoints, saved, work.total, run.attempt.elastic)
        if work.known and told != run.told_progress and not run.over:
            run.told_progress = told
            job_id = JobId(run.key.job_id)
            self.tell(ev.Progressed(job_id, run.key.generation, work.done, self.now_ms(), *told[1:]))

    def resized(self, run: Run, seq: int) -> None:
        self.tell(ev.Resized(JobId(run.key.job_id), run.key.generation, seq, run.attempt.work.done, self.now_ms()))

    def ended(self, run: Run) -> None:
        job_id, generation, ending = JobId(run.key.job_id), run.key.generation, run.attempt.outcome
        assert ending is not None
        if ending.kind == START_FAILED:
            node = self._to_blame(run.key, ending.node, ending.why)
            self.tell(ev.StartFailed(job_id, generation, ending.why, node))
        elif ending.kind == EXITED:
            output = _last_output(run, ending.why) if ending.code else ""
            self.tell(ev.Exited(job_id, generation, ending.code, run.attempt.work.saved, ending.why, output))
        else:
            self.tell(ev.Stopped(job_id, generation, run.attempt.work.saved))
        spec, granted = run.facts.spec, run.n_granted
        if granted is not None and spec.workers_min <= granted < spec.workers_max:
            self.tell(ev.JobRangeChanged(job_id, spec.workers_min, granted))

    def _to_blame(self, key: RunKey, node: str | None, why: str) -> int | None:
        """The node that refused the start; None: the job is to blame, and the start counts."""
        if node is None:
            return None
        if QUOTA not in why:
            told = self._refused[key.job_id] = self._refused.get(key.job_id, 0) + 1
            if told > PATIENCE:
                return None
        return self._registry.watch.index_of(node) or 0

    def silent(self, run: Run, nodes: Iterable[str]) -> None:
        """All that may still live of it is on nodes that nobody hears of."""
        found = (self._registry.watch.index_of(node) for node in nodes)
        indices = frozenset(index for index in found if index is not None)
        self.tell(ev.Stopped(JobId(run.key.job_id), run.key.generation, run.attempt.work.saved, indices))

    def never_was(self, command: Command) -> None:
        """There is nothing of it, and there will not be."""
        self.tell(ev.Stopped(command.job_id, command.generation, NAN))

    def without_object(self, launch: Launch) -> None:
        """Its TrainingJob was deleted, or its gang is gone: that is no failure of the job."""
        self.tell(ev.JobCancelled(launch.job_id))

    def inventory(self, vouched: int | None, others: Iterable[ev.Observed]) -> None:
        """Everything that is there; `vouched`: the last command that is answered for, by who handed them over."""
        registry = self._registry
        if registry.halted:
            return
        seen = registry.seen_seq if vouched is None else max(vouched, registry.seen_seq)
        own = [entry for _, run in sorted(registry.runs.items()) if (entry := self._observed(run)) is not None]
        orphans = [ev.Observed(JobId(key.job_id), key.generation, NAN, 0) for key in registry.orphans]
        entries = sorted([*own, *orphans, *others], key=lambda entry: entry.job_id)
        self.tell(ev.Inventory(tuple(entries), seen, registry.watch.ready_indices()))

    def _observed(self, run: Run) -> ev.Observed | None:
        """None: it is over, and its end needs no repeating."""
        key, job_id = run.key, JobId(run.key.job_id)
        if not run.over:
            return ev.Observed(
                job_id, key.generation, run.attempt.work.done, run.attempt.applied_seq, starting=not run.started
            )
        if run.attempt.outcome is None or key.generation != self._registry.newest.get(key.job_id):
            return None
        if run.attempt.outcome.kind == EXITED:
            return ev.Observed(
                job_id, key.generation, run.attempt.work.saved, run.attempt.applied_seq, run.attempt.outcome.code
            )
        if run.attempt.outcome.kind == STOPPED:
            return ev.Observed(job_id, key.generation, run.attempt.work.saved, run.attempt.applied_seq, stopped=True)
        return None


def _last_output(run: Run, why: str) -> str:
    """Of the member that is named as the cause of a failure."""
    named = (member.pod for member in run.members.values() if f"{member.pod_name}:" in why)
    return next((output_of(pod) for pod in named if pod is not None), "")

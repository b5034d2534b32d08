"""Gangs whose pods have their nodes but do not run: what they wait for, in the kubelet's words."""

from __future__ import annotations

from collections.abc import Callable

from trainmaster.backends.kubernetes.attempts import pod_objects as p
from trainmaster.backends.kubernetes.attempts.pod_attempt import Run
from trainmaster.backends.kubernetes.attempts.registry import AttemptRegistry

SLOW_START_S = 15.0
"""A gang that has not started so long after it was bound is looked at."""
START_LIMIT_S = 1800.0
"""A gang that has not started so long after it was bound, or found by a new leader, is given up, and the start counts:
images are pulled and volumes mounted within it."""
MAX_TOLD, MAX_JOBS = 300, 10_000


class SlowStarts:
    def __init__(self, registry: AttemptRegistry) -> None:
        self._registry = registry
        self.words: dict[str, str] = {}
        """By job; read by other threads."""
        self.on_change: Callable[[str], None] = lambda _: None
        self.advance: Callable[[Run], None] = lambda _: None
        """Lets the attempt go on (see `RunDriver`)."""

    def bound(self, run: Run) -> None:
        self._registry.loop.call_later(SLOW_START_S, self._look, run)
        self._registry.loop.call_later(START_LIMIT_S, self._give_up, run)

    def _give_up(self, run: Run) -> None:
        begun = run.started and any(member.gang.begun_s is not None for member in run.staying())
        if begun or run.attempt.outcome is not None or self._registry.halted:
            return
        told = self.words.get(run.key.job_id, "")
        run.attempt.fail_start(f"not started within {START_LIMIT_S / 60:.0f} min" + (f"; {told}" if told else ""))
        self.advance(run)

    def changed(self, run: Run) -> None:
        """Something was seen of one of its pods."""
        if run.key.job_id in self.words:
            self._look(run)

    def waits(self, run: Run, what: str) -> None:
        """Its pods cannot be made yet; that has a limit, too."""
        self.refused(run, what)
        self.bound(run)

    def refused(self, run: Run, why: str) -> None:
        """It did not start; said until it does, or starts to be slow again."""
        if len(self.words) >= MAX_JOBS:
            self.words.clear()
        self.words[run.key.job_id] = why[:MAX_TOLD]
        self.on_change(run.key.job_id)

    def forget(self, run: Run) -> None:
        self.words.pop(run.key.job_id, None)

    def _look(self, run: Run) -> None:
        if not self._registry.is_newest(run.key):
            return
        found = (
            []
            if run.started or run.attempt.outcome is not None
            else [
                f"{member.pod_name} on {member.node}: {waits}"
                for member in run.staying()
                if member.pod is not None and (waits := p.waits_for(member.pod))
            ]
        )
        before = self.words.pop(run.key.job_id, "")
        if found and not self._registry.halted:
            self.words[run.key.job_id] = found[0]
        if before != (found[0] if found else ""):
            self.on_change(run.key.job_id)

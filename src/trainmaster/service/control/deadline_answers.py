"""What the deadline policy says of each job's deadline, and what of it is news for the event log."""

from __future__ import annotations

from typing import Any

from trainmaster.engine import queries
from trainmaster.engine.engine import Engine
from trainmaster.model.job import JobSpec
from trainmaster.model.reason_text import deadline_answer
from trainmaster.model.units import NEVER_MS
from trainmaster.policies.deadline import Deadline
from trainmaster.policies.deadline.answers import RESERVATIONS, standing_answer
from trainmaster.service.control.event_log import Journal


def deadline_answer_of(engine: Engine, spec: JobSpec) -> dict[str, Any] | None:
    """As JSON data; None: it has no deadline, or this policy promises nothing."""
    return _answer(engine, spec) if _promises(engine) else None


def _promises(engine: Engine) -> bool:
    return isinstance(getattr(engine.policy, "policy", engine.policy), Deadline)


def _answer(engine: Engine, spec: JobSpec) -> dict[str, Any] | None:
    if spec.deadline_ms >= NEVER_MS:
        return None
    values, reservation = queries.policy_state_of(engine, spec.id, RESERVATIONS)
    return standing_answer(values, reservation, spec.id, spec.deadline_ms, engine.cluster.types)


class DeadlineAnswers:
    """What was last told of each job; at the beginning, what stands already."""

    def __init__(self, engine: Engine) -> None:
        self._decisions = -1
        self._told: dict[str, str] = {}
        self._told = {job_id: answer["answer"] for job_id, answer in self._standing(engine)}

    def tell(self, engine: Engine, journal: Journal) -> None:
        """Called after a step: an entry for each job whose answer is another one now."""
        if engine.decisions == self._decisions:
            return
        told: dict[str, str] = {}
        for job_id, answer in self._standing(engine):
            told[job_id] = answer["answer"]
            if self._told.get(job_id) != answer["answer"]:
                journal.add("deadline", job_id, f"{job_id}: {deadline_answer(answer)}", **answer)
        self._told = told

    def _standing(self, engine: Engine) -> list[tuple[str, dict[str, Any]]]:
        self._decisions = engine.decisions
        if not _promises(engine):
            return []
        found = ((spec.id, _answer(engine, spec)) for spec in queries.active_specs(engine))
        return [(job_id, answer) for job_id, answer in found if answer is not None]

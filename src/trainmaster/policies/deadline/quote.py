"""The admission answer as data, for a service: is the deadline promised, with what; else what could be, and how.

`admission_answer(view, job_id)` reads a snapshot of an engine that runs the `deadline` policy (the promises are
in its memo) and changes nothing: everything is tried on a copy. `why`, a submission's reply and the REST
interface can show it as it is (plain JSON data) or as the sentence of `describe`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trainmaster.model.errors import InputError
from trainmaster.model.job import JobId
from trainmaster.model.reason_text import deadline_refusal
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import NEVER_MS
from trainmaster.policies.deadline import reservation_layout as col
from trainmaster.policies.deadline import verdicts
from trainmaster.policies.deadline.reservation_book import ReservationBook

PROMISED, POSSIBLE, REFUSED, SOFT, NONE = "accepted", "possible", "refused", "soft", "none"


def admission_answer(view: Snapshot, job_id: str, confidence: float = 0.9) -> dict[str, Any]:
    """The answer to one job of the snapshot, pending or running.

    `answer` is one of: `accepted` (promised; `type workers planned_finish_s schedule` say with what), `possible`
    (not promised yet, but it could be now, with the same keys), `refused` (`fault`, and as far as they apply
    `earliest_deadline_s with_type with_workers` and `more_gpus more_type`, `slack_of slack_s`), `soft` (what is
    reserved, if anything) and `none` (no deadline). Times are seconds on the engine's clock.
    """
    row = _row(view, job_id)
    jobs = view.jobs
    if jobs.deadline_ms[row] >= NEVER_MS:
        return {"job_id": job_id, "answer": NONE}
    reservations = ReservationBook(view, confidence, admission=True)
    reserved = reservations.certs[row, col.CLASS] > 0 and reservations.certs[row, col.COUNT] > 0
    if not reservations.is_hard[row]:
        plan = (
            verdicts.accepted(reservations, row) if reserved else {"deadline_s": float(reservations.due[row]) / 1000.0}
        )
        return {**plan, "job_id": job_id, "answer": SOFT, "reserved": bool(reserved)}
    if reserved and reservations.certs[row, col.CLASS] == col.PROMISED:
        kept = bool(reservations.certs[row, col.FINISH] <= reservations.due[row])
        return {**verdicts.accepted(reservations, row), "job_id": job_id, "answer": PROMISED, "kept": kept}
    details = verdicts.impossible(reservations, row)
    if details is None and reservations.promise(row):
        return {**verdicts.accepted(reservations, row), "job_id": job_id, "answer": POSSIBLE}
    return {**(details or verdicts.refused(reservations, row)), "job_id": job_id, "answer": REFUSED}


def _row(view: Snapshot, job_id: str) -> int:
    found = np.flatnonzero([known == JobId(job_id) for known in view.jobs.ids])
    if found.size == 0:
        raise InputError(f"active job '{job_id[:80]}' not found", "a job that waits or runs")
    return int(found[0])


def describe(answer: dict[str, Any]) -> str:
    """One or two sentences for people."""
    kind = answer["answer"]
    if kind == NONE:
        return "It has no deadline."
    if kind == REFUSED:
        told = deadline_refusal(answer)
        return f"{told[0].upper()}{told[1:]}."
    if kind == SOFT and not answer["reserved"]:
        return f"Nothing is reserved for its soft deadline at {answer['deadline_s']:g} s; it runs where there is room."
    verb = {
        PROMISED: "is promised" if answer.get("kept", True) else "was promised and will be missed",
        POSSIBLE: "can be promised",
        SOFT: "is reserved for, but may yield to promises",
    }[kind]
    size = f"{answer['workers']} workers on {answer['type']}"
    return f"Its deadline at {answer['deadline_s']:g} s {verb}: {size}, done at {answer['planned_finish_s']:g} s."

"""Reports as rows of numbers (`core.state.messages`) and back. What no row can hold travels as the object it is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainmaster.core.state.message_kinds import EXITED, OTHER, PROGRESSED, RESIZED, START_FAILED, STARTED, STOPPED
from trainmaster.core.state.messages import Messages
from trainmaster.model import event as ev
from trainmaster.model.job import JobId

DID_NOT_START = "a member of the gang did not start"


def put_report(rows: Messages, event: ev.Event, job: int) -> None:
    """Write a report about the job of this index."""
    match event:
        case ev.Started():
            k = rows.add(STARTED, job, event.generation, 0)
            rows.work[k], rows.at_ms[k] = event.work_done, event.productive_ms
        case ev.StartFailed():
            k = rows.add(START_FAILED, job, event.generation, 0)
            rows.code[k] = -1 if event.node is None else event.node
        case ev.Resized():
            k = rows.add(RESIZED, job, event.generation, event.seq)
            rows.work[k], rows.at_ms[k] = event.work_done, event.productive_ms
        case ev.Progressed():
            k = rows.add(PROGRESSED, job, event.generation, 0)
            rows.work[k], rows.at_ms[k] = event.work_done, event.at_ms
            rows.rate[k], rows.loss[k] = _or_nan(event.rate), _or_nan(event.loss)
        case ev.Exited():
            k = rows.add(EXITED, job, event.generation, 0)
            rows.code[k], rows.work[k] = event.code, event.work_saved
        case ev.Stopped():
            k = rows.add(STOPPED, job, event.generation, 0)
            silent = np.array(sorted(event.silent), np.int64)
            rows.work[k], rows.code[k] = event.work_saved, len(silent)
            rows.extra[k] = rows.put_numbers(silent, 0, len(silent)) if len(silent) else -1
        case _:
            rows.add_other(event)


def report_of(rows: Messages, k: int, ids: Sequence[JobId]) -> ev.Event:
    """The report in row `k`."""
    kind, extra, code = int(rows.kind[k]), int(rows.extra[k]), int(rows.code[k])
    if kind == OTHER:
        return rows.others[extra]
    job_id, generation = ids[int(rows.job[k])], int(rows.generation[k])
    work, at_ms = float(rows.work[k]), int(rows.at_ms[k])
    if kind == STARTED:
        return ev.Started(job_id, generation, work, at_ms)
    if kind == START_FAILED:
        return ev.StartFailed(job_id, generation, DID_NOT_START, None if code < 0 else code)
    if kind == RESIZED:
        return ev.Resized(job_id, generation, int(rows.seq[k]), work, at_ms)
    if kind == PROGRESSED:
        return ev.Progressed(job_id, generation, work, at_ms, _or_none(rows.rate[k]), _or_none(rows.loss[k]))
    if kind == EXITED:
        return ev.Exited(job_id, generation, code, work, "crashed" if code else "")
    assert kind == STOPPED
    silent = rows.numbers.values[extra : extra + code] if extra >= 0 else ()
    return ev.Stopped(job_id, generation, work, frozenset(int(node) for node in silent))


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value


def _or_none(value: float) -> float | None:
    return float(value) if value == value else None

"""Stored jobs that cannot be read: set aside one by one, so that the others go on.

A job's record is kept as it is, in the document `quarantine` of the store, until an operator has looked at it. What
still runs of such a job is stopped by the next inventory, for the engine knows its id and holds no attempt of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from trainmaster.engine.engine import Engine
from trainmaster.engine.ports import StoredState

DOCUMENT = "quarantine"
log = logging.getLogger("trainmaster.control")

Build = Callable[[StoredState], Engine]


def build_readable(stored_state: StoredState, build: Build) -> tuple[Engine, dict[str, Any]]:
    """The engine of all jobs that can be read, and the records of the others. What is wrong with the store as a whole
    (its format, its nodes) is raised."""
    try:
        return build(stored_state), {}
    except Exception:
        build(_only(stored_state, {}))
        jobs = stored_state.jobs.items()
        unreadable = {job_id: record for job_id, record in jobs if not _reads(stored_state, job_id, build)}
        if not unreadable:
            raise
    kept = {job_id: record for job_id, record in stored_state.jobs.items() if job_id not in unreadable}
    engine = build(_only(stored_state, kept))
    log.error("stored jobs that cannot be read were set aside: %s", ", ".join(sorted(unreadable)))
    return engine, unreadable


def _reads(stored_state: StoredState, job_id: str, build: Build) -> bool:
    try:
        build(_only(stored_state, {job_id: stored_state.jobs[job_id]}))
    except Exception:
        return False
    return True


def _only(stored_state: StoredState, jobs: Mapping[str, Any]) -> StoredState:
    meta = stored_state.meta
    if meta is not None:
        meta = {**meta, "reserved": [job_id for job_id in meta["reserved"] if job_id in jobs]}
    return replace(stored_state, jobs=jobs, meta=meta)

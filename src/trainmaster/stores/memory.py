"""A store in memory: for simulation and tests. It keeps bytes, so nothing leaks out by reference."""

from __future__ import annotations

import json
from typing import Any

from trainmaster.engine.ports import Commit, Image


class MemoryStore:
    """See `trainmaster.engine.ports.Store`."""

    def __init__(self) -> None:
        self._jobs: dict[str, bytes] = {}
        self._ended: dict[str, bytes] = {}
        self._meta: bytes | None = None

    def commit(self, commit: Commit) -> None:
        # Everything that can fail happens before the first change.
        changed = {job_id: None if record is None else _encode(record) for job_id, record in commit.jobs.items()}
        ended = {job_id: _encode(record) for job_id, record in commit.ended.items()}
        meta = _encode(commit.meta)
        for job_id, record in changed.items():
            if record is None:
                self._jobs.pop(job_id, None)
            else:
                self._jobs[job_id] = record
        self._ended.update(ended)
        self._meta = meta

    def load(self) -> Image:
        return Image(
            jobs={job_id: json.loads(record) for job_id, record in sorted(self._jobs.items())},
            ended={job_id: json.loads(record) for job_id, record in sorted(self._ended.items())},
            meta=None if self._meta is None else json.loads(self._meta),
        )


def _encode(data: dict[str, Any]) -> bytes:
    # A policy may remember NaN or infinity; Python's JSON reads back what it writes of them.
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()

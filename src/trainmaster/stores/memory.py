"""A store in memory: for simulation and tests. It keeps bytes, so nothing leaks out by reference."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from trainmaster.engine.ports import Commit, EndedFilter, Image, JsonObject, LogEntry, number_of


class MemoryStore:
    """See `trainmaster.engine.ports.Archive`."""

    def __init__(self) -> None:
        self._jobs: dict[str, bytes] = {}
        self._ended: dict[str, bytes] = {}
        self._meta: bytes | None = None
        self._log: list[tuple[LogEntry, bytes]] = []
        self._next_number = 1
        self._requests: dict[str, tuple[int, bytes]] = {}
        self._documents: dict[str, bytes] = {}

    def commit(self, commit: Commit) -> None:
        # Everything that can fail happens before the first change.
        changed = {job_id: None if record is None else _encode(record) for job_id, record in commit.jobs.items()}
        ended = {job_id: _encode(record) for job_id, record in commit.ended.items()}
        meta = _encode(commit.meta)
        log = [(replace(entry, details={}), _encode(entry.details)) for entry in commit.log]
        now_ms = int(commit.meta.get("now_ms", 0))
        requests = {key: (now_ms, _encode(answer)) for key, answer in commit.requests.items()}
        documents = {name: _encode(body) for name, body in commit.documents.items()}
        for job_id, record in changed.items():
            if record is None:
                self._jobs.pop(job_id, None)
            else:
                self._jobs[job_id] = record
        self._ended.update(ended)
        self._meta = meta
        for entry, details in log:
            self._log.append((replace(entry, number=self._next_number), details))
            self._next_number += 1
        self._requests.update(requests)
        self._documents.update(documents)

    def load(self) -> Image:
        return self._image({job_id: json.loads(record) for job_id, record in sorted(self._ended.items())})

    def load_active(self) -> Image:
        ended = {job_id: json.loads(record) for job_id, record in sorted(self._ended.items())}
        return self._image({job_id: {"phase": record["phase"]} for job_id, record in ended.items()})

    def _image(self, ended: dict[str, JsonObject]) -> Image:
        return Image(
            jobs={job_id: json.loads(record) for job_id, record in sorted(self._jobs.items())},
            ended=ended,
            meta=None if self._meta is None else json.loads(self._meta),
        )

    # -- the past ------------------------------------------------------------------------------------

    def find_request(self, request_id: str) -> JsonObject | None:
        found = self._requests.get(request_id)
        return None if found is None else json.loads(found[1])

    def document(self, name: str) -> JsonObject | None:
        found = self._documents.get(name)
        return None if found is None else json.loads(found)

    def find_ended(self, job_id: str) -> JsonObject | None:
        found = self._ended.get(job_id)
        return None if found is None else json.loads(found)

    def ended_page(self, after: int, limit: int, where: EndedFilter) -> list[JsonObject]:
        return [record for number, record in self._chosen(where) if number > after][:limit]

    def count_ended(self, where: EndedFilter) -> int:
        return len(self._chosen(where))

    def _chosen(self, where: EndedFilter) -> list[tuple[int, JsonObject]]:
        found = []
        for job_id in sorted(self._ended, key=lambda job_id: (number_of(job_id), job_id)):
            record = json.loads(self._ended[job_id])
            spec = record.get("spec", {})
            if (
                (where.phases is None or record["phase"] in where.phases)
                and (where.name is None or spec.get("name", "") == where.name)
                and (where.entity is None or spec.get("entity", "") == where.entity)
            ):
                found.append((number_of(job_id), record))
        return found

    def log_page(self, after: int, limit: int, job_id: str | None = None) -> list[LogEntry]:
        found = [
            replace(entry, details=json.loads(details))
            for entry, details in self._log
            if entry.number > after and (job_id is None or entry.job_id == job_id)
        ]
        return found[:limit]

    def last_log_number(self) -> int:
        return self._log[-1][0].number if self._log else 0

    def prune(self, before_ms: int, keep_ended: int, keep_log: int) -> int:
        times = {job_id: json.loads(record).get("ended_ms", 0) for job_id, record in self._ended.items()}
        newest = sorted(times, key=lambda job_id: (times[job_id], number_of(job_id)), reverse=True)
        gone = {job_id for job_id in times if times[job_id] < before_ms} | set(newest[keep_ended:])
        log = [item for item in self._log if item[0].at_ms >= before_ms]
        first_kept = self.last_log_number() - keep_log
        log = [item for item in log if item[0].number > first_kept]
        requests = {key: item for key, item in self._requests.items() if item[0] >= before_ms}
        forgotten = len(gone) + len(self._log) - len(log) + len(self._requests) - len(requests)
        for job_id in gone:
            del self._ended[job_id]
        self._log, self._requests = log, requests
        return forgotten

    def close(self) -> None:
        """Nothing to give back."""


def _encode(data: dict[str, Any]) -> bytes:
    # A policy may remember NaN or infinity; Python's JSON reads back what it writes of them.
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()

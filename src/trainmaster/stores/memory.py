"""A store in memory: for simulation and tests. It keeps text, so nothing leaks out by reference."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import NamedTuple

from trainmaster.engine.ports import Commit, EndedFilter, JsonObject, LogEntry, StoredState, number_of, order_of


class Encoded(NamedTuple):
    """A commit as text: all that can fail has been done."""

    jobs: dict[str, str | None]
    ended: dict[str, str]
    meta: str
    log: list[tuple[int, str, str | None, str, str]]
    requests: dict[str, str]
    documents: dict[str, str]
    now_ms: int


class Dump(NamedTuple):
    """Everything that a store holds, as text."""

    jobs: dict[str, str]
    ended: dict[str, str]
    meta: str | None
    log: list[tuple[int, str, str | None, str, str, int]]
    next_number: int
    requests: dict[str, tuple[int, str]]
    documents: dict[str, str]


def encoded(commit: Commit) -> Encoded:
    return Encoded(
        {job_id: None if record is None else _encode(record) for job_id, record in commit.jobs.items()},
        {job_id: _encode(record) for job_id, record in commit.ended.items()},
        _encode(commit.meta),
        [(entry.at_ms, entry.kind, entry.job_id, entry.text, _encode(entry.details)) for entry in commit.log],
        {key: _encode(answer) for key, answer in commit.requests.items()},
        {name: _encode(body) for name, body in commit.documents.items()},
        int(commit.meta.get("now_ms", 0)),
    )


class MemoryStore:
    """See `trainmaster.engine.ports.Archive`."""

    def __init__(self) -> None:
        self._jobs: dict[str, str] = {}
        self._ended: dict[str, str] = {}
        self._meta: str | None = None
        self._log: list[tuple[LogEntry, str]] = []
        self._next_number = 1
        self._requests: dict[str, tuple[int, str]] = {}
        self._documents: dict[str, str] = {}

    def commit(self, commit: Commit) -> None:
        self.apply(encoded(commit))  # everything that can fail happens before the first change

    def apply(self, delta: Encoded) -> None:
        for job_id, record in delta.jobs.items():
            if record is None:
                self._jobs.pop(job_id, None)
            else:
                self._jobs[job_id] = record
        self._ended.update(delta.ended)
        self._meta = delta.meta
        for at_ms, kind, job_id, text, details in delta.log:
            self._log.append((LogEntry(at_ms, kind, job_id, text, {}, self._next_number), details))
            self._next_number += 1
        self._requests.update({key: (delta.now_ms, answer) for key, answer in delta.requests.items()})
        self._documents.update(delta.documents)

    def dump(self) -> Dump:
        """Everything that it holds, as it is now: later changes do not show."""
        log = [(e.at_ms, e.kind, e.job_id, e.text, details, e.number) for e, details in self._log]
        return Dump(
            dict(self._jobs),
            dict(self._ended),
            self._meta,
            log,
            self._next_number,
            dict(self._requests),
            dict(self._documents),
        )

    @staticmethod
    def of(dump: Dump) -> MemoryStore:
        """A store that holds this."""
        store = MemoryStore()
        store.become(dump)
        return store

    def become(self, dump: Dump) -> None:
        """Hold this instead of what was here."""
        self._jobs, self._ended, self._meta = dict(dump.jobs), dict(dump.ended), dump.meta
        self._log = [
            (LogEntry(at_ms, kind, job_id, text, {}, number), details)
            for at_ms, kind, job_id, text, details, number in dump.log
        ]
        self._next_number = dump.next_number
        self._requests = {key: (at_ms, answer) for key, (at_ms, answer) in dump.requests.items()}
        self._documents = dict(dump.documents)

    def load(self) -> StoredState:
        return self._stored_state({job_id: json.loads(record) for job_id, record in sorted(self._ended.items())})

    def load_active(self) -> StoredState:
        ended = {job_id: json.loads(record) for job_id, record in sorted(self._ended.items())}
        return self._stored_state({job_id: {"phase": record["phase"]} for job_id, record in ended.items()})

    def _stored_state(self, ended: dict[str, JsonObject]) -> StoredState:
        return StoredState(
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

    def latest_ended(self, limit: int, where: EndedFilter) -> list[JsonObject]:
        chosen = sorted(self._chosen(where), key=lambda found: (found[1].get("ended_ms", 0), found[0]), reverse=True)
        return [record for _, record in chosen[:limit]]

    def count_ended(self, where: EndedFilter) -> int:
        return len(self._chosen(where))

    def _chosen(self, where: EndedFilter) -> list[tuple[int, JsonObject]]:
        found = []
        for job_id, text in self._ended.items():
            record = json.loads(text)
            spec = record.get("spec", {})
            if (
                (where.phases is None or record["phase"] in where.phases)
                and (where.name is None or spec.get("name", "") == where.name)
                and (where.entity is None or spec.get("entity", "") == where.entity)
                and (where.namespaces is None or (spec.get("payload") or {}).get("namespace") in where.namespaces)
            ):
                found.append((order_of(job_id, spec.get("submit_ms", 0)), job_id, record))
        return [(number, record) for number, _, record in sorted(found, key=lambda entry: entry[:2])]

    def log_page(self, after: int, limit: int, job_id: str | None = None) -> list[LogEntry]:
        found = [
            replace(entry, details=json.loads(details))
            for entry, details in self._log
            if entry.number > after and (job_id is None or entry.job_id == job_id)
        ]
        return found[:limit]

    def last_log_number(self) -> int:
        return self._log[-1][0].number if self._log else 0

    def prune(self, before_ms: int, keep_ended: int, keep_log: int) -> list[str]:
        times = {job_id: json.loads(record).get("ended_ms", 0) for job_id, record in self._ended.items()}
        newest = sorted(times, key=lambda job_id: (times[job_id], number_of(job_id)), reverse=True)
        gone = {job_id for job_id in times if times[job_id] < before_ms} | set(newest[keep_ended:])
        log = [item for item in self._log if item[0].at_ms >= before_ms]
        first_kept = self.last_log_number() - keep_log
        log = [item for item in log if item[0].number > first_kept]
        requests = {key: item for key, item in self._requests.items() if item[0] >= before_ms}
        for job_id in gone:
            del self._ended[job_id]
        self._log, self._requests = log, requests
        return sorted(gone)

    def close(self) -> None:
        """Nothing to give back."""


# A policy may remember NaN or infinity; Python's JSON reads back what it writes of them.
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), check_circular=False).encode

"""Adapters that fail on demand: the store that is full or dies with the process, the backend cut off mid-dispatch."""

from __future__ import annotations

from typing import Protocol

from trainmaster.dst.control_plane.invariants import ServiceChecker
from trainmaster.dst.engine.faults import CrashPoint
from trainmaster.dst.engine.story import Story
from trainmaster.engine.ports import Archive, Commit, EndedFilter, JsonObject, LogEntry, StoredState, StoreError
from trainmaster.model.command import Command
from trainmaster.sim.backend import SimulatedBackend


class Crash(BaseException):
    """The process dies here. Not an `Exception`, so that nothing on the way can survive it."""


class _Time(Protocol):
    @property
    def ms(self) -> int: ...


class FaultyStore:
    """Faults concern commits: `crash` kills before or after one; `fault` raises, with or without having written."""

    def __init__(self, inner: Archive, checker: ServiceChecker) -> None:
        self.inner = inner
        self.checker = checker
        self.crash: CrashPoint | None = None
        self.fault: str | None = None

    def commit(self, commit: Commit) -> None:
        if self.crash == CrashPoint.BEFORE_COMMIT:
            raise Crash(self.crash.value)
        fault, self.fault = self.fault, None
        if fault == "before":
            raise StoreError("database or disk is full (simulated)")
        self.inner.commit(commit)
        self.checker.committed(commit)
        if fault == "after":
            raise StoreError("disk I/O error (simulated); what became of the commit is not known")
        if self.crash == CrashPoint.AFTER_COMMIT:
            raise Crash(self.crash.value)

    def load(self) -> StoredState:
        return self.inner.load()

    def load_active(self) -> StoredState:
        return self.inner.load_active()

    def find_request(self, request_id: str) -> JsonObject | None:
        return self.inner.find_request(request_id)

    def document(self, name: str) -> JsonObject | None:
        return self.inner.document(name)

    def find_ended(self, job_id: str) -> JsonObject | None:
        return self.inner.find_ended(job_id)

    def ended_page(self, after: int, limit: int, where: EndedFilter) -> list[JsonObject]:
        return self.inner.ended_page(after, limit, where)

    def latest_ended(self, limit: int, where: EndedFilter) -> list[JsonObject]:
        return self.inner.latest_ended(limit, where)

    def count_ended(self, where: EndedFilter) -> int:
        return self.inner.count_ended(where)

    def log_page(self, after: int, limit: int, job_id: str | None = None) -> list[LogEntry]:
        return self.inner.log_page(after, limit, job_id)

    def last_log_number(self) -> int:
        return self.inner.last_log_number()

    def prune(self, before_ms: int, keep_ended: int, keep_log: int) -> list[str]:
        return self.inner.prune(before_ms, keep_ended, keep_log)

    def close(self) -> None:
        self.inner.close()


class FaultyBackend:
    """Passes commands on to the simulated world, and dies after `dies_after` of them."""

    def __init__(self, world: SimulatedBackend, checker: ServiceChecker, story: Story, time: _Time) -> None:
        self.world = world
        self.checker = checker
        self.story = story
        self.time = time
        self.dies_after: int | None = None

    def perform(self, command: Command) -> None:
        if self.dies_after is not None:
            if self.dies_after == 0:
                raise Crash(CrashPoint.MID_DISPATCH.value)
            self.dies_after -= 1
        self.story.add(self.time.ms, "command", command)
        self.checker.check_command(command)
        self.world.perform(command)

    def observe(self) -> None:
        self.world.observe()

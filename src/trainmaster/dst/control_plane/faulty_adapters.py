"""Adapters that fail on demand: the store that is full or dies with the process, the backend cut off mid-dispatch."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from trainmaster.dst.control_plane.invariants import ServiceChecker
from trainmaster.dst.engine.faults import CrashPoint
from trainmaster.dst.engine.story import Story
from trainmaster.engine.ports import Commit, StoreError
from trainmaster.model.command import Command
from trainmaster.sim.backend import SimulatedBackend
from trainmaster.stores.sqlite import SqliteStore


class Crash(BaseException):
    """The process dies here. Not an `Exception`, so that nothing on the way can survive it."""


class _Time(Protocol):
    @property
    def ms(self) -> int: ...


class FaultyStore(SqliteStore):
    """Faults concern commits: `crash` kills before or after one; `fault` raises, with or without having written."""

    def __init__(self, path: Path, checker: ServiceChecker) -> None:
        super().__init__(path, durable=False)
        self.checker = checker
        self.crash: CrashPoint | None = None
        self.fault: str | None = None

    def commit(self, commit: Commit) -> None:
        if self.crash == CrashPoint.BEFORE_COMMIT:
            raise Crash(self.crash.value)
        fault, self.fault = self.fault, None
        if fault == "before":
            raise StoreError("database or disk is full (simulated)")
        super().commit(commit)
        self.checker.committed(commit)
        if fault == "after":
            raise StoreError("disk I/O error (simulated); what became of the commit is not known")
        if self.crash == CrashPoint.AFTER_COMMIT:
            raise Crash(self.crash.value)


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

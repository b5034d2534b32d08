"""The backend contract, executable: `check_backend(bench)` runs every promise of the port against real effects.

A `Bench` wraps a backend with what a check needs beside it: jobs of known behaviour, the events that come
out, a restart, and the truth (how many processes of a job live). Each check uses jobs of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar

from trainmaster.model import event as ev
from trainmaster.model.allocation import Allocation, Part
from trainmaster.model.cluster import Cluster
from trainmaster.model.command import Command, Launch, Resize, Stop
from trainmaster.model.job import JobId, JobSpec

FAILURE_CODE = 3
PATIENCE = 20
"""Moments that a slow machine is given."""
E = TypeVar("E", bound=ev.Event)


class Kind(Enum):
    """Behaviour of a job on the bench."""

    SUCCEEDS = "ends soon with exit code 0"
    FAILS = f"ends soon with exit code {FAILURE_CODE}"
    ENDLESS = "runs until it is stopped, reports progress, and can be resized without stopping"
    STUBBORN = "runs until it is killed"
    UNSTARTABLE = "cannot be started, by its own fault"


class Bench(Protocol):
    """A node of at least four devices (node 0, type 0), and a backend on it."""

    @property
    def cluster(self) -> Cluster: ...

    def perform(self, command: Command) -> None: ...

    def observe(self) -> None: ...

    def next_event(self) -> ev.Event:
        """Waits for it; `TimeoutError` when none comes."""
        ...

    def quiet(self) -> list[ev.Event]:
        """Events of a moment in which everything that was asked for has been done."""
        ...

    def restart(self) -> None:
        """The driver dies and another takes over: what it had not been told may be lost."""
        ...

    def living(self, job_id: str) -> int:
        """Members of the job that really live."""
        ...

    def job(self, name: str, kind: Kind, workers: tuple[int, int]) -> JobSpec | None:
        """None: this backend has no such job, and what needs it is not checked."""
        ...


class ContractBroken(AssertionError):
    """A backend does not do what the port promises; the message says which promise."""


def check_backend(bench: Bench) -> list[str]:
    """Run every check; returns the names of those that the bench has jobs for."""
    done = []
    for check in CHECKS:
        subject = _Subject(bench, check.__name__.strip("_"))
        try:
            check(subject)
        except _NoSuchJob:
            continue
        except TimeoutError as error:
            raise ContractBroken(f"{subject.name}: {error}; seen: {subject.seen}") from error
        done.append(subject.name)
    return done


class _NoSuchJob(Exception):
    pass


@dataclass
class _Subject:
    """One check's view of the bench: its own job ids, rising sequence numbers, the events it has seen."""

    bench: Bench
    name: str

    def __post_init__(self) -> None:
        self.seen: list[ev.Event] = []

    def spec(self, kind: Kind, workers: tuple[int, int] = (1, 1), name: str = "") -> JobSpec:
        spec = self.bench.job(f"{self.name.replace('_', '-')}{name}", kind, workers)
        if spec is None:
            raise _NoSuchJob
        return spec

    def launch(self, spec: JobSpec, workers: int = 1, generation: int = 1) -> Launch:
        command = Launch(spec.id, generation, _next_seq(), _devices(workers), spec)
        self.bench.perform(command)
        return command

    def start(self, spec: JobSpec, workers: int = 1, generation: int = 1) -> Launch:
        command = self.launch(spec, workers, generation)
        self.expect(ev.Started, spec.id, generation)
        return command

    def resize(self, spec: JobSpec, workers: int) -> Resize:
        command = Resize(spec.id, 1, _next_seq(), _devices(workers))
        self.bench.perform(command)
        return command

    def stop(self, spec: JobSpec, generation: int = 1) -> Stop:
        command = Stop(spec.id, generation, _next_seq(), "checked")
        self.bench.perform(command)
        self.expect(ev.Stopped, spec.id, generation)
        return command

    def expect(self, kind: type[E], job_id: JobId, generation: int = 1) -> E:
        """The next report of this kind about this attempt. Nothing but progress and starts may come before."""
        while True:
            event = self.bench.next_event()
            self.seen.append(event)
            if getattr(event, "job_id", None) != job_id:
                continue
            self.require(event.generation == generation, f"a report of {event} was not asked for")  # type: ignore[union-attr]
            if isinstance(event, kind):
                return event
            harmless = isinstance(event, ev.Progressed | ev.Started | ev.Resized)
            self.require(harmless, f"{kind.__name__} was due, and {event} came")

    def inventory(self) -> ev.Inventory:
        self.bench.observe()
        while True:
            event = self.bench.next_event()
            self.seen.append(event)
            if isinstance(event, ev.Inventory):
                return event

    def entry(self, job_id: JobId) -> ev.Observed | None:
        return next((entry for entry in self.inventory().entries if entry.job_id == job_id), None)

    def require(self, truth: bool, promise: str) -> None:
        if not truth:
            raise ContractBroken(f"{self.name}: {promise}; seen: {self.seen}")


_seq = 0


def _next_seq() -> int:
    global _seq
    _seq += 1
    return _seq


def _devices(workers: int) -> Allocation:
    return Allocation(0, (Part(0, workers, 0, tuple(range(workers))),))


# -- promises ------------------------------------------------------------------------------------------


def _a_job_runs_and_succeeds(s: _Subject) -> None:
    spec = s.spec(Kind.SUCCEEDS, (2, 2))
    s.start(spec, 2)
    s.require(s.expect(ev.Exited, spec.id).code == 0, "a job that ends well is reported with exit code 0")
    s.require(s.bench.living(spec.id) == 0, "nothing of a job lives after its end")


def _exit_codes_are_true(s: _Subject) -> None:
    spec = s.spec(Kind.FAILS)
    s.launch(spec)
    code = s.expect(ev.Exited, spec.id).code
    s.require(code == FAILURE_CODE, f"the exit code was {FAILURE_CODE}, reported was {code}")


def _a_repeated_launch_starts_nothing(s: _Subject) -> None:
    spec = s.spec(Kind.ENDLESS, (1, 4))
    command = s.start(spec, 2)
    s.bench.perform(command)
    s.expect(ev.Started, spec.id)
    s.require(s.bench.living(spec.id) == 2, "a launch that is repeated is answered again and starts nobody")
    s.stop(spec)


def _a_launch_after_the_end_is_answered_with_it(s: _Subject) -> None:
    spec = s.spec(Kind.FAILS)
    command = s.launch(spec)
    s.expect(ev.Exited, spec.id)
    s.bench.perform(command)
    s.require(s.expect(ev.Exited, spec.id).code == FAILURE_CODE, "the end is told again")
    s.require(s.bench.living(spec.id) == 0, "what has ended is not started again under the same generation")


def _a_stop_ends_and_is_answered_each_time(s: _Subject) -> None:
    spec = s.spec(Kind.ENDLESS, (1, 4))
    s.start(spec, 2)
    command = s.stop(spec)
    s.require(s.bench.living(spec.id) == 0, "`Stopped` is said when nobody lives any more")
    s.bench.perform(command)
    s.expect(ev.Stopped, spec.id)


def _a_stubborn_job_is_killed(s: _Subject) -> None:
    spec = s.spec(Kind.STUBBORN)
    s.start(spec)
    s.stop(spec)
    s.require(s.bench.living(spec.id) == 0, "a job that does not want to end is killed after its grace")


def _a_stop_that_overtakes_its_launch_fences_it(s: _Subject) -> None:
    spec = s.spec(Kind.ENDLESS, (1, 4))
    s.stop(spec)
    s.launch(spec)
    late = [event for event in s.bench.quiet() if getattr(event, "job_id", None) == spec.id]
    s.require(all(isinstance(event, ev.Stopped) for event in late), f"a fenced launch was answered by {late}")
    s.require(s.bench.living(spec.id) == 0, "a launch that comes after its stop starts nothing")


def _stale_generations_do_nothing(s: _Subject) -> None:
    spec = s.spec(Kind.ENDLESS, (1, 4))
    first = s.start(spec)
    old_stop = s.stop(spec)
    s.start(spec, generation=2)
    for late in (first, old_stop):
        s.bench.perform(late)
    s.bench.quiet()
    s.require(s.bench.living(spec.id) == 1, "commands of an older generation touch nothing")
    s.stop(spec, generation=2)


def _a_gang_starts_as_a_whole_or_not_at_all(s: _Subject) -> None:
    spec = s.spec(Kind.UNSTARTABLE, (2, 2))
    command = s.launch(spec, 2)
    s.expect(ev.StartFailed, spec.id)
    s.require(s.bench.living(spec.id) == 0, "after a failed start nobody lives")
    s.bench.perform(command)
    s.expect(ev.StartFailed, spec.id)


def _a_resize_changes_the_gang_in_place(s: _Subject) -> None:
    spec = s.spec(Kind.ENDLESS, (1, 4))
    s.start(spec, 2)
    for workers in (4, 1, 3):
        command = s.resize(spec, workers)
        s.require(s.expect(ev.Resized, spec.id).seq == command.seq, "a resize is answered with its own number")
        s.require(s.bench.living(spec.id) == workers, f"{workers} workers were wanted")
        s.bench.perform(command)
        s.require(s.expect(ev.Resized, spec.id).seq == command.seq, "a repeated resize is answered again")
        s.require(s.bench.living(spec.id) == workers, "a repeated resize changes nothing")
    observed = s.entry(spec.id)
    s.require(observed is not None and observed.allocation_seq == command.seq, "the inventory knows the last resize")
    s.stop(spec)


def _an_inventory_is_true(s: _Subject) -> None:
    runs = s.spec(Kind.ENDLESS, (1, 4), "-runs")
    failed = s.spec(Kind.FAILS, name="-failed")
    launch = s.start(runs)
    last = s.launch(failed)
    s.expect(ev.Exited, failed.id)
    inventory = s.inventory()
    found = {entry.job_id: entry for entry in inventory.entries}
    s.require(inventory.seen_up_to >= last.seq, "an inventory speaks for every command up to its number")
    s.require(inventory.nodes == frozenset(range(len(s.bench.cluster.nodes))), "all nodes can be asked")
    s.require(runs.id in found and found[runs.id].exit_code is None, "what runs is listed as running")
    s.require(found[runs.id].allocation_seq == launch.seq and not found[runs.id].starting, "with its allocation")
    s.require(failed.id in found and found[failed.id].exit_code == FAILURE_CODE, "an end is listed with its code")
    s.stop(runs)
    ended = s.entry(runs.id)
    s.require(ended is not None and ended.stopped, "what was stopped is listed as stopped")


def _what_runs_is_adopted_after_a_restart(s: _Subject) -> None:
    spec = s.spec(Kind.ENDLESS, (1, 4))
    command = s.start(spec, 2)
    s.bench.restart()
    s.bench.perform(command)
    s.expect(ev.Started, spec.id)
    s.require(s.bench.living(spec.id) == 2, "a restart of the driver neither ends nor doubles a job")
    observed = s.entry(spec.id)
    s.require(observed is not None and observed.exit_code is None, "an adopted job is in the inventory")
    resize = s.resize(spec, 1)
    s.require(s.expect(ev.Resized, spec.id).seq == resize.seq, "an adopted job is resized")
    s.stop(spec)
    s.require(s.bench.living(spec.id) == 0, "an adopted job is stopped")


def _what_ended_unheard_is_told_after_a_restart(s: _Subject) -> None:
    spec = s.spec(Kind.FAILS)
    command = s.launch(spec)
    s.bench.quiet()
    s.bench.restart()
    observed = s.entry(spec.id)
    for _ in range(PATIENCE):  # a slow machine may need longer than a moment to end it
        if observed is not None and observed.exit_code is not None:
            break
        s.bench.quiet()
        observed = s.entry(spec.id)
    s.require(observed is not None and observed.exit_code == FAILURE_CODE, "the end is in the inventory")
    s.bench.perform(command)
    s.require(s.expect(ev.Exited, spec.id).code == FAILURE_CODE, "and a repeated launch is answered with it")


CHECKS: tuple[Callable[[_Subject], None], ...] = (
    _a_job_runs_and_succeeds,
    _exit_codes_are_true,
    _a_repeated_launch_starts_nothing,
    _a_launch_after_the_end_is_answered_with_it,
    _a_stop_ends_and_is_answered_each_time,
    _a_stubborn_job_is_killed,
    _a_stop_that_overtakes_its_launch_fences_it,
    _stale_generations_do_nothing,
    _a_gang_starts_as_a_whole_or_not_at_all,
    _a_resize_changes_the_gang_in_place,
    _an_inventory_is_true,
    _what_runs_is_adopted_after_a_restart,
    _what_ended_unheard_is_told_after_a_restart,
)

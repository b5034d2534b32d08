"""What the engine and its driver need from the outside, as small protocols."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from trainmaster.core.arrays import Floats
from trainmaster.model.command import Command
from trainmaster.model.errors import TrainmasterError
from trainmaster.model.job import JobSpec

JsonObject = dict[str, Any]


class Estimator(Protocol):
    """What is believed about a job's speed. Never the truth of the simulator."""

    def profile(self, spec: JobSpec, types: Sequence[str]) -> tuple[Floats, Floats]:
        """Steps per second at the reference size by type: on one node, and spread over several.

        0 where the job cannot run.

        An estimator that learns also has `observe(measurement) -> News`, and, if it learns curves,
        `table(spec, cluster) -> SpeedTable` and `group(spec)`, the same for jobs alike. One that knows how jobs fare on
        shared devices has `pair_kept(spec_a, spec_b, types[, probability])`, a J x 2 array of the parts of their speeds
        alone that they keep, or None (see `Snapshot.pair_speeds`). One that learns it has `pairs_version`, which grows
        when other pairs than before may be offered, and `pair_belief(spec_a, spec_b, type)`.
        """
        ...


class Backend(Protocol):
    """Acts on commands and never blocks; what comes of them returns as events."""

    def perform(self, command: Command) -> None: ...

    def observe(self) -> None:
        """Ask for an `Inventory` event."""
        ...


@dataclass(frozen=True)
class LogEntry:
    """One line of the event log: what happened, to whom, in words and as data. `number` is the store's."""

    at_ms: int
    kind: str
    job_id: str | None
    text: str
    details: JsonObject = field(default_factory=dict)
    number: int = 0


@dataclass(frozen=True)
class Commit:
    """Everything one step changed, as JSON data.

    `jobs` maps ids to their new record (None: no longer active); a record holds the command that waits for
    an answer, so that state and pending command cannot part. `ended` maps ids to their last word, and is
    kept for good. `meta` is the engine's own state. `log` is what is told of the step, and `requests` maps
    ids that clients gave to their requests to the answer, so that a request which is repeated acts once.
    """

    jobs: Mapping[str, JsonObject | None]
    ended: Mapping[str, JsonObject]
    meta: JsonObject
    log: Sequence[LogEntry] = ()
    requests: Mapping[str, JsonObject] = field(default_factory=dict)
    documents: Mapping[str, JsonObject] = field(default_factory=dict)
    """What the service has learned, by name; replaced as a whole."""


@dataclass(frozen=True)
class StoredState:
    """Everything that was ever committed and still holds. `meta` is None in a new store."""

    jobs: Mapping[str, JsonObject] = field(default_factory=dict)
    ended: Mapping[str, JsonObject] = field(default_factory=dict)
    meta: JsonObject | None = None


class Store(Protocol):
    """Where the engine survives. A commit takes effect as a whole or, when it raises, not at all."""

    def commit(self, commit: Commit) -> None: ...

    def load(self) -> StoredState: ...


class StoreError(TrainmasterError):
    """The store could not read or write (locked, full, damaged); a commit that raises it changed nothing."""


@dataclass(frozen=True)
class EndedFilter:
    """Which ended jobs are asked for; None: any. `phases` are numbers of `model.job.Phase`."""

    phases: frozenset[int] | None = None
    name: str | None = None
    entity: str | None = None
    namespaces: frozenset[str] | None = None


class Archive(Store, Protocol):
    """A store that also tells of the past. Jobs that have ended are numbered by their id (`number_of`)."""

    def load_active(self) -> StoredState:
        """As `load`, but of ended jobs only `{"phase": ...}`: all that an engine needs to go on."""
        ...

    def find_request(self, request_id: str) -> JsonObject | None: ...

    def document(self, name: str) -> JsonObject | None:
        """The last one committed under this name."""
        ...

    def find_ended(self, job_id: str) -> JsonObject | None: ...

    def ended_page(self, after: int, limit: int, where: EndedFilter) -> list[JsonObject]:
        """At most `limit` records with a number above `after`, by number."""
        ...

    def latest_ended(self, limit: int, where: EndedFilter) -> list[JsonObject]:
        """The records that ended last, at most `limit`, the last first."""
        ...

    def count_ended(self, where: EndedFilter) -> int: ...

    def log_page(self, after: int, limit: int, job_id: str | None = None) -> list[LogEntry]: ...

    def last_log_number(self) -> int: ...

    def prune(self, before_ms: int, keep_ended: int, keep_log: int) -> list[str]:
        """Forget jobs that ended, and log lines and requests, before this time or beyond these numbers. Returns the
        ids of the jobs."""
        ...

    def close(self) -> None: ...


def number_of(job_id: str) -> int:
    """The number at the end of an id such as `job-12`; 0 when there is none."""
    digits = job_id.rpartition("-")[2]
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 19 else 0


def order_of(job_id: str, submit_ms: int) -> int:
    """A number by which pages of jobs are ordered: that of the id, or one from when the job came, for ids without."""
    if job_id.startswith("job-"):
        return number_of(job_id)
    return max(submit_ms, 0) * 100_000 + zlib.crc32(job_id.encode()) % 100_000

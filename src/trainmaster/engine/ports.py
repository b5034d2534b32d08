"""What the engine and its driver need from the outside, as small protocols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trainmaster.model.command import Command
from trainmaster.model.gangs import AllocationColumn
from trainmaster.model.job import JobSpec

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
JsonObject = dict[str, Any]


class Estimator(Protocol):
    """What is believed about a job's speed. Never the truth of the simulator."""

    def profile(self, spec: JobSpec, types: Sequence[str]) -> tuple[Floats, Floats]:
        """Steps per second at the reference size by type: on one node, and spread over several.

        0 where the job cannot run.

        An estimator that knows how jobs fare on shared devices also has
        `pair_speeds(spec_a, spec_b, types) -> J x 2 array | None` (see `Snapshot.pair_speeds`).
        """
        ...


class Backend(Protocol):
    """Acts on commands and never blocks; what comes of them returns as events."""

    def perform(self, command: Command) -> None: ...

    def observe(self) -> None:
        """Ask for an `Inventory` event."""
        ...


class Immediate(Protocol):
    """A backend that starts and stops gangs without delay, and answers for a whole plan within the call.

    Jobs are named by their slot in the engine's columns, `specs[slot]` is the job.
    """

    def exchange(
        self, now_ms: int, last_seq: int, specs: Sequence[JobSpec | None], stops: Ints, launches: Ints, first: Ints,
        flat: Ints, generation: Ints, answered: int,
    ) -> tuple[Floats, Floats, Ints] | None:  # fmt: skip
        """Stop the slots in `stops`, then launch those in `launches`, each in this order, as commands numbered up
        to `last_seq`. The gang of `launches[k]` begins at `first[k]` of `flat` (see `model.gangs`); its generation
        is the one after `generation[slot]`.

        Returns the work saved by each stop, and work and productive time of each start; but beyond the first
        `answered` launches, `Started` follows as an event all the same. None: it cannot be done so, and nothing was.
        """
        ...

    def hand_back(self, slots: Sequence[int], allocations: AllocationColumn) -> None:
        """Commands for these slots will come one by one, as to any backend; `allocations`: what they have now."""
        ...


@dataclass(frozen=True)
class Commit:
    """Everything one step changed, as JSON data.

    `jobs` maps ids to their new record (None: no longer active); a record holds the command that waits for
    an answer, so that state and pending command cannot part. `ended` maps ids to their last word, and is
    kept for good. `meta` is the engine's own state.
    """

    jobs: Mapping[str, JsonObject | None]
    ended: Mapping[str, JsonObject]
    meta: JsonObject


@dataclass(frozen=True)
class Image:
    """Everything that was ever committed and still holds. `meta` is None in a new store."""

    jobs: Mapping[str, JsonObject] = field(default_factory=dict)
    ended: Mapping[str, JsonObject] = field(default_factory=dict)
    meta: JsonObject | None = None


class Store(Protocol):
    """Where the engine survives. A commit takes effect as a whole or, when it raises, not at all."""

    def commit(self, commit: Commit) -> None: ...

    def load(self) -> Image: ...

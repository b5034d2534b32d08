"""What the engine and its driver need from the outside, as small protocols."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trainmaster.model.command import Command
from trainmaster.model.job import JobSpec

Floats = npt.NDArray[np.float64]


class Estimator(Protocol):
    """What is believed about a job's speed. Never the truth of the simulator."""

    def profile(self, spec: JobSpec, types: Sequence[str]) -> tuple[Floats, Floats]:
        """Steps per second at the reference size by type: on one node, and spread over several.

        0 where the job cannot run.
        """
        ...


class Backend(Protocol):
    """Acts on commands and never blocks; what comes of them returns as events."""

    def perform(self, command: Command) -> None: ...

    def observe(self) -> None:
        """Ask for an `Inventory` event."""
        ...


class Store(Protocol):
    """Where the engine survives. One commit holds everything a step changed, or nothing of it."""

    def commit(self, records: dict[str, dict[str, Any] | None], meta: dict[str, Any]) -> None:
        """`records` maps job ids to their new state (None: forget); `meta` is the engine's own state."""
        ...

    def load(self) -> tuple[dict[str, dict[str, Any]], dict[str, Any] | None]:
        """Everything committed; the meta is None in a new store."""
        ...

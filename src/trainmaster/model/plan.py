"""What a policy answers: allocations to change, verdicts, a reason for every job left waiting, memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from trainmaster.model.allocation import Allocation
from trainmaster.model.policy_state import EMPTY_POLICY_STATE, PolicyState
from trainmaster.model.reasons import Why


@dataclass(frozen=True, slots=True)
class Rejection:
    """A job refused for good, with the figures behind it."""

    why: Why
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """Desired allocation, written as changes to the present one. Rows are those of the snapshot.

    `changes[row]` is the allocation a job shall have, or None to stop it and let it wait. Jobs that are
    not mentioned keep what they have. `why[row]` says why a waiting job waits, `blocker[row]` which row
    it waits for (-1 or no array: none). `notes` records what the operator should know, such as a solver's fallback.
    """

    based_on: int
    changes: Mapping[int, Allocation | None]
    why: npt.NDArray[np.int8]
    blocker: npt.NDArray[np.int64] | None = None
    rejections: Mapping[int, Rejection] = field(default_factory=dict)
    admissions: tuple[int, ...] = ()
    details: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    memo: PolicyState = EMPTY_POLICY_STATE
    wake_at_ms: int | None = None
    notes: tuple[str, ...] = ()

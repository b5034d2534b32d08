"""How an incarnation ended: the file ended.json, written once, by its keeper or by whoever finds it dead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

EXITED = "exited"
STOPPED = "stopped"
START_FAILED = "start-failed"


@dataclass(frozen=True)
class Outcome:
    """`code` counts for EXITED only. `own_fault` is False when the machine, not the job, failed to start it."""

    kind: str
    code: int = 0
    why: str = ""
    started: bool = False
    """Whether all processes ran at some moment."""
    work_at_start: float = 0.0
    work_saved: float = 0.0
    seq: int = 0
    """The last command that it had carried out."""
    own_fault: bool = True


def outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    return asdict(outcome)


def outcome_from_json(data: Mapping[str, Any]) -> Outcome:
    return Outcome(**data)

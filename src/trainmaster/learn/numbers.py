"""A run's options as data, and bounds of the numbers among them, so that a slip is told before the run and not by a
traceback in it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, Self

from trainmaster.model.errors import InputError

SEED_MAX = 2**63 - 1
COUNT_MAX = 10**9
"""Of every count; nothing near it could be computed, and what is beyond machine integers fails in odd places."""


def check_numbers(
    options: Mapping[str, Any], *, positive: Sequence[str], counts: Sequence[str], seed: str = "seed"
) -> None:
    """All numbers are finite; `positive` ones above 0, `counts` at least 1, other whole numbers at least 0."""
    for name, value in options.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"'{name}' is {value}", "a finite number")
        if name in positive and not value > 0:
            raise InputError(f"'{name}' is {value}", "more than 0")
        if isinstance(value, bool) or not isinstance(value, int):
            continue
        least, most = (1 if name in counts else 0), (SEED_MAX if name == seed else COUNT_MAX)
        if value < least:
            raise InputError(f"'{name}' is {value}", f"{least} or more")
        if value > most:
            raise InputError(f"'{name}' is {value}", f"{most} or less")


class RunOptions:
    """A dataclass of options."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        known = {field.name for field in fields(cls)}  # type: ignore[arg-type]
        unknown = sorted(set(data) - known)
        if unknown:
            raise InputError(f"unknown training option '{unknown[0]}'", ", ".join(sorted(known)))
        return cls(**data)

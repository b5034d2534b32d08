"""Types of job fields with their bounds. Every bound holds on every way in: REST, YAML, options, TrainingJobs."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
    field_validator,
)

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
TEXT_PATTERN = r"^[^\x00]*$"
PATTERNS = {
    NAME_PATTERN: "at most 63 letters, digits, '.', '_' and '-', starting with a letter or digit",
    TEXT_PATTERN: "text without NUL characters",
    r"^/[^\x00]*$": "an absolute path",
    r"^[^=\x00]+$": "a variable name without '='",
}
"""What a pattern means, for messages."""
MAX_MEMBERS = 100_000
MAX_GPUS = 1024
MAX_NUMBER = 1e15
MAX_INTEGER = 1_000_000_000
MAX_TEXT = 131_072
"""Longest argument or variable that Linux accepts."""
MAX_ITEMS, MAX_DEPTH = 1_000, 8
SNAPSHOT_FILES, SNAPSHOT_BYTES = 20_000, 512 << 20
"""Largest work folder that is copied at submission."""

Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
"""Safe as a file name, a label and a DNS part; no shell ever sees it."""
Text = Annotated[str, StringConstraints(pattern=TEXT_PATTERN, max_length=MAX_TEXT)]
Word = Annotated[str, StringConstraints(pattern=TEXT_PATTERN, min_length=1, max_length=63)]
Reference = Annotated[str, StringConstraints(pattern=TEXT_PATTERN, min_length=1, max_length=200)]
AbsolutePath = Annotated[str, StringConstraints(pattern=r"^/[^\x00]*$", max_length=4096)]
Variable = Annotated[str, StringConstraints(pattern=r"^[^=\x00]+$", max_length=MAX_TEXT)]
Positive = Annotated[float, Field(gt=0, le=MAX_NUMBER, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, le=MAX_INTEGER, allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=1, le=MAX_INTEGER)]


class Body(BaseModel):
    """A request body: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class Range(BaseModel):
    """How many members; `max` defaults to `min`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min: Annotated[int, Field(ge=0, le=MAX_MEMBERS, description="Minimum.")] = 0
    max: Annotated[
        int, Field(ge=0, le=MAX_MEMBERS, default_factory=lambda data: data["min"], description="Maximum; default: min.")
    ]

    @field_validator("max")
    @classmethod
    def _ordered(cls, value: int, info: ValidationInfo) -> int:
        if value < info.data.get("min", 0):
            raise ValueError(f"minimum {info.data['min']} exceeds maximum {value}")
        return value


class Workers(Range):
    """At least one."""

    min: Annotated[int, Field(ge=1, le=MAX_MEMBERS, description="Minimum.")] = 1


def _has_program(words: list[str]) -> list[str]:
    if not words[0]:
        raise ValueError("command is empty")
    return words


Command = Annotated[list[Text], Field(min_length=1, max_length=4096), AfterValidator(_has_program)]


def _not_reserved(variables: dict[str, str]) -> dict[str, str]:
    for name in variables:
        if name.startswith("TRAINMASTER_"):
            raise ValueError(f"'{name[:80]}' is set by Trainmaster; use another name")
    return variables


Environment = Annotated[dict[Variable, Text], Field(max_length=MAX_ITEMS), AfterValidator(_not_reserved)]


def _dealt_out(gpus: float) -> float:
    if (gpus > 1 and round(gpus * 1000) % 1000) or (gpus > 0 and round(gpus * 1000) == 0):
        raise ValueError(f"{gpus:g} GPUs per worker: expected whole GPUs, or a fraction of one from 0.001")
    return gpus


Gpus = Annotated[float, Field(ge=0, le=MAX_GPUS, allow_inf_nan=False), AfterValidator(_dealt_out)]


def _bounded(value: dict[str, Any]) -> dict[str, Any]:
    """A free JSON object with bounded depth, count, lengths and numbers."""
    items = 0
    stack: list[tuple[Any, int]] = [(value, 0)]
    while stack:
        item, depth = stack.pop()
        items += 1
        if items > MAX_ITEMS or depth > MAX_DEPTH:
            raise ValueError(f"expected at most {MAX_ITEMS} values, nested at most {MAX_DEPTH} deep")
        if isinstance(item, dict):
            stack += [(part, depth + 1) for pair in item.items() for part in pair]
        elif isinstance(item, list | tuple):
            stack += [(part, depth + 1) for part in item]
        elif isinstance(item, str):
            _check_text(item)
        elif isinstance(item, int | float):
            if not (abs(item) <= MAX_NUMBER and math.isfinite(item)):
                raise ValueError(f"a number is out of range: expected at most {MAX_NUMBER:g}, finite")
        elif item is not None:
            raise ValueError(f"a value is of type {type(item).__name__}: expected JSON")
    return value


def _check_text(text: str) -> None:
    if len(text) > MAX_ITEMS or "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError(f"a text has a NUL, invalid Unicode or more than {MAX_ITEMS} characters")


MAX_SIZES = 64
_TERMS = "a", "b", "c", "d", "e", "f", "g"


def _as_text(value: Any) -> Any:
    """YAML reads the sizes of `{1: 10, 2: 18}` as numbers."""
    return {str(key): number for key, number in value.items()} if isinstance(value, dict) else value


def _a_curve(value: dict[str, float]) -> dict[str, float]:
    sizes = [key for key in value if key.isascii() and key.isdigit() and 1 <= int(key[:9]) <= MAX_MEMBERS]
    models = (not value or len(sizes) == len(value), set(value) == {"serial"}, set(value) <= set(_TERMS))
    if not any(models):
        raise ValueError(f"invalid scaling with {sorted(value)[:3]}: expected numbers of workers, serial, or a to g")
    if value.get("serial", 0.0) > 1.0:
        raise ValueError(f"serial part {value['serial']:g}: expected at most 1")
    if value and not any(value.values()):
        raise ValueError("scaling is all zero: expected a positive speed or step time")
    if any(value[key] <= 0 for key in sizes):
        raise ValueError("a measured speed is zero: expected steps per second")
    return value


Curve = Annotated[
    dict[Word, Annotated[float, Field(ge=0, le=MAX_NUMBER, allow_inf_nan=False)]],
    Field(max_length=MAX_SIZES),
    BeforeValidator(_as_text),
    AfterValidator(_a_curve),
]
UTILITY_KIND = {"type": "string", "maxLength": 40, "description": "Shape: sigmoid, linear, step or constant."}
FreeObject = Annotated[dict[str, Any], Field(max_length=MAX_ITEMS), AfterValidator(_bounded)]

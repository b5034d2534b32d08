"""What finishing at a given time is worth: non-increasing utility functions as frozen values.

The argument is the job's age at completion, that is completion minus arrival, in the utility's *own unit*:
job indices in an admission instance, seconds in a job trace. Whoever holds the utility knows the unit; nothing
here converts.

Every utility is non-negative and non-increasing on [0, inf); a description that is not raises `InputError`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from trainmaster.core.arrays import Floats
from trainmaster.model.errors import InputError
from trainmaster.model.foreign import is_finite

FloatArray = Floats
NEGATIVE_INFINITY = -math.inf


@runtime_checkable
class Utility(Protocol):
    """A non-increasing function of the time from arrival to completion."""

    kind: ClassVar[str]

    def value(self, age: float) -> float:
        """Utility of completing `age` time units after arrival."""
        ...

    def values(self, ages: Floats) -> Floats:
        """`value` for every element."""
        ...

    def log_value(self, age: float) -> float:
        """Natural logarithm of `value`; exact where `value` itself underflows; -inf where it is zero."""
        ...

    def to_json(self) -> dict[str, Any]:
        """The description `parse_utility` reads back."""
        ...


@dataclass(frozen=True)
class Sigmoid:
    """theta1 / (1 + exp(theta2 (t - theta3))): theta1 scale, theta2 urgency, theta3 expected completion."""

    theta1: float
    theta2: float
    theta3: float
    kind: ClassVar[str] = "sigmoid"

    def value(self, age: float) -> float:
        return math.exp(self.log_value(age)) if self.theta1 > 0 else 0.0

    def values(self, ages: Floats) -> Floats:
        exponent = self.theta2 * (np.asarray(ages, dtype=np.float64) - self.theta3)
        return self.theta1 * np.exp(-np.logaddexp(0.0, exponent))

    def log_value(self, age: float) -> float:
        if self.theta1 == 0:
            return NEGATIVE_INFINITY
        exponent = self.theta2 * (age - self.theta3)
        # ln(1 + e^x) without overflow: for large x it is x + ln(1 + e^-x).
        softplus = max(exponent, 0.0) + math.log1p(math.exp(-abs(exponent)))
        return math.log(self.theta1) - softplus

    def to_json(self) -> dict[str, Any]:
        return {"kind": "sigmoid", "theta1": self.theta1, "theta2": self.theta2, "theta3": self.theta3}


class _PlainLog:
    """For those whose values do not underflow."""

    def log_value(self: Utility, age: float) -> float:
        value = self.value(age)
        return math.log(value) if value > 0 else NEGATIVE_INFINITY


@dataclass(frozen=True)
class Linear(_PlainLog):
    """`start` at age 0, falling by `slope` per time unit, never below 0."""

    start: float
    slope: float
    kind: ClassVar[str] = "linear"

    def value(self, age: float) -> float:
        return max(0.0, self.start - self.slope * age)

    def values(self, ages: Floats) -> Floats:
        return np.maximum(0.0, self.start - self.slope * np.asarray(ages, dtype=np.float64))

    def to_json(self) -> dict[str, Any]:
        return {"kind": "linear", "start": self.start, "slope": self.slope}


@dataclass(frozen=True)
class Step(_PlainLog):
    """`levels[j]` up to and including age `times[j]`, `after` beyond the last: deadlines with value steps."""

    times: tuple[float, ...]
    levels: tuple[float, ...]
    after: float = 0.0
    kind: ClassVar[str] = "step"

    def value(self, age: float) -> float:
        for time, level in zip(self.times, self.levels, strict=True):
            if age <= time:
                return level
        return self.after

    def values(self, ages: Floats) -> Floats:
        levels = np.array([*self.levels, self.after])
        return levels[np.searchsorted(np.array(self.times), np.asarray(ages, dtype=np.float64), side="left")]

    def to_json(self) -> dict[str, Any]:
        steps = [[time, level] for time, level in zip(self.times, self.levels, strict=True)]
        return {"kind": "step", "steps": steps, "after": self.after}


@dataclass(frozen=True)
class Constant(_PlainLog):
    """The same at any age: a job that is not in a hurry."""

    level: float
    kind: ClassVar[str] = "constant"

    def value(self, age: float) -> float:  # noqa: ARG002 - the age does not matter
        return self.level

    def values(self, ages: Floats) -> Floats:
        return np.full(np.shape(ages), self.level, dtype=np.float64)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "constant", "value": self.level}


@dataclass(frozen=True)
class Points(_PlainLog):
    """Straight lines through user-given points; level before the first point and after the last."""

    times: tuple[float, ...]
    levels: tuple[float, ...]
    kind: ClassVar[str] = "points"

    def value(self, age: float) -> float:
        return float(np.interp(age, self.times, self.levels))

    def values(self, ages: Floats) -> Floats:
        return np.interp(np.asarray(ages, dtype=np.float64), self.times, self.levels)

    def to_json(self) -> dict[str, Any]:
        points = [[time, level] for time, level in zip(self.times, self.levels, strict=True)]
        return {"kind": "points", "points": points}


def parse_utility(description: Any, *, file: str | None = None, column: str = "utility") -> Utility:
    """The utility that a JSON object describes; `InputError` when it is malformed, negative or increasing."""
    where = _Where(file, None, column)
    if not isinstance(description, Mapping):
        raise where.error(f"a utility must be an object, not {type(description).__name__}", _KINDS_TEXT)
    kind = description.get("kind")
    if kind == "sigmoid":
        theta1, theta2, theta3 = (_number(description, key, where) for key in ("theta1", "theta2", "theta3"))
        _check_not_negative(theta1, where.at("theta1"))
        if theta2 < 0:
            raise where.at("theta2").increasing(f"theta2 = {theta2:g} makes the sigmoid rise with time")
        return Sigmoid(theta1, theta2, theta3)
    if kind == "linear":
        start, slope = _number(description, "start", where), _number(description, "slope", where)
        _check_not_negative(start, where.at("start"))
        if slope < 0:
            raise where.at("slope").increasing(f"slope = {slope:g}; the utility falls by `slope` per time unit")
        return Linear(start, slope)
    if kind == "constant":
        level = _number(description, "value", where)
        _check_not_negative(level, where.at("value"))
        return Constant(level)
    if kind == "step":
        times, levels = _pairs(description.get("steps"), where.at("steps"))
        after = _number(description, "after", where) if "after" in description else 0.0
        _check_curve(times, (*levels, after), where.at("steps"))
        return Step(times, levels, after)
    if kind == "points":
        times, levels = _pairs(description.get("points"), where.at("points"))
        _check_curve(times, levels, where.at("points"))
        return Points(times, levels)
    raise where.at("kind").error(f"unknown kind of utility {kind!r}", _KINDS_TEXT)


_KINDS_TEXT = (
    '{"kind": "sigmoid", "theta1", "theta2", "theta3"} | {"kind": "linear", "start", "slope"} | '
    '{"kind": "step", "steps": [[t, value]], "after"} | {"kind": "constant", "value"} | '
    '{"kind": "points", "points": [[t, value]]}'
)


@dataclass(frozen=True)
class _Where:
    file: str | None
    line: int | None
    column: str

    def at(self, key: str) -> _Where:
        return _Where(self.file, self.line, f"{self.column}.{key}")

    def error(self, what: str, expected: str, remedy: str = "") -> InputError:
        return InputError(what, expected, remedy, self.file, self.line, self.column)

    def increasing(self, detail: str) -> InputError:
        return self.error(
            f"the utility increases with completion time: {detail}",
            "a utility that never rises as a job finishes later",
            "Reverse the sign or the order of the values",
        )


def _number(description: Mapping[str, Any], key: str, where: _Where) -> float:
    value: Any = description.get(key)
    if not is_finite(value):
        fault = "is missing" if key not in description else f"is {value!r}"
        raise where.at(key).error(f"'{key}' of the {description.get('kind')} utility {fault}", "a finite number")
    return float(value)


def _check_not_negative(value: float, where: _Where) -> None:
    if value < 0:
        raise where.error(f"the utility is negative: {value:g}", "a number >= 0")


def _pairs(raw: Any, where: _Where) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if not isinstance(raw, Sequence) or isinstance(raw, str) or not raw:
        raise where.error("no pairs of time and value", "a non-empty list of [t, value]")
    for pair in raw:
        numbers = isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2
        if not numbers or not all(is_finite(x) for x in pair):
            raise where.error(f"{pair!r} is not a pair of finite numbers", "[t, value]")
    return tuple(float(pair[0]) for pair in raw), tuple(float(pair[1]) for pair in raw)


def _check_curve(times: tuple[float, ...], levels: tuple[float, ...], where: _Where) -> None:
    if times[0] < 0:
        raise where.error(f"time {times[0]:g} lies before arrival", "times >= 0")
    for earlier, later in pairwise(times):
        if later <= earlier:
            raise where.error(f"time {later:g} follows {earlier:g}", "strictly rising times", "Sort the pairs by time")
    for level in levels:
        _check_not_negative(level, where)
    for higher, lower in pairwise(levels):
        if lower > higher:
            raise where.increasing(f"{lower:g} comes after {higher:g}")

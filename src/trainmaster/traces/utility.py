"""The `utility` column: what finishing at a given time is worth, as steps or as a sigmoid."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class StepUtility:
    """Worth `values[i]` when finished by `times_s[i]` (trace clock, ascending), nothing after the last."""

    times_s: tuple[float, ...]
    values: tuple[float, ...]

    def at(self, finish_s: float) -> float:
        for time_s, value in zip(self.times_s, self.values, strict=True):
            if finish_s <= time_s:
                return value
        return 0.0


@dataclass(frozen=True)
class SigmoidUtility:
    """theta1 / (1 + exp(theta2 * (latency_s - theta3))), latency = finish - submit (OASiS, INFOCOM'18)."""

    theta1: float
    theta2: float
    theta3: float

    def after(self, latency_s: float) -> float:
        exponent = self.theta2 * (latency_s - self.theta3)
        return 0.0 if exponent > 700.0 else self.theta1 / (1.0 + math.exp(exponent))


def parse_utility(text: str) -> StepUtility | SigmoidUtility:
    """`3600:10|7200:5` or `sigmoid:theta1,theta2,theta3`; `ValueError` says what is wrong."""
    if text.startswith("sigmoid:"):
        thetas = [_number(part, text) for part in text.removeprefix("sigmoid:").split(",")]
        if len(thetas) != 3 or thetas[0] < 0 or thetas[1] < 0:
            raise ValueError(f"utility {text!r} needs three thetas, the first two not negative")
        return SigmoidUtility(*thetas)
    times, values = [], []
    for pair in text.split("|"):
        time_text, colon, value_text = pair.partition(":")
        if not colon:
            raise ValueError(f"utility {text!r} has {pair!r} where a t:value pair should be")
        times.append(_number(time_text, text))
        values.append(_number(value_text, text))
    if any(later <= earlier for earlier, later in pairwise(times)):
        raise ValueError(f"utility {text!r} has times that do not ascend")
    return StepUtility(tuple(times), tuple(values))


def format_steps(times_s: list[float], values: list[float]) -> str:
    return "|".join(f"{_plain(t)}:{_plain(v)}" for t, v in zip(times_s, values, strict=True))


def shift_utility(text: str, by_s: float, scale: float = 1.0) -> str:
    """The same utility on a trace clock moved by `by_s` after stretching by `scale`; sigmoids do not move."""
    parsed = parse_utility(text)
    if isinstance(parsed, SigmoidUtility):
        return text
    return format_steps([t * scale + by_s for t in parsed.times_s], list(parsed.values))


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) and abs(number) < 1e15 else repr(number)


def _number(text: str, whole: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"utility {whole!r} has {text!r} where a number should be") from None
    if not math.isfinite(number):
        raise ValueError(f"utility {whole!r} is not finite")
    return number

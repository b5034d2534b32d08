"""The `utility` column of a trace, in text: `t:value` steps on the trace clock, or a sigmoid of the age.

`3600:10|7200:5` is worth 10 when finished by 3600 s on the trace clock, 5 by 7200 s, nothing later;
`sigmoid:theta1,theta2,theta3` is theta1 / (1 + exp(theta2 (age - theta3))), age in seconds since submission.
What the text means is a utility of `trainmaster.model.utility`; `at_age` gives the one a job carries.
"""

from __future__ import annotations

import math
import re
from itertools import pairwise

from trainmaster.model.utility import Constant, Sigmoid, Step, Utility

EXPECTED = "`t:value` pairs joined by a bar, such as 3600:10|7200:5, or sigmoid:theta1,theta2,theta3"
_SIGMOID = "sigmoid:"


def parse_cell(text: str) -> Step | Sigmoid:
    """Steps keep the times of the trace clock; `ValueError` says what is wrong."""
    if text.startswith(_SIGMOID):
        thetas = [_number(part, text) for part in text.removeprefix(_SIGMOID).split(",")]
        if len(thetas) != 3 or thetas[0] < 0 or thetas[1] < 0:
            raise ValueError(f"utility {text!r} needs three thetas, the first two not negative")
        return Sigmoid(*thetas)
    times_s: list[float] = []
    values: list[float] = []
    for pair in filter(None, re.split(r"[|;\s]+", text)):
        time_text, colon, value_text = pair.partition(":")
        if not colon:
            raise ValueError(f"utility {text!r} has {pair!r} where a t:value pair should be")
        times_s.append(_number(time_text, text))
        values.append(_number(value_text, text))
    if not times_s:
        raise ValueError(f"utility {text!r} has no t:value pair")
    if any(later <= earlier for earlier, later in pairwise(times_s)):
        raise ValueError(f"utility {text!r} has times that do not ascend")
    if min(values) < 0 or any(later > earlier for earlier, later in pairwise(values)):
        raise ValueError(f"utility {text!r} has values that are negative or rise with time")
    return Step(tuple(times_s), tuple(values))


def at_age(text: str, submit_s: float) -> Utility:
    """The utility of a job submitted at `submit_s`, as a function of its age in seconds at completion."""
    parsed = parse_cell(text)
    if isinstance(parsed, Sigmoid):
        return parsed
    steps = [(t - submit_s, v) for t, v in zip(parsed.times, parsed.levels, strict=True) if t > submit_s]
    if not steps:
        return Constant(0.0)
    return Step(tuple(t for t, _ in steps), tuple(v for _, v in steps))


def format_steps(times_s: list[float], values: list[float]) -> str:
    return "|".join(f"{_plain(t)}:{_plain(v)}" for t, v in zip(times_s, values, strict=True))


def shift_utility(text: str, by_s: float) -> str:
    """The same utility on a trace clock moved by `by_s`; sigmoids are of the age and do not move."""
    parsed = parse_cell(text)
    if isinstance(parsed, Sigmoid):
        return text
    return format_steps([t + by_s for t in parsed.times], list(parsed.levels))


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

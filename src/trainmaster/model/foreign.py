"""What comes from outside: JSON of bounded depth, finite numbers of a sane size, texts that can be written.

Everything that users, jobs, pods, files or the network say passes here first, so that one bad value is refused where
it comes in. Standard library only, Python 3.8: it is part of the launcher.
"""

from __future__ import annotations

import json
from typing import Any

MAX_NUMBER = 1e15
"""Of steps, rates, losses and seconds that somebody reports."""
MAX_WHOLE = 2**62


def parse_json(data: bytes | str) -> Any:
    """`ValueError` for whatever is not JSON, nesting beyond measure included. NaN and infinities become null."""
    try:
        return json.loads(data, parse_constant=lambda _: None)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def is_finite(value: Any, most: float = 1e300) -> bool:
    """Whether it is a finite number; never raises, whatever the number of its digits."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -most <= value <= most


def is_whole(value: Any, least: int = -MAX_WHOLE, most: int = MAX_WHOLE) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_text(value: Any) -> bool:
    """Whether it is a text that UTF-8 can hold: half a surrogate pair cannot be written to a log or a store."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False

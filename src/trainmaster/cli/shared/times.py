"""Durations and instants as people write and read them: `2h`, `1h30m`, `2026-11-17 18:00`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime

from trainmaster.model.errors import InputError

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])", re.ASCII)
_WHOLE = re.compile(rf"(?:{_PART.pattern}\s*)+", re.ASCII)


def seconds_of(text: str, option: str) -> float:
    """`90m`, `1h30m`, `2d`, or plain seconds."""
    cleaned = text.strip().lower()
    if _WHOLE.fullmatch(cleaned):
        return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(cleaned))
    try:
        seconds = float(cleaned) if cleaned.isascii() else float("nan")
    except ValueError:
        seconds = float("nan")
    if not 0 <= seconds < float("inf"):
        raise InputError(f"invalid duration '{text}'", "such as 90m, 2h, 1h30m or 3d", column=option)
    return seconds


def deadline_seconds(text: str, now_s: float, option: str = "--deadline") -> float:
    """Seconds from now to a deadline that is a duration or an instant (local time unless it names an offset)."""
    try:
        instant = datetime.fromisoformat(text.strip())
    except ValueError:
        instant = None
    if instant is None or text.strip().isdigit():  # `20261117` may be either; whole numbers are seconds
        try:
            left_s = seconds_of(text, option)
        except InputError:
            expected = "a duration such as 90m, 2h, 3d, or an instant such as 2026-11-17T18:00"
            raise InputError(f"invalid deadline '{text}'", expected, column=option) from None
    else:
        left_s = instant.astimezone().timestamp() - now_s
    if left_s <= 0:
        raise InputError(f"deadline {text} is in the past", column=option)
    return left_s


def short(seconds: float | None) -> str:
    """Two units at most: `45s`, `12m`, `3h05m`, `2d04h`; `-` for unknown; a minus sign when it has passed."""
    if seconds is None:
        return "-"
    sign = "-" if seconds < 0 else ""
    whole = round(abs(seconds))
    if whole < 60:
        return f"{sign if whole else ''}{whole}s"
    if whole < 3600:
        minutes, rest = divmod(whole, 60)
        return f"{sign}{minutes}m{rest:02d}s" if minutes < 10 else f"{sign}{minutes}m"
    if whole < 86_400:
        return f"{sign}{whole // 3600}h{whole % 3600 // 60:02d}m"
    if whole < 100 * 86_400:
        return f"{sign}{whole // 86_400}d{whole % 86_400 // 3600:02d}h"
    return f"{sign}{whole // 86_400}d"


def banded(band: Mapping[str, float], middle: str = "") -> str:
    """A predicted time with the range that holds it nine times of ten."""
    return f"{middle or short(band['p50_s'])} ({short(band['p05_s'])} to {short(band['p95_s'])}, 9 of 10 times)"


def instant(at_s: float | None) -> str:
    """Local date and time, or `-`."""
    return "-" if at_s is None else datetime.fromtimestamp(at_s).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def clock(at_s: float) -> str:
    """Local time of day."""
    return datetime.fromtimestamp(at_s).strftime("%H:%M:%S")

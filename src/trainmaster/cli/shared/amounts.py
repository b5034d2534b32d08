"""Numbers as options give them: ranges such as `1..4`, memory such as `8GiB`, pairs such as `K=V`."""

from __future__ import annotations

import os
import re
from math import ceil, nan

from trainmaster.model.errors import InputError

_RANGE = re.compile(r"\s*(\d{1,6})\s*(?:\.\.\s*(\d{1,6})\s*)?", re.ASCII)
_MEMORY = re.compile(r"\s*(\d{1,12}(?:\.\d+)?)\s*([kmgt]?)(i?)(b?)\s*", re.ASCII | re.IGNORECASE)
_BYTES = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def range_of(text: str, option: str) -> dict[str, int]:
    """`2..4`, or `3` for exactly three."""
    match = _RANGE.fullmatch(text)
    if match is None:
        raise InputError(f"invalid range '{text}'", "A..B or N, such as 1..4", column=option)
    low = int(match[1])
    high = low if match[2] is None else int(match[2])
    if low > high:
        raise InputError(f"invalid range '{text}': minimum exceeds maximum", f"{high}..{low}", column=option)
    return {"min": low, "max": high}


def mib_of(text: str, option: str) -> int:
    """Memory in MiB, rounded up: `512M`, `8GiB`, `8GB` (decimal); a plain number is MiB."""
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise InputError(f"invalid memory '{text}'", "such as 512M, 8GiB or 16G", column=option)
    number, unit, binary, byte = float(match[1]), match[2].lower(), match[3], match[4]
    if not unit and not byte and not binary:
        return ceil(number)
    decimal = bool(byte) and not binary and bool(unit)  # 8GB is 8e9; 8G and 8GiB are 8 * 2**30
    amount = number * (1000 if decimal else 1024) ** _BYTES[unit]
    return ceil(amount / 2**20)


def number_of(text: str, option: str) -> float:
    try:
        number = float(text) if text.isascii() and "_" not in text else nan
    except ValueError:
        number = nan
    if not 0 <= number <= 100_000:
        raise InputError(f"invalid number '{text}'", "0 to 100000", column=option)
    return number


def speeds_of(pairs: list[str], option: str) -> dict[str, str]:
    """Numbers by type of accelerator: `v100=12.5`."""
    found = {kind: number for kind, equals, number in (pair.partition("=") for pair in pairs) if kind and equals}
    if len(found) != len(pairs):
        raise InputError(f"invalid speed '{' '.join(pairs)}'", "TYPE=STEPS_PER_SECOND, as v100=12.5", column=option)
    return found


def curve_of(text: str, option: str) -> dict[str, str]:
    """Measured speeds by number of workers, `1=10,2=18.5`, or a model: `serial=0.1`."""
    found = {key: number for key, equals, number in (pair.partition("=") for pair in text.split(",")) if key and equals}
    if len(found) != text.count(",") + 1:
        raise InputError(
            f"invalid scaling '{text}'", "W=STEPS_PER_SECOND,... as 1=10,2=18.5, or serial=0.1", column=option
        )
    return found


def environment_of(pairs: list[str], option: str) -> dict[str, str]:
    """`K=V`, or `K` alone for the value it has here."""
    wanted: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not _VARIABLE.fullmatch(name):
            raise InputError(f"invalid variable '{pair}'", "NAME=VALUE", column=option)
        if not equals:
            if name not in os.environ:
                raise InputError(f"'{name}' is not set here", f"{name}=VALUE", column=option)
            value = os.environ[name]
        wanted[name] = value
    return wanted

"""What the commands of `trainmaster learn` share: options by name, the recorded command, the need for PyTorch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from trainmaster.model.errors import InputError


def need_torch() -> None:
    if find_spec("torch") is None:
        raise InputError("training needs PyTorch", "the extra 'learn'", "pip install 'trainmaster[learn]'")


def documented(arguments: Sequence[str], left_out: Sequence[str]) -> list[str]:
    """The command as recorded in the weights, without options that name files, which differ from machine to machine,
    and without `--resume`, which changes nothing about them."""
    kept, skip = [], False
    for argument in arguments:
        if skip or argument.startswith(tuple(f"{name}=" for name in left_out)):
            skip = False
        elif argument in left_out:
            skip = True
        elif argument != "--resume":
            kept.append(argument)
    return kept


def typed_options(pairs: Sequence[str], known: Mapping[str, Any], own: Sequence[str]) -> dict[str, Any]:
    """`name=value` pairs, each of the type that its option has. `own`: those that the command has an option for."""
    chosen: dict[str, Any] = {}
    known = {name: value for name, value in known.items() if name not in own}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if name in own:
            raise InputError(f"unknown training option '{pair}'", f"--{name}", column="--set")
        if not equals or name not in known:
            raise InputError(f"no training option '{pair}'", ", ".join(sorted(known)), column="--set")
        if isinstance(known[name], str):
            chosen[name] = value
            continue
        try:
            parsed = json.loads(value)
        except json.JSONDecodeError:
            parsed = None
        if isinstance(known[name], float) and isinstance(parsed, int) and not isinstance(parsed, bool):
            parsed = float(parsed)
        if type(parsed) is not type(known[name]):
            raise InputError(f"'{name}' is '{value}'", f"something like {json.dumps(known[name])}", column="--set")
        chosen[name] = parsed
    return chosen

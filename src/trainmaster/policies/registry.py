"""Policies by name: `fifo`, `gavel-max-min:aware=false,space_sharing=true`.

A policy is a frozen dataclass with a `decide` method; its fields are its options. Adding a file to this
package that registers one is all it takes; other packages offer theirs through the entry-point group
`trainmaster.policies` (an entry point that names a module to import).
"""

from __future__ import annotations

import importlib
import pkgutil
import typing
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from functools import cache
from importlib.metadata import entry_points
from typing import Any, TypeVar

from trainmaster.model.errors import InputError
from trainmaster.model.policy import Policy

C = TypeVar("C", bound=type)


@dataclass(frozen=True)
class Option:
    name: str
    type: type
    default: Any
    help: str


@dataclass(frozen=True)
class Entry:
    """A registered policy. `fair`: no job that could run waits for ever under it."""

    name: str
    build: Callable[..., Policy]
    fair: bool
    preset: dict[str, Any]

    @property
    def summary(self) -> str:
        return (self.build.__doc__ or "").strip().split("\n")[0]

    @property
    def options(self) -> tuple[Option, ...]:
        hints = typing.get_type_hints(self.build)
        return tuple(
            Option(
                name=field.name,
                type=hints[field.name],
                default=None if field.default is MISSING else field.default,
                help=field.metadata.get("help", ""),
            )
            for field in fields(self.build)  # type: ignore[arg-type]
            if field.name not in self.preset
        )


_ENTRIES: dict[str, Entry] = {}


def register(name: str, *, fair: bool = False, **preset: Any) -> Callable[[C], C]:
    """Class decorator: make a policy known by this name; `preset` fixes some of its fields."""

    def add(cls: C) -> C:
        if name in _ENTRIES and _ENTRIES[name].build is not cls:
            raise ValueError(f"two policies are called '{name}'")
        _ENTRIES[name] = Entry(name, cls, fair, preset)
        return cls

    return add


@cache
def _discover() -> None:
    package = importlib.import_module("trainmaster.policies")
    for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda m: m.name):
        if module.name != "registry":
            importlib.import_module(f"trainmaster.policies.{module.name}")
    for point in sorted(entry_points(group="trainmaster.policies"), key=lambda p: p.name):
        point.load()


def entries() -> tuple[Entry, ...]:
    _discover()
    return tuple(_ENTRIES[name] for name in sorted(_ENTRIES))


def entry(name: str) -> Entry:
    _discover()
    if name not in _ENTRIES:
        near = get_close_matches(name, _ENTRIES, n=1)
        hint = f"Did you mean '{near[0]}'? " if near else ""
        raise InputError(
            f"unknown policy '{name}'",
            expected="one of " + ", ".join(sorted(_ENTRIES)),
            remedy=hint + "`trainmaster policies` describes them.",
        )
    return _ENTRIES[name]


def parse(text: str) -> tuple[Entry, dict[str, Any]]:
    """Split `name:option=value,...` and check the options against the policy's fields."""
    name, _, tail = text.strip().partition(":")
    found = entry(name)
    known = {option.name: option for option in found.options}
    chosen: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in tail.split(","))):
        key, equals, value = item.partition("=")
        option = known.get(key.strip())
        if option is not None and not equals:
            raise InputError(
                f"option '{option.name}' of policy '{name}' has no value",
                expected=f"{name}:{option.name}=VALUE, such as {option.name}={_show(option.default)}",
            )
        if option is None:
            raise InputError(
                f"policy '{name}' has no option '{item}'",
                expected=", ".join(f"{o.name}={_show(o.default)}" for o in found.options) or "no options",
                remedy="Write options as name:option=value,option=value.",
            )
        if option.name in chosen:
            raise InputError(f"option '{option.name}' of policy '{name}' is given twice", expected="each option once")
        chosen[option.name] = _convert(name, option, value.strip())
    return found, chosen


def create(text: str) -> Policy:
    """The policy that a name with options describes."""
    found, chosen = parse(text)
    return found.build(**found.preset, **chosen)


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "/".join(f"{v:g}" for v in value)
    return str(value)


def _convert(policy: str, option: Option, value: str) -> Any:
    kind = option.type
    try:
        if kind is bool:
            return {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}[value.lower()]
        if kind is int:
            return int(value)
        if kind is float:
            number = float(value)
            if number != number or number in (float("inf"), float("-inf")):
                raise ValueError
            return number
        if typing.get_origin(kind) is tuple:
            return tuple(float(part) for part in value.split("/"))
        return value
    except (KeyError, ValueError):
        wanted = {bool: "true or false", int: "a whole number", float: "a number"}.get(kind, "numbers like 1/2/3")
        raise InputError(f"option '{option.name}' of policy '{policy}' is '{value}'", expected=wanted) from None

"""Options parsed without the library that typer loads for it, which takes longer than `trainmaster queue` itself.

Newer versions of typer convert every value by pydantic. Texts, numbers and paths need no such help; everything
else, and everything wrong, goes to typer's own conversion and its messages. Where typer has no such hook, nothing
is changed but the time.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, get_args, get_origin

from typer.core import TyperCommand

_HOOK = "get_runtime_param"
_PATH_CHECKS = ("exists", "resolve_path", "allow_dash")


class QuickParameters:
    """For commands and groups: their parameters, each with the short way first."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            hook = getattr(parameter, _HOOK, None)
            if hook is not None and hasattr(parameter, "type_descriptor") and not _is_ours(hook):
                setattr(parameter, _HOOK, _Quick(parameter, hook).itself)
        return parameters


class QuickCommand(QuickParameters, TyperCommand):
    """A command whose options cost no library."""


def _is_ours(hook: Any) -> bool:
    return isinstance(getattr(hook, "__self__", None), _Quick)


class _Unsure(Exception):
    """Not for us: typer knows what to do or to say."""


class _Quick:
    def __init__(self, parameter: Any, slow: Any) -> None:
        self._slow = slow
        self._kind = parameter.type_descriptor.annotation
        self._info = parameter.type_descriptor.parameter_info

    def itself(self) -> _Quick:
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            if value is None:
                return () if param.multiple or param.nargs == -1 else None
            if get_origin(self._kind) is list and isinstance(value, list | tuple):
                (inner,) = get_args(self._kind)
                return [self._one(inner, item) for item in value]
            return self._one(self._kind, value)
        except _Unsure:
            return self._slow().coerce(value, param=param, ctx=ctx)

    def _one(self, kind: Any, value: Any) -> Any:
        if self._info.parser is not None or not isinstance(value, str | int | float | Path):
            raise _Unsure
        if kind is str and isinstance(value, str):
            return value
        checked = any(getattr(self._info, check, False) for check in _PATH_CHECKS)
        if kind is Path and isinstance(value, str | Path) and not checked:
            return Path(value)
        if kind in (int, float) and not isinstance(value, bool | Path):
            return self._number(kind, value)
        raise _Unsure

    def _number(self, kind: Any, value: str | int | float) -> Any:
        try:
            number = kind(value) if not isinstance(value, str) or (value.isascii() and "_" not in value) else None
        except ValueError:
            number = None
        low, high = self._info.min, self._info.max
        if number is None or not math.isfinite(number):
            raise _Unsure
        if (low is not None and number < low) or (high is not None and number > high):
            raise _Unsure
        return number

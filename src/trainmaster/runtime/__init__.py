"""What a training script imports. Names load on first use, so that no script pays for what it leaves alone.

`import trainmaster.runtime` itself needs the standard library only; torch is loaded by what uses it.
"""

from __future__ import annotations

import importlib
from typing import Any

_WHERE: dict[str, str] = {}
"""Public name -> module of this package that defines it."""


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *_WHERE]

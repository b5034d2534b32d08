"""While `forbidden_globals` holds, clocks, global random numbers and the environment raise."""

from __future__ import annotations

import contextlib
import os
import random
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

_CLOCKS = (
    "time",
    "time_ns",
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "perf_counter_ns",
    "process_time",
    "sleep",
)
_RANDOM = (
    "random",
    "randint",
    "choice",
    "choices",
    "shuffle",
    "sample",
    "uniform",
    "gauss",
    "seed",
    "randrange",
)
_NUMPY_RANDOM = (
    "rand",
    "randn",
    "randint",
    "random",
    "choice",
    "shuffle",
    "permutation",
    "normal",
    "uniform",
    "seed",
)


def _refuse(name: str) -> Callable[..., Any]:
    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError(f"{name} was used inside decide()")

    return refused


def _seeded_only(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    def checked(seed: Any = None, *rest: Any, **named: Any) -> Any:
        if seed is None:
            raise AssertionError(f"{name} was used without a seed inside decide()")
        return original(seed, *rest, **named)

    return checked


@contextlib.contextmanager
def forbidden_globals() -> Iterator[None]:
    """Replace them for the time of a `with` block."""
    wanted: list[tuple[Any, str, Any]] = []
    for module, label, names in ((time, "time", _CLOCKS), (random, "random", _RANDOM)):
        wanted += [(module, name, _refuse(f"{label}.{name}")) for name in names]
    wanted += [(np.random, name, _refuse(f"numpy.random.{name}")) for name in _NUMPY_RANDOM]
    wanted.append((np.random, "default_rng", _seeded_only(np.random.default_rng, "numpy.random.default_rng")))
    wanted += [(uuid, "uuid4", _refuse("uuid.uuid4")), (uuid, "uuid1", _refuse("uuid.uuid1"))]
    wanted += [(os, "urandom", _refuse("os.urandom")), (os, "getenv", _refuse("os.getenv"))]
    saved = [(module, name, getattr(module, name)) for module, name, _ in wanted]
    try:
        for module, name, stand_in in wanted:
            setattr(module, name, stand_in)
        yield
    finally:
        for module, name, original in saved:
            setattr(module, name, original)

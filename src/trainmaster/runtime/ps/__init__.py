"""Elastic parameter server: `join` in a training script; servers and workers may come and go while it trains.

Names load on first use, so that a server process never loads what only workers need.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainmaster.runtime.ps.exchange import ServersLost
    from trainmaster.runtime.ps.job import PsJob, join, serve_if_server
    from trainmaster.runtime.ps.optimizer import Adagrad, Adam, Sgd

__all__ = ["Adagrad", "Adam", "PsJob", "ServersLost", "Sgd", "join", "serve_if_server"]

_WHERE = {
    "Adagrad": "optimizer",
    "Adam": "optimizer",
    "PsJob": "job",
    "ServersLost": "exchange",
    "Sgd": "optimizer",
    "join": "job",
    "serve_if_server": "job",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)

"""What a training script imports. Names load on first use, so that no script pays for what it leaves alone.

`import trainmaster.runtime` itself needs the standard library only; torch is loaded by what uses it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_WHERE: dict[str, str] = {
    "Batch": "elastic_training",
    "Checkpoints": "checkpoint",
    "ElasticTraining": "elastic_training",
    "Folder": "checkpoint",
    "Session": "training_session",
    "elastic": "elastic_training",
    "session": "training_session",
}
"""Public name -> module of this package that defines it (never a module of the same name: it would hide it)."""

if TYPE_CHECKING:
    from trainmaster.runtime.checkpoint import Checkpoints as Checkpoints
    from trainmaster.runtime.checkpoint import Folder as Folder
    from trainmaster.runtime.elastic_training import Batch as Batch
    from trainmaster.runtime.elastic_training import ElasticTraining as ElasticTraining
    from trainmaster.runtime.elastic_training import elastic as elastic
    from trainmaster.runtime.training_session import Session as Session
    from trainmaster.runtime.training_session import session as session


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{_WHERE[name]}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from trainmaster.runtime.errors import missing

        raise missing(f"runtime.{name}", "torch") from None
    return getattr(module, name)


def __dir__() -> list[str]:
    return [*globals(), *_WHERE]

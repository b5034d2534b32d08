"""What all members of one parameter-server job must agree on; the first worker brings it, the others must match."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainmaster.model.errors import InputError
from trainmaster.runtime.ps.layout import Layout
from trainmaster.runtime.ps.optimizer import Optimizer, optimizer_from_json, optimizer_to_json


@dataclass(frozen=True)
class Terms:
    """`sync`: an update is the mean of one gradient of every worker. `staleness`: how many steps the fastest
    worker may be ahead of the slowest (None: any number). `replica_lag`: how many acknowledged updates of a
    block its backup may lack (0: none; None: no backups)."""

    layout: Layout
    optimizer: Optimizer
    sync: bool = False
    staleness: int | None = None
    replica_lag: int | None = 16

    def __post_init__(self) -> None:
        for name, value in (("staleness", self.staleness), ("replica_lag", self.replica_lag)):
            if value is not None and value < 0:
                raise InputError(f"{name} is {value}", "None or a whole number, at least 0", column=name)
        if self.sync and self.staleness is not None:
            raise InputError("both sync and staleness", "one of them", "Synchronous training has no staleness.")

    def to_json(self) -> dict[str, Any]:
        return {
            "layout": self.layout.to_json(),
            "optimizer": optimizer_to_json(self.optimizer),
            "sync": self.sync,
            "staleness": self.staleness,
            "replica_lag": self.replica_lag,
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> Terms:
        return Terms(
            Layout.from_json(data["layout"]),
            optimizer_from_json(data["optimizer"]),
            bool(data["sync"]),
            data["staleness"],
            data["replica_lag"],
        )

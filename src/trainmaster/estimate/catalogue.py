"""Throughput catalogues: steps per second of a model on so many GPUs of a type, alone or in a pair."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

Origin = Literal["measured", "estimated"]

_BATCH_SUFFIX = re.compile(r"^(?P<base>.*?) \(batch size (?P<batch>\d+)\)$")


@runtime_checkable
class ThroughputCatalogue(Protocol):
    """What policies' estimators and the simulator's truth ask of a catalogue.

    `None` means the catalogue does not know; `0.0` means it knows that the job cannot run there.
    Steps are mini-batches of one worker, counted over all workers (as Gavel counts them): eight data-parallel
    GPUs make eight steps in the time of one synchronised update.
    """

    @property
    def types(self) -> tuple[str, ...]: ...

    @property
    def models(self) -> tuple[str, ...]: ...

    def steps_per_s(
        self, model: str, gpus: int, accelerator: str, *, spread: bool = False, batch_size: int | None = None
    ) -> float | None: ...

    def pair_steps_per_s(
        self, model_a: str, gpus_a: int, model_b: str, gpus_b: int, accelerator: str
    ) -> tuple[float, float] | None: ...

    def origin(self, model: str, gpus: int, accelerator: str, *, spread: bool = False) -> Origin | None: ...


@dataclass(frozen=True)
class Entry:
    """One row: `model` carries its batch size in the name; a pair has `other_model` and its speed."""

    model: str
    gpus: int
    accelerator: str
    spread: bool
    steps_per_s: float
    origin: Origin = "measured"
    other_model: str | None = None
    other_gpus: int | None = None
    other_steps_per_s: float | None = None


class TableCatalogue:
    """A catalogue that is a table in memory: Gavel's, or our own format."""

    def __init__(self, name: str, entries: Iterable[Entry]) -> None:
        self.name = name
        self._alone: dict[tuple[str, int, str, bool], Entry] = {}
        self._pairs: dict[tuple[str, int, str, int, str], tuple[float, float]] = {}
        for entry in entries:
            accelerator = entry.accelerator.lower()
            if entry.other_model is None:
                self._alone[entry.model, entry.gpus, accelerator, entry.spread] = entry
            elif not entry.spread:
                other_gpus = entry.gpus if entry.other_gpus is None else entry.other_gpus
                speeds = (entry.steps_per_s, entry.other_steps_per_s or 0.0)
                self._pairs[entry.model, entry.gpus, entry.other_model, other_gpus, accelerator] = speeds
        self._types = tuple(sorted({key[2] for key in self._alone}))
        self._models = tuple(sorted({key[0] for key in self._alone}))

    @property
    def types(self) -> tuple[str, ...]:
        return self._types

    @property
    def models(self) -> tuple[str, ...]:
        return self._models

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Entries for jobs that run alone, sorted."""
        return tuple(self._alone[key] for key in sorted(self._alone))

    @property
    def has_pairs(self) -> bool:
        return bool(self._pairs)

    def sizes(self, model: str, accelerator: str, *, spread: bool = False) -> tuple[int, ...]:
        """GPU counts the table holds for a model on a type."""
        return tuple(
            sorted(
                gpus
                for name, gpus, kind, is_spread in self._alone
                if name == model and kind == accelerator.lower() and is_spread == spread
            )
        )

    def steps_per_s(
        self, model: str, gpus: int, accelerator: str, *, spread: bool = False, batch_size: int | None = None
    ) -> float | None:
        entry = self._find(model, gpus, accelerator, spread, batch_size)
        return None if entry is None else entry.steps_per_s

    def pair_steps_per_s(
        self, model_a: str, gpus_a: int, model_b: str, gpus_b: int, accelerator: str
    ) -> tuple[float, float] | None:
        accelerator = accelerator.lower()
        speeds = self._pairs.get((model_a, gpus_a, model_b, gpus_b, accelerator))
        if speeds is not None:
            return speeds
        swapped = self._pairs.get((model_b, gpus_b, model_a, gpus_a, accelerator))
        return None if swapped is None else (swapped[1], swapped[0])

    def origin(self, model: str, gpus: int, accelerator: str, *, spread: bool = False) -> Origin | None:
        entry = self._find(model, gpus, accelerator, spread, None)
        return None if entry is None else entry.origin

    def _find(self, model: str, gpus: int, accelerator: str, spread: bool, batch_size: int | None) -> Entry | None:
        # One GPU cannot be spread; tables that leave that row out mean the packed one.
        placements = (spread, False) if gpus <= 1 else (spread,)
        for name in dict.fromkeys((with_batch_size(model, batch_size), model)):
            for placement in placements:
                entry = self._alone.get((name, gpus, accelerator.lower(), placement))
                if entry is not None:
                    return entry
        return None


def with_batch_size(model: str, batch_size: int | None) -> str:
    """`ResNet-50`, 64 -> `ResNet-50 (batch size 64)`; a size already in the name is replaced."""
    if batch_size is None:
        return model
    return f"{split_batch_size(model)[0]} (batch size {batch_size})"


def split_batch_size(model: str) -> tuple[str, int | None]:
    """`ResNet-50 (batch size 64)` -> (`ResNet-50`, 64); a plain name has no size."""
    match = _BATCH_SUFFIX.match(model)
    return (match["base"], int(match["batch"])) if match else (model, None)


def load_catalogue(path: str | Path) -> ThroughputCatalogue:
    """Gavel's JSON or our own table (CSV or JSON), recognised by content; `builtin` names the estimates."""
    from trainmaster.estimate.catalogue_files import read_catalogue
    from trainmaster.estimate.roofline import BuiltinCatalogue

    if str(path) == "builtin":
        return BuiltinCatalogue()
    return read_catalogue(Path(path))

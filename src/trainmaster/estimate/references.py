"""Reference jobs of a catalogue as a matrix: a row per model, a column per thing that can be measured.

Columns of one gang size: the logarithm of the speed alone, by type and placement; and for jobs that share
a device, by type and companion, the logarithms of the fraction of its own speed that a job keeps and of
the fraction that the companion keeps, and whether the two fit in memory together (1 or 0; where they do
not, nothing is known of fractions). A gang size that was never measured in pairs has no such columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from trainmaster.core.arrays import Bools, Floats
from trainmaster.estimate.catalogue import ThroughputCatalogue, split_batch_size

Kind = Literal["alone", "spread", "own", "other", "fits"]
Hide = Literal["nothing", "model", "family"]


@dataclass(frozen=True)
class Column:
    kind: Kind
    accelerator: str
    companion: str = ""


@dataclass(frozen=True)
class ReferenceMatrix:
    gpus: int
    models: tuple[str, ...]
    columns: tuple[Column, ...]
    values: Floats
    observed: Bools

    @property
    def lift(self) -> Floats:
        """1 for speeds, where a row's unit is arbitrary; 0 for what happens in pairs."""
        return np.array([1.0 if c.kind in ("alone", "spread") else 0.0 for c in self.columns])

    def index(self, column: Column) -> int | None:
        return self._at().get(column)

    def without(self, model: str, hide: Hide) -> ReferenceMatrix:
        """The matrix of somebody who has never seen this model (or family): neither row nor companion."""
        if hide == "nothing":
            return self
        family = split_batch_size(model)[0]
        hidden = {
            name for name in self.models if name == model or (hide == "family" and split_batch_size(name)[0] == family)
        }
        rows = [k for k, name in enumerate(self.models) if name not in hidden]
        columns = [k for k, c in enumerate(self.columns) if c.companion not in hidden]
        return ReferenceMatrix(
            self.gpus,
            tuple(self.models[k] for k in rows),
            tuple(self.columns[k] for k in columns),
            self.values[np.ix_(rows, columns)],
            self.observed[np.ix_(rows, columns)],
        )

    def _at(self) -> dict[Column, int]:
        found = self.__dict__.get("_index")
        if found is None:
            found = {column: k for k, column in enumerate(self.columns)}
            object.__setattr__(self, "_index", found)
        return found


def reference_matrix(catalogue: ThroughputCatalogue, gpus: int) -> ReferenceMatrix:
    """All models that the catalogue knows at this gang size."""
    models = tuple(
        name for name in catalogue.models if any(catalogue.steps_per_s(name, gpus, kind) for kind in catalogue.types)
    )
    columns = [Column("alone", kind) for kind in catalogue.types]
    if gpus > 1:
        columns += [Column("spread", kind) for kind in catalogue.types]
    if any(
        sum(catalogue.pair_steps_per_s(model, gpus, model, gpus, kind) or (0.0,)) > 0
        for model in models
        for kind in catalogue.types
    ):
        pair_kinds: tuple[Kind, ...] = ("own", "other", "fits")
        columns += [Column(what, kind, other) for what in pair_kinds for kind in catalogue.types for other in models]
    values = np.array([[measured(catalogue, name, gpus, column) for column in columns] for name in models])
    values = values.reshape(len(models), len(columns))
    return ReferenceMatrix(gpus, models, tuple(columns), values, ~np.isnan(values))


def measured(catalogue: ThroughputCatalogue, model: str, gpus: int, column: Column) -> float:
    """What profiling this cell gives; NaN where it says nothing (unknown, or the job cannot run there)."""
    if column.kind in ("alone", "spread"):
        speed = catalogue.steps_per_s(model, gpus, column.accelerator, spread=column.kind == "spread")
        return math.log(speed) if speed else math.nan
    pair = catalogue.pair_steps_per_s(model, gpus, column.companion, gpus, column.accelerator)
    if pair is None:
        return math.nan
    if column.kind == "fits":
        return 1.0 if min(pair) > 0 else 0.0
    which = 0 if column.kind == "own" else 1
    alone = catalogue.steps_per_s((model, column.companion)[which], gpus, column.accelerator)
    return math.log(pair[which] / alone) if alone and pair[which] > 0 else math.nan

"""Importers of public trace formats, recognised by content; one file each, listed in the registry below."""

from __future__ import annotations

from typing import Protocol

from trainmaster.traces.importers import chronus, gavel, helios, itp, kueue, openb, pai, philly, slurm
from trainmaster.traces.source import Source
from trainmaster.traces.trace import JobTrace


class Importer(Protocol):
    """A module with these names is an importer."""

    @property
    def NAME(self) -> str: ...

    def recognises(self, source: Source) -> bool: ...

    def load(self, source: Source) -> JobTrace: ...


_REGISTRY: tuple[Importer, ...] = (gavel, philly, helios, pai, openb, chronus, itp, slurm, kueue)


def find_importer(source: Source) -> Importer | None:
    return next((importer for importer in _REGISTRY if importer.recognises(source)), None)


def known_formats() -> tuple[str, ...]:
    return tuple(importer.NAME for importer in _REGISTRY)

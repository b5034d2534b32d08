"""Imports Trainmaster's modules from their sources although extension modules lie beside them (TRAINMASTER_PURE=1)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from types import ModuleType


class _SourcesFirst(MetaPathFinder):
    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if not fullname.startswith("trainmaster.") or path is None:
            return None
        for folder in path:
            spec = FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(fullname)
            if spec is not None and spec.loader is not None:
                return spec
        return None


def prefer_sources() -> None:
    """From now on, for the modules that are not imported yet."""
    sys.meta_path.insert(0, _SourcesFirst())

"""The folder of a comparison: finished cells (each whole or absent), then the tables made of all of them.

`results`, `jobs`, `timeline` and `allocations` are the same bytes for the same settings; what depends on the
machine is in `timing`. The settings travel in the metadata of `results.parquet`, so that a report needs the
Parquet files alone; `settings.json` is the same for people.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from trainmaster.model.errors import InputError

_META_KEY = "trainmaster.settings"
_TABLES = ("jobs", "timeline", "allocations")
_TEXT = {"trace", "cluster", "policy", "notes", "estimates"}
_WHOLE = {
    "seed", "cluster_gpus", "jobs_submitted", "jobs_finished", "jobs_rejected", "jobs_failed",
    "preemptions", "decisions", "plans_refused",
}  # fmt: skip


@dataclass(frozen=True)
class CellResult:
    result: dict[str, Any]
    timing: dict[str, Any]
    jobs: pl.DataFrame
    timeline: pl.DataFrame
    allocations: pl.DataFrame | None


@dataclass(frozen=True)
class ComparisonTables:
    """A finished comparison as read back."""

    settings: dict[str, Any]
    results: pl.DataFrame
    jobs: pl.DataFrame
    timeline: pl.DataFrame
    allocations: pl.DataFrame
    timing: pl.DataFrame | None


class ComparisonStore:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cells = folder / "cells"

    def open(self, settings: dict[str, Any]) -> None:
        """Make the folder, or take up the comparison in it; refuses one with other settings."""
        path = self.folder / "settings.json"
        if self.folder.exists() and not self.folder.is_dir():
            raise InputError("is a file", "a folder, new or of the same comparison", file=self.folder)
        if path.exists():
            self._check_same(path, settings)
        elif self.folder.is_dir() and any(self.folder.iterdir()):
            raise InputError(
                "the folder holds other things",
                "a new or empty folder, or one of a comparison",
                "Choose another --out.",
                file=self.folder,
            )
        try:
            self.cells.mkdir(parents=True, exist_ok=True)
            _write(path, (json.dumps(settings, indent=2, allow_nan=False) + "\n").encode())
        except (OSError, InputError) as error:
            for made in (self.cells, self.folder):  # else the next attempt finds a folder that holds other things
                with suppress(OSError):
                    made.rmdir()
            reason = error.what if isinstance(error, InputError) else f"cannot write: {error.strerror}"
            raise InputError(reason, "a writable place", file=self.folder) from None

    def _check_same(self, path: Path, settings: dict[str, Any]) -> None:
        try:
            there = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            there = None
        if not isinstance(there, dict):
            raise InputError(
                "not the settings of a comparison", "JSON written by `compare`", "Choose another --out.", file=path
            )
        ours, theirs = _comparable(settings), _comparable(there)
        different = sorted(k for k in {*ours, *theirs} if ours.get(k) != theirs.get(k))
        if different:
            shown = "; ".join(f"{k} is {_short(theirs.get(k))} there, {_short(ours.get(k))} now" for k in different)
            raise InputError(
                f"it holds a comparison with other settings: {shown}",
                "the same settings",
                "Choose another --out, or delete this folder.",
                file=self.folder,
            )

    def has(self, key: str) -> bool:
        return (self.cells / key).is_dir()

    def put(self, key: str, cell: CellResult) -> None:
        """Whole or not at all: a temporary folder, then a rename."""
        temporary = Path(tempfile.mkdtemp(prefix=".", dir=self.cells))
        try:
            cell.jobs.write_parquet(temporary / "jobs.parquet")
            cell.timeline.write_parquet(temporary / "timeline.parquet")
            if cell.allocations is not None:
                cell.allocations.write_parquet(temporary / "allocations.parquet")
            document = {"result": cell.result, "timing": cell.timing}
            (temporary / "cell.json").write_text(json.dumps(document, allow_nan=False), encoding="utf-8")
            if self.has(key):  # another process was faster: the bytes are the same
                return
            os.replace(temporary, self.cells / key)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def assemble(self, keys: Sequence[str], settings: dict[str, Any]) -> None:
        """One table of each kind, in the order of the keys."""
        documents = [json.loads((self.cells / key / "cell.json").read_text(encoding="utf-8")) for key in keys]
        for name in _TABLES:
            paths = [self.cells / key / f"{name}.parquet" for key in keys]
            parts = [pl.read_parquet(path) for path in paths if path.exists()]
            self._write_table(name, pl.concat(parts, how="vertical_relaxed"), None)
        self._write_table("timing", _rows([d["timing"] for d in documents]), None)
        self._write_table("results", _rows([d["result"] for d in documents]), settings)

    def _write_table(self, name: str, table: pl.DataFrame, settings: dict[str, Any] | None) -> None:
        text = None if settings is None else {_META_KEY: json.dumps(settings, sort_keys=True)}
        data = io.BytesIO()
        table.write_parquet(data, compression="zstd", metadata=text)
        _write(self.folder / f"{name}.parquet", data.getvalue())


def read_comparison(folder: Path) -> ComparisonTables:
    """Read a finished comparison; `InputError` says what is missing."""
    if not folder.is_dir():
        raise InputError("no such folder", "a folder written by `trainmaster compare`", "Check the path.", file=folder)
    tables: dict[str, pl.DataFrame] = {}
    for name in ("results", *_TABLES, "timing"):
        path = folder / f"{name}.parquet"
        if not path.exists():
            if name == "timing":
                continue
            raise InputError(
                "no such file",
                "a finished comparison",
                "Run `trainmaster compare` with this --out again: it goes on where it stopped.",
                file=path,
            )
        try:
            tables[name] = pl.read_parquet(path)
        except Exception as error:
            raise InputError(
                f"damaged ({str(error).splitlines()[0]})",
                "a complete Parquet file",
                "Run `trainmaster compare` again.",
                file=path,
            ) from None
    metadata = pl.read_parquet_metadata(folder / "results.parquet")
    try:
        settings = json.loads(metadata[_META_KEY])
        needed = {"trace", "cluster", "load", "policy", "seed", "average_jct_s"}
        if not needed <= set(tables["results"].columns):
            raise KeyError(min(needed - set(tables["results"].columns)))
    except (KeyError, ValueError) as error:
        raise InputError(
            f"holds no comparison ({error})", "a file written by `trainmaster compare`", file=folder / "results.parquet"
        ) from None
    return ComparisonTables(
        settings,
        tables["results"],
        tables["jobs"],
        tables["timeline"],
        tables["allocations"],
        tables.get("timing"),
    )


def _rows(rows: list[dict[str, Any]]) -> pl.DataFrame:
    def dtype(name: str) -> pl.DataType:
        return pl.String() if name in _TEXT else pl.Int64() if name in _WHOLE else pl.Float64()

    return pl.DataFrame(rows, schema={name: dtype(name) for name in rows[0]}, strict=False)


def _comparable(settings: dict[str, Any]) -> dict[str, Any]:
    """Where a file lies does not matter; what is in it does."""
    traces = [{k: v for k, v in item.items() if k != "file"} for item in settings.get("traces", [])]
    return {**settings, "traces": traces}


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InputError(f"cannot write: {error.strerror}", "a writable place", file=path) from None

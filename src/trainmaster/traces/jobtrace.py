"""Load any trace (format recognised by content) and write jobtrace files: CSV, Parquet, gzip, directories."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from trainmaster.model.errors import InputError
from trainmaster.traces.delimited import read_table, sniff_columns
from trainmaster.traces.importers import find_importer, known_formats
from trainmaster.traces.schema import COMPANIONS, JOB_COLUMN_NAMES, LINE, SERVER_COLUMNS
from trainmaster.traces.source import Source, read_source
from trainmaster.traces.trace import JobTrace, companion_from_table, trace_from_table

__all__ = ["JobTrace", "load", "write"]

_TABLE_SUFFIXES = (".csv", ".csv.gz", ".parquet")


def load(path: str | Path, *, sort: bool = False) -> JobTrace:
    """Read a trace, whatever known format its content shows; `sort` puts an unordered jobtrace in order."""
    path = Path(path)
    if path.is_dir():
        return _load_directory(path, sort)
    source = read_source(path)
    importer = find_importer(source)
    if importer is not None:
        return importer.load(source)
    if not _is_jobtrace(source):
        if not source.data.strip():
            raise InputError("the file is empty", "a trace", "Check that it was written completely.", path, 1)
        raise InputError(
            "the format is not recognised",
            "a jobtrace table (job_id, submit_s, gpus, duration_s ...) or one of: " + ", ".join(known_formats()),
            "Make it a CSV file with these columns; docs/traces.md says how formats are recognised.",
            path,
            1,
        )
    return trace_from_table(_read_any_table(source), path, sort=sort)


def write(trace: JobTrace, path: str | Path) -> None:
    """Write atomically: `.csv`, `.csv.gz`, `.parquet` hold the jobs; any other name becomes a directory
    with jobs, companions and meta.json. Nothing is left behind on failure."""
    path = Path(path)
    if path.name.endswith(_TABLE_SUFFIXES):
        write_bytes(path, _encode(trace.jobs.drop(LINE), path.name))
    elif path.suffix in ("", ".jobtrace", ".d"):
        with _writing(path):
            _write_directory(trace, path)
    else:
        raise InputError(
            f"cannot tell a format from the name {path.name!r}",
            "a name ending in .csv, .csv.gz or .parquet, or a directory name without a suffix",
            "",
            path,
        )


def write_bytes(path: Path, data: bytes) -> None:
    """Temporary file in the same folder, then rename: readers see the old file or the new one, never half."""
    if not path.parent.is_dir():
        raise InputError("the folder does not exist", "an existing folder", "Create it first.", path.parent)
    with _writing(path):
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """A disk that is full or may not be written is told with the place."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror}", "a writable place", "", path) from None


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _is_jobtrace(source: Source) -> bool:
    if source.is_parquet:
        return True
    return len(set(sniff_columns(source)) & set(JOB_COLUMN_NAMES)) >= 2


def _read_any_table(source: Source) -> pl.DataFrame:
    if not source.is_parquet:
        return read_table(source)
    try:
        return pl.read_parquet(io.BytesIO(source.data))
    except (pl.exceptions.PolarsError, OSError, ValueError) as error:
        raise InputError(
            f"damaged Parquet data ({str(error).splitlines()[0] if str(error) else error})",
            "a complete Parquet file",
            "Copy or write it again.",
            source.path,
        ) from None
    except BaseException as error:  # the Parquet reader panics (not an Exception) on some damaged files
        if type(error).__name__ != "PanicException":
            raise
        raise InputError("damaged Parquet data", "a complete Parquet file", "", source.path) from None


def _load_directory(path: Path, sort: bool) -> JobTrace:
    importer = find_importer(Source(path, b""))
    if importer is not None:
        return importer.load(Source(path, b""))
    jobs_path = _table_in(path, "jobs")
    if jobs_path is None:
        raise InputError(
            "the folder holds no jobs table",
            "jobs.csv, jobs.csv.gz or jobs.parquet",
            "Name the file itself, or the right folder.",
            path,
        )
    companions: dict[str, pl.DataFrame] = {}
    for kind in COMPANIONS:
        companion_path = _table_in(path, kind)
        if companion_path is not None:
            table = _read_any_table(read_source(companion_path))
            companions[kind] = companion_from_table(table, kind, companion_path)
    meta = _read_meta(path / "meta.json")
    name = meta.get("name")
    return trace_from_table(
        _read_any_table(read_source(jobs_path)),
        jobs_path,
        name=name if isinstance(name, str) else None,
        sort=sort,
        meta=meta,
        nodes=companions.get("nodes"),
        quotas=companions.get("quotas"),
        attempts=companions.get("attempts"),
    )


def _table_in(folder: Path, stem: str) -> Path | None:
    for suffix in _TABLE_SUFFIXES:
        if (folder / f"{stem}{suffix}").exists():
            return folder / f"{stem}{suffix}"
    return None


def _read_meta(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        meta = json.loads(read_source(path).text_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON ({error})", "a JSON object", "", path, getattr(error, "lineno", None)) from None
    if not isinstance(meta, dict):
        raise InputError("not a JSON object", "a JSON object", "", path, 1)
    return meta


def _encode(table: pl.DataFrame, name: str) -> bytes:
    unused = [c.name for c in SERVER_COLUMNS if c.name in table.columns and table[c.name].null_count() == table.height]
    table = table.drop(unused)
    if name.endswith(".parquet"):
        buffer = io.BytesIO()
        table.write_parquet(buffer)
        return buffer.getvalue()
    if "gang" in table.columns:
        table = table.with_columns(pl.col("gang").cast(pl.Int8))
    text = table.write_csv().encode()
    return gzip.compress(text, mtime=0) if name.endswith(".gz") else text


def _write_directory(trace: JobTrace, path: Path) -> None:
    if path.exists() and not (path.is_dir() and (not any(path.iterdir()) or _table_in(path, "jobs"))):
        raise InputError("exists and is not a jobtrace folder", "a new name", "Choose another.", path)
    if not path.parent.is_dir():
        raise InputError("the folder does not exist", "an existing folder", "Create it first.", path.parent)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        (temporary / "jobs.csv.gz").write_bytes(_encode(trace.jobs.drop(LINE), "jobs.csv.gz"))
        for kind in COMPANIONS:
            table = getattr(trace, kind)
            if table is not None:
                (temporary / f"{kind}.csv").write_bytes(_encode(table, f"{kind}.csv"))
        meta = {**trace.meta, "name": trace.name}
        (temporary / "meta.json").write_text(json.dumps(meta, indent=1, sort_keys=True) + "\n")
        os.chmod(temporary, 0o777 & ~_umask())
        if path.exists():
            retired = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
            os.replace(path, retired / path.name)
            os.replace(temporary, path)
            shutil.rmtree(retired)
        else:
            os.replace(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise

"""Delimited text to a table of strings, with the line of each record; ragged rows are errors, not nulls."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from trainmaster.model.errors import InputError
from trainmaster.traces.schema import LINE
from trainmaster.traces.source import Source


def read_table(
    source: Source, *, separator: str = ",", header: tuple[str, ...] | None = None, quoted: bool = True
) -> pl.DataFrame:
    """All cells as text (empty = null), plus the column `line` (1-based, where each record begins).

    With `header` the file has no header line of its own and must have exactly these columns.
    """
    data = source.text_bytes().rstrip(b"\n")
    if not data:
        raise InputError("the file is empty", "a header line and at least one record", "", source.path, 1)
    lines, field_counts = _scan_records(data, separator, quoted, source.path)
    names = list(header) if header is not None else _header_names(data, separator, quoted, source.path)
    _check_widths(lines, field_counts, len(names), source.path)
    first = 0 if header is not None else 1
    if len(lines) == first:
        raise InputError(
            "the trace has a header but no records",
            "at least one record",
            "Check that the file was written completely.",
            source.path,
            1,
        )
    frame = _parse(data, separator, names, header is None, quoted, source.path)
    if frame.height != len(lines) - first:
        raise InputError(
            f"{len(lines) - first} records were counted but {frame.height} were parsed",
            "quotes only around whole cells, doubled inside",
            "Check the quoting.",
            source.path,
        )
    return frame.with_columns(pl.Series(LINE, lines[first:], dtype=pl.Int64))


def _scan_records(data: bytes, separator: str, quoted: bool, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Line number and field count of each record. Inside quotes (odd number of `"` before) nothing counts."""
    codes = np.frombuffer(data, dtype=np.uint8)
    newlines = np.flatnonzero(codes == 0x0A)
    separators = np.flatnonzero(codes == ord(separator))
    record_ends = newlines
    if quoted and b'"' in data:
        quotes = np.flatnonzero(codes == 0x22)
        if len(quotes) % 2:
            raise InputError(
                "a quote is opened and never closed",
                "quotes in pairs",
                "The file may be cut off; check its last line.",
                path,
                int(np.searchsorted(newlines, quotes[-1])) + 1,
            )
        record_ends = newlines[np.searchsorted(quotes, newlines) % 2 == 0]
        separators = separators[np.searchsorted(quotes, separators) % 2 == 0]
    edges = np.concatenate([record_ends, [len(data)]])
    counts = np.diff(np.searchsorted(separators, edges), prepend=0) + 1
    starts = np.concatenate([[0], record_ends + 1])
    return np.searchsorted(newlines, starts) + 1, counts


def _header_names(data: bytes, separator: str, quoted: bool, path: Path) -> list[str]:
    first = data.split(b"\n", 1)[0].decode("utf-8")
    names = [name.strip() for name in first.split(separator)]
    if quoted:
        names = [name.strip('"') for name in names]
    seen: set[str] = set()
    for position, name in enumerate(names, start=1):
        if not name:
            raise InputError(f"header cell {position} is empty", "a name for every column", "", path, 1)
        if name in seen or name == LINE:
            raise InputError(
                f"column '{name}' occurs twice" if name in seen else f"column name '{LINE}' is reserved",
                "each column once",
                "Rename or remove one of them.",
                path,
                1,
                name,
            )
        seen.add(name)
    return names


def _check_widths(lines: np.ndarray, counts: np.ndarray, width: int, path: Path) -> None:
    wrong = np.flatnonzero(counts != width)
    if len(wrong):
        at = int(wrong[0])
        what = f"{int(counts[at])} fields" if counts[at] > 1 else "a blank or cut-off line"
        raise InputError(
            what,
            f"{width} fields as in the header",
            "The row is truncated or holds an unquoted separator.",
            path,
            int(lines[at]),
        )


def _parse(data: bytes, separator: str, names: list[str], has_header: bool, quoted: bool, path: Path) -> pl.DataFrame:
    try:
        frame = pl.read_csv(
            data,
            separator=separator,
            has_header=False,
            new_columns=names,
            skip_rows=0,
            infer_schema=False,
            quote_char='"' if quoted else None,
        )
    except pl.exceptions.PolarsError as error:
        raise InputError(
            f"not readable as a table ({str(error).splitlines()[0]})", f"records separated by {separator!r}", "", path
        ) from None
    if has_header:
        frame = frame.slice(1)
    return frame.with_columns(
        pl.when(pl.col(name).str.len_bytes() > 0).then(pl.col(name)).alias(name) for name in names
    )


def sniff_columns(source: Source, separator: str = ",") -> tuple[str, ...]:
    """Column names of the first line, for recognising a format."""
    return tuple(name.strip().strip('"') for name in source.first_line.split(separator))

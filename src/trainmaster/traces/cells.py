"""Text cells to typed columns, vectorised; the first cell that does not fit is named by line and column."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from trainmaster.model.errors import InputError
from trainmaster.traces.schema import LINE, Column

_TRUE = ("1", "true", "1.0")
_FALSE = ("0", "false", "0.0")


def typed(
    frame: pl.DataFrame, columns: tuple[Column, ...], path: Path, *, required: tuple[str, ...] = ()
) -> pl.DataFrame:
    """`frame` with exactly `columns` (absent ones null) and `line`; `InputError` at the first bad cell.

    Columns named in `required` must be there and may not have empty cells.
    """
    present = set(frame.columns)
    for name in required:
        if name not in present:
            raise InputError(
                f"missing column {name}", "columns " + ", ".join(c.name for c in columns), "", path, 1, name
            )
        empty = frame[name].is_null()
        if empty.any():
            line = int(frame[LINE][empty.arg_true()[0]]) if LINE in present else None
            raise InputError("the cell is empty", "a value for every record", "", path, line, name)
    if LINE not in present:
        frame = frame.with_columns(pl.int_range(1, pl.len() + 1, dtype=pl.Int64).alias(LINE))
    out = [
        _convert(frame, column, path)
        if column.name in present
        else pl.Series(column.name, [None], dtype=column.dtype).new_from_index(0, frame.height)
        for column in columns
    ]
    return pl.DataFrame([*out, frame[LINE]])


def _convert(frame: pl.DataFrame, column: Column, path: Path) -> pl.Series:
    raw = frame[column.name]
    if raw.dtype == pl.Categorical or isinstance(raw.dtype, pl.Enum):
        raw = raw.cast(pl.String)
    try:
        values = _cast(raw, column)
    except pl.exceptions.PolarsError:
        raise InputError(f"cells of type {raw.dtype}", column.expectation, "", path, None, column.name) from None
    bad = raw.is_not_null() & values.is_null()
    if column.dtype == pl.Float64():
        bad |= ~values.is_finite().fill_null(True)
    if column.bounds is not None:
        low, high = column.bounds
        bad |= ((values < low) | (values > high)).fill_null(False)
    if column.choices:
        bad |= ~values.is_in(column.choices).fill_null(True)
    remedy = "Correct the cell, or leave it empty if the value is unknown."
    refuse(frame, bad, path, column.name, "{} does not fit", column.expectation, remedy)
    return values.alias(column.name)


def _cast(raw: pl.Series, column: Column) -> pl.Series:
    if column.dtype == pl.String():
        text = raw if raw.dtype == pl.String else raw.cast(pl.String, strict=False)
        return text.set(text == "", None) if (text == "").any() else text
    if raw.dtype == pl.String:
        raw = raw.str.strip_chars()
        if column.dtype == pl.Boolean():
            lowered = raw.str.to_lowercase()
            known = lowered.is_in(_TRUE + _FALSE)
            return lowered.is_in(_TRUE).zip_with(known.fill_null(False), pl.Series([None], dtype=pl.Boolean))
    elif column.dtype == pl.Boolean() and raw.dtype != pl.Boolean:
        return (raw == 1).zip_with(raw.is_in([0, 1]).fill_null(False), pl.Series([None], dtype=pl.Boolean))
    if column.dtype == pl.Int64():
        return _to_whole_numbers(raw)
    return raw.cast(column.dtype, strict=False)


def _to_whole_numbers(raw: pl.Series) -> pl.Series:
    """`3` and `3.0` are whole; `3.5` is not and becomes null (reported by the caller)."""
    direct = raw.cast(pl.Int64, strict=False) if not raw.dtype.is_float() else None
    if direct is not None and direct.null_count() == raw.null_count():
        return direct
    as_float = raw.cast(pl.Float64, strict=False)
    whole = (as_float == as_float.floor()) & (as_float.abs() < 2.0**53)
    via_float = as_float.set(~whole.fill_null(True), None).cast(pl.Int64, strict=False)
    return via_float if direct is None else direct.zip_with(direct.is_not_null(), via_float)


def refuse(
    frame: pl.DataFrame, bad: pl.Series, path: Path, column: str, what: str, expected: str, remedy: str = ""
) -> None:
    """Raise an `InputError` at the first cell of the column that is `bad`, if any; it stands in `what` for `{}`."""
    if bad.any():
        at = bad.arg_true()[0]
        fault = what.format(_shown(frame[column][at]))
        raise InputError(fault, expected, remedy, path, int(frame[LINE][at]), column)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

"""Whatever the bytes, loading gives a trace or an `InputError`; what is written comes back unchanged."""

from __future__ import annotations

import contextlib
import gzip
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trainmaster.model.errors import InputError
from trainmaster.traces import JobTrace, load, write
from trainmaster.traces.schema import JOB_COLUMNS, JOB_REQUIRED, LONGEST_S
from trainmaster.traces.trace import trace_from_table

VALID = (
    b"trace_id,job_id,submit_s,gpus,duration_s,status,gang,model,iterations,utility,extra\n"
    b'x,a,0,1,60,completed,1,"res,net",10,9:1|20:0.5,"{""k"": 1}"\n'
    b"x,b,5,2.5,30.5,,,,,,\n"
    b"x,c,5,0,0,failed,0,m,1,sigmoid:1;2,\n"
)


def load_bytes(data: bytes) -> None:
    with TemporaryDirectory() as folder, contextlib.suppress(InputError):
        path = Path(folder) / "t"
        path.write_bytes(data)
        assert isinstance(load(path), JobTrace)


@given(st.binary(max_size=400))
@settings(max_examples=150, deadline=None)
@example(b"\x1f\x8b")
@example(b"PAR1")
@example(b"{")
@example(b"job_id,submit_s,gpus,duration_s\n" + b'"a"b,0,1,1\n')
@example(b"job_id,submit_s,gpus,duration_s\n\ra,0,1,1\n")
def test_arbitrary_bytes(data: bytes) -> None:
    load_bytes(data)
    load_bytes(gzip.compress(data))


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    data = bytearray(VALID)
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(data)))
        piece = draw(
            st.one_of(
                st.binary(max_size=4),
                st.sampled_from([b",", b"\n", b'"', b"nan", b"-1", b"1e400", b"\r", b"\xef\xbb\xbf", b"|", b":"]),
            )
        )
        data[at : at + draw(st.integers(0, 5))] = piece
    return bytes(data)


@given(mutations())
@settings(max_examples=300, deadline=None)
def test_mutated_files(data: bytes) -> None:
    load_bytes(data)


text = st.text(
    st.characters(codec="utf-8", exclude_characters="\x00", exclude_categories=["Cs"]),
    min_size=1,
    max_size=12,
).filter(lambda s: "\r" not in s)


def cell(column) -> st.SearchStrategy:
    if column.choices:
        return st.none() | st.sampled_from(column.choices)
    if column.name == "utility":
        return st.none() | st.just("3600:10|7200:2.5") | st.just("sigmoid:1,2,3")
    if column.dtype == pl.Float64():
        return st.none() | st.floats(*column.bounds)
    if column.dtype == pl.Int64():
        low, high = column.bounds
        return st.none() | st.integers(int(low), int(high))
    if column.dtype == pl.Boolean():
        return st.none() | st.booleans()
    if column.name == "extra":
        return st.none() | st.dictionaries(text, st.integers()).map(json.dumps)
    return st.none() | text


@st.composite
def tables(draw: st.DrawFn) -> pl.DataFrame:
    count = draw(st.integers(1, 4))
    columns = {c.name: [draw(cell(c)) for _ in range(count)] for c in JOB_COLUMNS}
    columns["job_id"] = [f"{index}{draw(text)}" for index in range(count)]
    columns["submit_s"] = sorted(draw(st.floats(0, LONGEST_S)) for _ in range(count))
    for name in ("gpus", "duration_s"):
        columns[name] = [draw(st.floats(0, LONGEST_S)) for _ in range(count)]
    for low, high in (("start_s", "end_s"), ("min_gpus", "max_gpus"), ("min_servers", "max_servers")):
        columns[high] = [a if a is None else max(a, b or a) for a, b in zip(columns[low], columns[high], strict=True)]
    return pl.DataFrame(columns, schema={c.name: c.dtype for c in JOB_COLUMNS})


@pytest.mark.slow
@given(tables(), st.sampled_from(["o.csv", "o.csv.gz", "o.parquet", "odir"]))
@settings(max_examples=50, deadline=None)
def test_round_trip_without_loss(table: pl.DataFrame, name: str) -> None:
    assert set(JOB_REQUIRED) <= set(table.columns)
    with TemporaryDirectory() as folder:
        trace = trace_from_table(table, Path("t.csv"))
        write(trace, Path(folder) / name)
        back = load(Path(folder) / name)
    assert back.jobs.drop("line").equals(trace.jobs.drop("line"))

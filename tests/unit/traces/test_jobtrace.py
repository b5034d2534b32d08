"""Jobtrace files: what is accepted, what is refused and how the message says where."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import polars as pl
import pytest

from trainmaster.model.errors import InputError
from trainmaster.traces import JobTrace, load, write
from trainmaster.traces.schema import JOB_COLUMN_NAMES, JOB_COLUMNS

GOOD = "job_id,submit_s,gpus,duration_s\na,0,1,60\nb,5,2.5,30.5\n"


def put(tmp_path: Path, text: str | bytes, name: str = "t.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def refused(tmp_path: Path, text: str | bytes, name: str = "t.csv") -> InputError:
    path = put(tmp_path, text, name)
    with pytest.raises(InputError) as caught:
        load(path)
    assert str(caught.value.file) == str(path)
    return caught.value


def test_four_columns_are_enough_and_the_rest_is_null(tmp_path: Path) -> None:
    trace = load(put(tmp_path, GOOD))
    assert trace.jobs.columns == [*JOB_COLUMN_NAMES, "line"]
    assert [trace.jobs.schema[c.name] for c in JOB_COLUMNS] == [c.dtype for c in JOB_COLUMNS]
    assert trace.jobs["gpus"].to_list() == [1.0, 2.5]
    assert trace.jobs["line"].to_list() == [2, 3]
    assert trace.jobs["user"].null_count() == 2
    assert trace.name == "t"


def test_model_and_iterations_stand_in_for_duration(tmp_path: Path) -> None:
    trace = load(put(tmp_path, "job_id,submit_s,gpus,model,iterations\na,0,1,resnet50,100\n"))
    assert trace.jobs["iterations"].to_list() == [100]


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("", 1, None),
        ("job_id,submit_s,gpus,duration_s\n", 1, None),
        ("job_id,submit_s,duration_s\na,0,1\n", 1, "gpus"),
        ("job_id,submit_s,gpus\na,0,1\n", 1, "duration_s"),
        ("job_id,submit_s,gpus,model\na,0,1,x\n", 1, "duration_s"),
        (GOOD + "c,6,one,5\n", 4, "gpus"),
        (GOOD + "c,6,nan,5\n", 4, "gpus"),
        (GOOD + "c,6,1,inf\n", 4, "duration_s"),
        (GOOD + "c,-6,1,5\n", 4, "submit_s"),
        (GOOD + "c,6,-1,5\n", 4, "gpus"),
        (GOOD + "c,6,1,-5\n", 4, "duration_s"),
        (GOOD + "c,6,1,\n", 4, "duration_s"),
        (GOOD + ",6,1,5\n", 4, "job_id"),
        (GOOD + "a,6,1,5\n", 4, "job_id"),
        (GOOD + "c,4,1,5\n", 4, "submit_s"),
        (GOOD + "c,6,1\n", 4, None),
        (GOOD + "c,6,1,5,7\n", 4, None),
        (GOOD + "\nc,6,1,5\n", 4, None),
        (GOOD + 'c,6,"1,5\n', 4, None),
        ("job_id,submit_s,gpus,duration_s,gpus\na,0,1,1,1\n", 1, "gpus"),
        ("job_id,submit_s,gpus,duration_s,status\na,0,1,1,done\n", 2, "status"),
        ("job_id,submit_s,gpus,duration_s,iterations\na,0,1,1,2.5\n", 2, "iterations"),
        ("job_id,submit_s,gpus,duration_s,gang\na,0,1,1,maybe\n", 2, "gang"),
        ("job_id,submit_s,gpus,duration_s,utility\na,0,1,1,high\n", 2, "utility"),
        ("job_id,submit_s,gpus,duration_s,utility\na,0,1,1,9:1|3:2\n", 2, "utility"),
        ("job_id,submit_s,gpus,duration_s,start_s,end_s\na,0,1,1,5,4\n", 2, "end_s"),
        ("job_id,submit_s,gpus,duration_s,min_gpus,max_gpus\na,0,1,1,5,4\n", 2, "max_gpus"),
        ('job_id,submit_s,gpus,duration_s,user\n"a\nb",0,1,1,u\nc,1,x,1,u\n', 4, "gpus"),
    ],
)
def test_refusals_name_line_and_column(tmp_path: Path, text: str, line: int, column: str | None) -> None:
    error = refused(tmp_path, text)
    assert (error.line, error.column) == (line, column)
    assert error.what
    assert error.expected


def test_other_kinds_of_damage(tmp_path: Path) -> None:
    assert refused(tmp_path, GOOD.encode() + b"c,6,\xff,5\n").line == 4
    assert refused(tmp_path, GOOD.encode() + b"c,6,\x00,5\n").line == 4
    assert "gzip" in refused(tmp_path, gzip.compress(GOOD.encode())[:-9], "t.csv.gz").what
    assert "Parquet" in refused(tmp_path, b"PAR1" + bytes(40) + b"PAR1", "t.parquet").what
    assert "recognised" in refused(tmp_path, "hello world\n").what
    assert "recognised" in refused(tmp_path, '{"a": 1}').what
    with pytest.raises(InputError, match="no such file"):
        load(tmp_path / "absent.csv")
    with pytest.raises(InputError, match="no jobs table"):
        load(tmp_path)


def test_unordered_can_be_sorted_on_request_stably(tmp_path: Path) -> None:
    path = put(tmp_path, GOOD + "c,0,1,5\n")
    assert load(path, sort=True).jobs["job_id"].to_list() == ["a", "c", "b"]


def test_crlf_bom_gzip_and_quotes(tmp_path: Path) -> None:
    text = '﻿job_id,submit_s,gpus,duration_s,user\r\n"a,1",0, 1 ,60,"x ""y"""\r\n'
    trace = load(put(tmp_path, gzip.compress(text.encode()), "odd-name"))
    assert trace.jobs.select("job_id", "gpus", "user").rows() == [("a,1", 1.0, 'x "y"')]


def test_unknown_columns_are_kept_in_extra(tmp_path: Path) -> None:
    trace = load(put(tmp_path, "job_id,submit_s,gpus,duration_s,colour,extra\na,0,1,1,red,\nb,0,1,1,,{}\n"))
    first, second = trace.jobs["extra"].to_list()
    assert json.loads(first) == {"colour": "red"}
    assert second == "{}"


def same(a: JobTrace, b: JobTrace) -> bool:
    return a.jobs.drop("line").equals(b.jobs.drop("line"))


@pytest.mark.parametrize("name", ["o.csv", "o.csv.gz", "o.parquet", "odir"])
def test_round_trip(tmp_path: Path, name: str) -> None:
    trace = load(put(tmp_path, GOOD))
    write(trace, tmp_path / name)
    assert same(load(tmp_path / name), trace)
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_directory_round_trip_keeps_companions(tmp_path: Path) -> None:
    base = load(put(tmp_path, GOOD))
    nodes = pl.DataFrame({"node_id": ["n0"], "gpu_type": ["V100"], "gpus": ["8"]})
    from trainmaster.traces.trace import companion_from_table

    trace = JobTrace(
        "with-nodes",
        base.jobs,
        {"epoch": "2017-01-01", "name": "with-nodes"},
        nodes=companion_from_table(nodes, "nodes", tmp_path),
    )
    for _ in range(2):  # the second time replaces the first
        write(trace, tmp_path / "dir")
    back = load(tmp_path / "dir")
    assert back.nodes is not None
    assert trace.nodes is not None
    assert back.nodes.equals(trace.nodes)
    assert back.meta == trace.meta
    assert (back.name, back.quotas) == ("with-nodes", None)


def test_write_refuses_and_leaves_nothing(tmp_path: Path) -> None:
    trace = load(put(tmp_path, GOOD))
    before = sorted(p.name for p in tmp_path.iterdir())
    for bad in ("o.xlsx", "no/such/o.csv", "no/such/dir", "t.csv/dir"):
        with pytest.raises(InputError):
            write(trace, tmp_path / bad)
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_same_bytes_each_time(tmp_path: Path) -> None:
    trace = load(put(tmp_path, GOOD))
    for name in ("a.csv.gz", "b.csv.gz"):
        write(trace, tmp_path / name)
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()


@pytest.mark.parametrize(
    ("file", "jobs"),
    [("philly.csv.gz", 111_549), ("msft_itp.csv.gz", 69_351), ("alibaba_v2023.csv.gz", 8_152)],
)
def test_real_traces_load_and_round_trip(shared_data, tmp_path: Path, file: str, jobs: int) -> None:
    trace = load(shared_data(f"traces/{file}"))
    assert len(trace) == jobs
    write(trace, tmp_path / "o.csv")
    assert same(load(tmp_path / "o.csv"), trace)

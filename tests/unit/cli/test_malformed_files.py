"""Bad files through the commands themselves: exit code 2, a message that names the place, nothing written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner

from support.trace_formats import MALFORMED
from trainmaster.cli.main import app
from trainmaster.model.errors import InputError
from trainmaster.service.local.home import Home

GOOD = "job_id,submit_s,gpus,duration_s\na,0,1,10\nb,5,2,20\n"
JOBTRACES = (
    ("job_id,submit_s,gpus\na,0,1\n", 1, "duration_s"),
    ("job_id,submit_s,gpus,duration_s\na,0,x,1\n", 2, "gpus"),
    ("job_id,submit_s,gpus,duration_s\na,0,1,-1\n", 2, "duration_s"),
    ("job_id,submit_s,gpus,duration_s\na,5,1,1\nb,3,1,1\n", 3, "submit_s"),
    ("job_id,submit_s,gpus,duration_s\na,0,1,1\na,3,1,1\n", 3, "job_id"),
    ("job_id,submit_s,gpus,duration_s,utility\na,0,1,1,9:1|3:2\n", 2, "utility"),
    ("job_id,submit_s,gpus,duration_s,utility\na,0,1,1,3:1|9:2\n", 2, "utility"),
    ("job_id,submit_s,gpus,duration_s\na,0,1,1e300\n", 2, "duration_s"),
    ("job_id,submit_s,gpus,duration_s\na,1e12,1,1\n", 2, "submit_s"),
    ("job_id,submit_s,gpus,duration_s,deadline_s\na,0,1,1,1e300\n", 2, "deadline_s"),
    ("job_id,submit_s,gpus,duration_s\na,0,1\n", 2, None),
    ("nothing known\n1\n", 1, None),
)


def invoke(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 2, (arguments, result.output, result.exception)
    message = result.output
    assert message.count("error:") == 1, message
    assert "Traceback" not in message
    return message


def commands(folder: Path, file: Path) -> list[list[object]]:
    return [
        ["simulate", file, "--cluster", "gpu=64", "--json", folder / "o.json", "--jobs", folder / "o.csv"],
        ["compare", file, "-p", "fifo,srtf", "--cluster", "gpu=64", "--out", folder / "out"],
        ["traces", "convert", file, folder / "o.parquet"],
        ["traces", "fit", file, folder / "m.json"],
    ]


@pytest.mark.parametrize(("text", "line", "column"), [*MALFORMED, *JOBTRACES])
def test_malformed_traces(tmp_path: Path, text: str, line: int | None, column: str | None) -> None:
    file = tmp_path / "input"
    file.write_text(text)
    for command in commands(tmp_path, file):
        message = invoke(*command)
        place = str(file) + ("" if line is None else f":{line}") + ("" if column is None else f", column '{column}'")
        assert place in message, message
        assert [p.name for p in tmp_path.iterdir()] == ["input"], command


@pytest.mark.parametrize("arguments", [
    ["simulate", "t.csv", "--cluster", "gpu=64", "--json", "o.json"],
    ["simulate", "t.csv", "--cluster", "gpu=64", "--jobs", "o.csv"],
    ["simulate", "t.csv", "--cluster", "gpu=64", "--jobs", "o.parquet"],
    ["compare", "t.csv", "-p", "fifo,srtf", "--cluster", "gpu=64", "--seeds", "1", "--out", "o"],
    ["traces", "convert", "t.csv", "o.csv"],
    ["traces", "convert", "t.csv", "o"],
])  # fmt: skip
def test_a_full_disk_is_told_with_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    (tmp_path / "t.csv").write_text(GOOD)
    monkeypatch.chdir(tmp_path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(os, "replace", full)
        message = invoke(*arguments)
    assert f"{arguments[-1]}: cannot write: No space left on device" in message
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"], "something is left behind"


def test_plots_where_they_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(GOOD)
    (tmp_path / "plots").write_text("a file where a folder should be")
    assert "plots/arrivals.png: cannot write" in invoke(
        "traces", "describe", tmp_path / "t.csv", "--plot", tmp_path / "plots"
    )


def test_the_home_of_a_service_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="address: cannot write: No space left"):
        Home(tmp_path).write("address", "http://127.0.0.1:1")
    assert list(tmp_path.iterdir()) == []


def test_damaged_parquet_and_gzip(tmp_path: Path) -> None:
    pl.DataFrame({"job_id": ["a"], "submit_s": [0.0], "gpus": [1.0], "duration_s": [1.0]}).write_parquet(
        tmp_path / "whole"
    )
    whole = (tmp_path / "whole").read_bytes()
    (tmp_path / "whole").unlink()
    for name, data in (("cut.parquet", whole[: len(whole) // 2]), ("cut.csv.gz", b"\x1f\x8b\x08\x00rubbish")):
        file = tmp_path / name
        file.write_bytes(data)
        for command in commands(tmp_path, file):
            assert str(file) in invoke(*command)
        file.unlink()
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("c.yaml", "nodes: [\n  {accelerator: v100, gpus: 8},\n  {accelerator\n", "c.yaml:"),
        ("c.yaml", "machines: []\n", "c.yaml, column 'nodes'"),
        ("c.json", '{"nodes": [{"accelerator": "v100"}]}', "c.json, column 'nodes[0]'"),
        ("c.yaml", "nodes: [{accelerator: v100, gpus: many}]", "c.yaml, column 'nodes[0]'"),
        ("c.csv", "node_id,gpu_type\nn0,v100\n", "c.csv:1, column 'gpus'"),
        ("c.csv", "node_id,gpu_type,gpus\nn0,v100,some\n", "c.csv:2, column 'gpus'"),
        ("c.toml", "nodes = 3\n", "c.toml"),
    ],
)
def test_malformed_cluster_files(tmp_path: Path, name: str, text: str, place: str) -> None:
    refused_by_both(tmp_path, "--cluster", name, text, place)


def refused_by_both(tmp_path: Path, option: str, name: str, text: str, place: str) -> None:
    """`simulate` and `compare` name the place in the file that an option gives, and write nothing."""
    trace, file = tmp_path / "trace.csv", tmp_path / name
    trace.write_text(GOOD)
    file.write_text(text)
    before = sorted(p.name for p in tmp_path.iterdir())
    for command in (
        ["simulate", trace, option, file, "--json", tmp_path / "o.json"],
        ["compare", trace, "-p", "fifo", option, file, "--out", tmp_path / "out"],
    ):
        assert place in invoke(*command)
        assert sorted(p.name for p in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("t.json", '{"v100": \n', "t.json:"),
        ("t.json", '{"v100": {"(\'A\', 1)": {"null": "fast"}}}', "t.json, column"),
        (
            "t.csv",
            "model,batch_size,accelerator,gpus,placement,steps_per_s\nA,1,v100,1,packed,quick\n",
            "t.csv:2",
        ),
    ],
)
def test_malformed_throughput_tables(tmp_path: Path, name: str, text: str, place: str) -> None:
    refused_by_both(tmp_path, "--throughputs", name, text, place)


def test_malformed_models_and_missing_files(tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text('{"format": "other"}')
    assert "m.json" in invoke("traces", "generate", tmp_path / "o.csv", "--model", tmp_path / "m.json")
    assert "nowhere" in invoke("simulate", tmp_path / "nowhere")
    assert "nowhere" in invoke("compare", tmp_path / "nowhere", "-p", "fifo", "--out", tmp_path / "out")
    assert "nowhere" in invoke("report", tmp_path / "nowhere")
    assert "results.parquet" in invoke("report", tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["m.json"]

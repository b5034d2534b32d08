"""`trainmaster traces`: what users type, what they get, and exit code 2 with nothing written on bad input."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trainmaster.cli.simulation.traces import app
from trainmaster.traces import load

DEMO = (
    "--jobs 200 --arrivals diurnal --load 0.9 --cluster-gpus 32 --gpu-mix 1:0.5,2:0.2,4:0.2,8:0.1 "
    "--median-s 1200 --sigma 1.2 --max-s 86400 --models --elastic 0.4 --deadlines 0.4 --soft 0.5 "
    "--name demo --seed 1"
)


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_demo_trace_is_what_its_documented_command_makes(tmp_path: Path) -> None:
    run("generate", tmp_path / "demo.csv", *DEMO.split())
    bundled = files("trainmaster").joinpath("data/demo.csv").read_bytes()
    assert (tmp_path / "demo.csv").read_bytes() == bundled


def test_describe_json_and_plots(tmp_path: Path) -> None:
    demo = str(files("trainmaster").joinpath("data/demo.csv"))
    summary = json.loads(run("describe", demo, "-o", "json", "--plot", tmp_path / "plots"))
    assert summary["jobs"] == 200
    assert "deadline_s" in summary["generated_fields"]
    assert sum(row["jobs"] for row in summary["sizes"]) == 200
    assert sum(row["gpu_hour_share"] for row in summary["sizes"]) == pytest.approx(1.0)
    assert all(Path(plot).stat().st_size > 5000 for plot in summary["plots"])
    assert "Generated columns" in run("describe", demo)


def test_describe_says_what_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "steps.csv").write_text("job_id,submit_s,gpus,model,iterations\na,0,1,m,5\nb,9,2,m,5\n")
    summary = json.loads(run("describe", tmp_path / "steps.csv", "-o", "json", "--plot", tmp_path))
    assert (summary["gpu_hours"], summary["mean_gpus_in_demand"], summary["jobs_without_duration"]) == (None, None, 2)
    assert [row["gpu_hour_share"] for row in summary["sizes"]] == [None, None]
    assert "GPU-hours  " not in run("describe", tmp_path / "steps.csv")
    (tmp_path / "none.csv").write_text("\n")
    assert "the file is empty" in run("describe", tmp_path / "none.csv", code=2)


def test_names_that_look_like_markup_are_shown(tmp_path: Path) -> None:
    (tmp_path / "[b].csv").write_text("job_id,submit_s,gpus,duration_s,vc\na,0,1,5,[/red]\nb,9,2,5,\\\n")
    text = run("describe", tmp_path / "[b].csv")
    assert "[b] (jobtrace)" in text
    assert "[/red] 1" in text


def test_generate_fit_sample_slice_convert(tmp_path: Path) -> None:
    run("generate", tmp_path / "a.csv.gz", "--jobs", 500, "--arrivals", "bursty")
    run("fit", tmp_path / "a.csv.gz", tmp_path / "m.json")
    run("generate", tmp_path / "b.parquet", "--model", tmp_path / "m.json", "--seed", 3)
    assert len(load(tmp_path / "b.parquet")) == 500
    run("slice", tmp_path / "b.parquet", tmp_path / "c", "--jobs", 50, "--load", 0.5, "--cluster-gpus", 8)
    assert len(load(tmp_path / "c")) == 50
    (tmp_path / "u.csv").write_text("job_id,submit_s,gpus,duration_s\na,5,1,1\nb,3,1,1\n")
    assert "convert --sort" in run("convert", tmp_path / "u.csv", tmp_path / "s.csv", code=2)
    assert not (tmp_path / "s.csv").exists()
    run("convert", "--sort", tmp_path / "u.csv", tmp_path / "s.csv")
    assert load(tmp_path / "s.csv").jobs["job_id"].to_list() == ["b", "a"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--seed -1", "--seed"),
        ("--load 1e-300", "expected 0.000001 to 100"),
        ("--sigma nan", "expected 0 to 5"),
        ("--median-s -3", "expected a positive number of seconds"),
        ("--max-s 1e300", "duration_max_s"),
        ("--gpu-mix 1:-1", "expected sizes above 0"),
        ("--arrivals weekly", "expected one of bursty, diurnal, poisson"),
        ("--elastic 2", "is not a fraction of the jobs; expected 0 to 1"),
        ("--deadlines nan", "is not a fraction of the jobs"),
    ],
)
def test_what_cannot_be_generated(tmp_path: Path, arguments: str, told: str) -> None:
    assert told in run("generate", tmp_path / "o.csv", "--jobs", 5, *arguments.split(), code=2)
    assert not (tmp_path / "o.csv").exists()


def test_bad_input_exits_2_with_the_place(tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("job_id,submit_s,gpus,duration_s\na,0,x,1\n")
    text = run("describe", tmp_path / "bad.csv", code=2).replace("\n", "")
    assert "bad.csv:2, column 'gpus'" in text
    run("slice", tmp_path / "bad.csv", tmp_path / "o.csv", code=2)
    run("fit", tmp_path / "bad.csv", tmp_path / "o.json", code=2)
    run("generate", tmp_path / "o.csv", "--gpu-mix", "many", code=2)
    run("generate", tmp_path / "o.csv", "--load", -1, code=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.csv"]


def test_whole_philly_is_described_in_seconds(shared_data) -> None:
    summary = json.loads(run("describe", shared_data("traces/philly.csv.gz"), "-o", "json"))
    assert summary["jobs"] == 111_549
    assert summary["sizes"][0]["job_share"] == pytest.approx(0.87, abs=0.01)

"""`compare` and `report`: same bytes, resuming, refusals, a page that needs nothing else."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner

from trainmaster.cli.main import app
from trainmaster.model.errors import InputError
from trainmaster.sim import comparison
from trainmaster.sim.comparison import split_policies
from trainmaster.sim.experiment import Experiment, prepare, run

SAME = ("results.parquet", "jobs.parquet", "timeline.parquet", "allocations.parquet", "settings.json")
ARGUMENTS = [
    "compare",
    "demo",
    "-p",
    "fifo,las:quantum_s=600",
    "-p",
    "srtf",
    "--cluster",
    "v100=16x4,k80=16x4",
    "--throughputs",
    "builtin",
    "--seeds",
    "2",
    "--restart-cost",
    "30",
]


def invoke(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compare") / "out"
    invoke(*ARGUMENTS, "--out", out, "--processes", 1, "--figures")
    return out


def test_tables_agree_with_simulate(made: Path) -> None:
    results = pl.read_parquet(made / "results.parquet")
    assert results["policy"].to_list() == ["fifo", "las:quantum_s=600", "srtf"] * 2
    jobs = pl.read_parquet(made / "jobs.parquet")
    assert jobs.height == results["jobs_submitted"].sum()
    wanted = Experiment("demo", "srtf", "v100=16x4,k80=16x4", throughputs="builtin", restart_cost_s=30.0, seed=0)
    alone = run(prepare(wanted)).summary
    row = results.filter((pl.col("policy") == "srtf") & (pl.col("seed") == 0)).row(0, named=True)
    for name in (
        "average_jct_s",
        "makespan_s",
        "utilization",
        "deadline_met_fraction",
        "total_cost",
        "preemptions",
    ):
        assert row[name] == alone[name], name
    assert row["fairness_p99"] == alone["fairness"]["p99"]
    assert not {"cpu_s", "wall_s", "decide_cpu_s"} & set(results.columns)
    assert pl.read_parquet(made / "timing.parquet").height == 6
    assert pl.read_parquet(made / "allocations.parquet")["seed"].unique().to_list() == [0]


def test_policies_of_a_seed_meet_the_same_workload(made: Path) -> None:
    jobs = pl.read_parquet(made / "jobs.parquet")
    arrivals = {
        (policy, seed): rows.select("job_id", "submit_s", "gpus")
        for (policy, seed), rows in jobs.group_by("policy", "seed", maintain_order=True)
    }
    for seed in (0, 1):
        assert arrivals["fifo", seed].equals(arrivals["srtf", seed])
    assert not arrivals["fifo", 0].equals(arrivals["fifo", 1])


def test_the_page_is_self_contained_and_says_what_produced_it(made: Path) -> None:
    page = (made / "report.html").read_text()
    assert not re.search(r"(?:src|href)=[\"'](?!data:|#)", page)
    assert "<script" not in page
    assert "@import" not in page
    assert "url(" not in page
    settings = json.loads((made / "settings.json").read_text())
    for name in ("restart_cost_s", "placement", "resample", "seeds", "throughputs"):
        assert name in settings
        assert name in page
    assert settings["traces"][0]["sha256"] in page
    assert "Generated columns in demo: deadline_kind" in page
    figures = {p.name for p in (made / "figures").iterdir()}
    assert {
        "jct.svg",
        "slowdown.svg",
        "time.png",
        "fairness.svg",
        "deadlines.svg",
        "cost.svg",
        "lead.svg",
    } <= figures
    assert {"gantt-fifo.png", "gantt-srtf.png"} <= figures
    assert page.count("<img ") == len(figures)


def test_report_is_rebuilt_from_the_parquet_alone(made: Path, tmp_path: Path) -> None:
    for name in ("results", "jobs", "timeline", "allocations", "timing"):
        shutil.copy(made / f"{name}.parquet", tmp_path)
    invoke("report", tmp_path)
    assert (tmp_path / "report.html").read_bytes() == (made / "report.html").read_bytes()
    told = json.loads(invoke("report", tmp_path, "-o", "json"))
    assert told["report"] == str(tmp_path / "report.html")
    assert {row["metric"] for row in told["groups"][0]["metrics"]} >= {"average_jct_s", "p99_jct_s"}


def test_a_second_run_simulates_nothing(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name: (made / name).read_bytes() for name in SAME}
    monkeypatch.setattr(comparison, "simulate_cell", lambda cell: pytest.fail(f"ran {cell}"))
    invoke(*ARGUMENTS, "--out", made, "--processes", 1)
    assert {name: (made / name).read_bytes() for name in SAME} == before


def test_a_run_that_was_cut_short_goes_on(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    shutil.copytree(made, out)
    for name in (*SAME[:-1], "timing.parquet", "report.html"):
        (out / name).unlink()
    lost = sorted((out / "cells").iterdir())[:2]
    for cell in lost:
        shutil.rmtree(cell)
    (out / "cells" / ".half").mkdir()  # what a killed process leaves behind
    ran = []
    real = comparison.simulate_cell
    monkeypatch.setattr(comparison, "simulate_cell", lambda cell: ran.append(cell.key) or real(cell))
    invoke(*ARGUMENTS, "--out", out, "--processes", 1)
    assert sorted(ran) == [cell.name for cell in lost]
    for name in SAME:
        assert (out / name).read_bytes() == (made / name).read_bytes(), name


@pytest.mark.slow
def test_same_bytes_from_several_processes(made: Path, tmp_path: Path) -> None:
    invoke(*ARGUMENTS, "--out", tmp_path / "out", "--processes", 2)
    for name in SAME:
        assert (tmp_path / "out" / name).read_bytes() == (made / name).read_bytes(), name


def test_other_settings_in_the_same_folder_are_refused(made: Path, tmp_path: Path) -> None:
    before = {name: (made / name).read_bytes() for name in SAME}
    message = invoke(*ARGUMENTS, "--out", made, "--noise", 0.1, code=2).replace("\n", " ")
    assert "noise is 0.0 there, 0.1 now" in message
    assert {name: (made / name).read_bytes() for name in SAME} == before
    (tmp_path / "mine.txt").write_text("keep")
    assert "other things" in invoke(*ARGUMENTS, "--out", tmp_path, code=2)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_json_output(made: Path) -> None:
    told = json.loads(invoke(*ARGUMENTS, "--out", made, "-o", "json"))
    jct = told["groups"][0]["metrics"][0]
    assert jct["metric"] == "average_jct_s"
    assert set(jct["policies"]) == {"fifo", "las:quantum_s=600", "srtf"}
    assert jct["policies"]["fifo"]["against_first"] is None
    assert jct["lead"]["samples"] == 2


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (["-p", "fifo,srft"], "Did you mean 'srtf'"),
        (["-p", "fifo,fifo"], "twice"),
        (["-p", "fifo", "--loads", "fast"], "--loads"),
        (["-p", "fifo", "--loads", "0"], "--loads"),
        (["-p", "fifo", "--seeds", "0"], "--seeds"),
        (["-p", "fifo", "--resample", "dice"], "--resample"),
        (["-p", "fifo", "--cluster", "v100=x"], "v100=x"),
        (["-p", "fifo", "--cluster", "gpu=2"], "can never run"),
    ],
)
def test_bad_arguments(tmp_path: Path, bad: list[str], words: str) -> None:
    message = invoke("compare", "demo", *bad, "--out", tmp_path / "out", code=2)
    assert words in message.replace("\n", " ")
    assert not (tmp_path / "out").exists()


def test_loads_and_clusters_are_crossed(tmp_path: Path) -> None:
    rows = "".join(f"j{k},{k * 10},{1 + k % 2},{30 + k}\n" for k in range(30))
    (tmp_path / "t.csv").write_text("job_id,submit_s,gpus,duration_s\n" + rows)
    out = tmp_path / "out"
    axes = ["--cluster", "gpu=4", "--cluster", "gpu=8", "--loads", "0.5,2", "--seeds", 1, "--processes", 1]
    invoke("compare", tmp_path / "t.csv", "-p", "fifo,srtf", *axes, "--out", out, "--figures")
    results = pl.read_parquet(out / "results.parquet")
    assert results.select("cluster", "load", "policy").rows() == [
        (cluster, load, policy) for cluster in ("gpu=4", "gpu=8") for load in (0.5, 2.0) for policy in ("fifo", "srtf")
    ]
    offered = results.filter((pl.col("cluster") == "gpu=4") & (pl.col("policy") == "fifo"))["offered_load"]
    assert offered[1] == pytest.approx(4 * offered[0])
    assert (out / "report.html").read_text().count('<h2 id="s') == 4
    assert (out / "figures" / "gpu-4-load-0_5-jct.svg").exists()


def test_policy_lists() -> None:
    assert split_policies(["fifo:backfill=true,srtf", "tiresias:promote=4,thresholds_gpu_s=1/2,las"]) == (
        "fifo:backfill=true", "srtf", "tiresias:promote=4,thresholds_gpu_s=1/2", "las",
    )  # fmt: skip
    for bad in ([","], ["fifo:back=1"], ["backfill=true"]):
        with pytest.raises(InputError):
            split_policies(bad)

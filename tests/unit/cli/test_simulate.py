"""`trainmaster simulate`, `policies` and `solve` as a user meets them."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from trainmaster.cli.main import app

GOOD = "job_id,submit_s,gpus,duration_s\na,0,1,100\nb,5,2,50\n"


def invoke(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(GOOD)
    return path


def test_json_has_the_promised_keys(trace: Path, tmp_path: Path) -> None:
    out, jobs = tmp_path / "out.json", tmp_path / "jobs.csv"
    code, _, errors = invoke(
        "simulate", trace, "--policy", "srtf", "--cluster", "v100=2", "--json", out, "--jobs", jobs
    )
    assert (code, errors) == (0, "")
    figures = json.loads(out.read_text())
    promised = """policy trace cluster seed round_s restart_cost_s placement jobs_submitted jobs_finished jobs_rejected
        jobs_failed average_jct_s median_jct_s p99_jct_s makespan_s average_wait_s utilization deadline_met_fraction
        total_utility total_cost fairness preemptions lost_gpu_s decisions decide_cpu_s cpu_s wall_s"""
    assert set(promised.split()) <= set(figures)
    assert set(figures["fairness"]) == {"mean", "p99", "max"}
    assert jobs.read_text().splitlines()[0].startswith("job_id,submit_s,start_s,finish_s,jct_s,wait_s,status,gpus")
    assert len(jobs.read_text().splitlines()) == 3


def test_same_seed_same_bytes(trace: Path, tmp_path: Path) -> None:
    texts = []
    for name in ("one", "two"):
        path = tmp_path / name
        invoke("simulate", trace, "--cluster", "v100=2", "--noise", "0.2", "--seed", "3", "--jobs", path)
        texts.append(path.read_bytes())
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--policy", "fifi"), "unknown policy 'fifi'"),
        (("--policy", "fifo:bakfill=true"), "has no option"),
        (("--policy", "fifo:backfill=perhaps"), "true or false"),
        (("--policy", "fifo:backfill"), "option 'backfill' of policy 'fifo' has no value"),
        (("--policy", "las:quantum_s=-1"), "quantum_s"),
        (("--cluster", "v100=0"), "no GPUs"),
        (("--cluster", "v100"), "neither a description nor a file"),
        (("--cluster", "v100=1,v100=2"), "twice"),
        (("--cluster", "v100=1"), "can never run"),
        (("--round", "-5"), "--round"),
        (("--round", "nan"), "--round"),
        (("--restart-cost", "-1"), "--restart-cost"),
        (("--restart-cost", "1e300"), "--restart-cost"),
        (("--node-mtbf", "1e300"), "--node-mtbf"),
        (("--seed", "-1"), "--seed"),
        (("--placement", "tetris"), "unknown placement"),
        (("--noise", "-0.1"), "noise"),
        (("--throughputs", "nowhere.json"), "nowhere.json"),
        (("--json", "no/such/folder/x.json"), "writable"),
        (("-o", "xml"), "table or json"),
        (("--unfit", "maybe"), "error or reject"),
    ],
)
def test_bad_options_give_one_message(trace: Path, arguments: tuple[str, str], told: str) -> None:
    before = sorted(path.name for path in trace.parent.iterdir())
    # Options given twice: the last one counts, so a sound default comes first.
    code, _, errors = invoke("simulate", trace, "--cluster", "v100=2", *arguments)
    assert code == 2
    assert told in errors
    assert "Traceback" not in errors
    assert sorted(path.name for path in trace.parent.iterdir()) == before


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "bad.csv"),
        ("job_id,submit_s,gpus,duration_s\n", "no records"),
        (GOOD + "c,9\n", ":4"),
        (GOOD + "c,one,1,1\n", ":4"),
        (GOOD + "c,1,1,1\n", "submit_s"),
        (GOOD + "a,9,1,1\n", "'a'"),
        (GOOD + "c,9,-1,1\n", "gpus"),
        (GOOD + "c,9,1,nan\n", "duration_s"),
        (GOOD + "c,9,1.5,1\n", "whole GPUs"),
        ("job_id,submit_s,gpus\na,0,1\n", "duration_s"),
        ("job_id,submit_s,gpus,duration_s,weight\na,0,1,9,heavy\n", "invalid weight 'heavy'"),
        ("job_id,submit_s,gpus,duration_s,weight\na,0,1,9,-1\n", "invalid weight '-1'"),
        ("job_id,submit_s,gpus,duration_s,slo_multiple\na,0,1,9,x\n", "invalid slo_multiple 'x'"),
        ("job_id,submit_s,gpus,duration_s,num_workers,gpus_per_worker\na,0,4,9,2,1\n", "are not 4 GPUs"),
        ("job_id,submit_s,gpus,duration_s,max_gpus\na,0,4,9,2\n", "asks for 4 GPUs but max_gpus is 2"),
    ],
)
def test_bad_traces_name_the_place(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    out = tmp_path / "out.json"
    code, _, errors = invoke("simulate", path, "--cluster", "v100=2", "--json", out)
    assert code == 2, errors
    assert told in errors
    assert "bad.csv" in errors
    assert not out.exists()


def test_what_extra_holds_is_no_fault_of_the_job(tmp_path: Path) -> None:
    path = tmp_path / "extra.csv"
    path.write_text('job_id,submit_s,gpus,duration_s,extra\na,0,1,9,{broken\nb,1,1,9,"[1, 2]"\n')
    code, _, errors = invoke("simulate", path, "--cluster", "v100=2")
    assert (code, errors) == (0, "")


def test_more_steps_than_a_clock_can_hold(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text(f"job_id,submit_s,gpus,model,iterations\na,0,1,resnet50,{9 * 10**15}\n")
    code, _, errors = invoke("simulate", path, "--cluster", "v100=2", "--throughputs", "builtin")
    assert code == 2
    assert "column 'iterations'" in errors


def test_jobs_that_never_fit_can_be_counted_as_rejected(trace: Path) -> None:
    code, text, _ = invoke("simulate", trace, "--cluster", "v100=1", "--unfit", "reject", "-o", "json")
    assert code == 0
    figures = json.loads(text)
    assert (figures["jobs_submitted"], figures["jobs_finished"], figures["jobs_rejected"]) == (2, 1, 1)


def test_policies_are_listed_and_described() -> None:
    code, text, _ = invoke("policies", "-o", "json")
    assert code == 0
    names = {entry["name"] for entry in json.loads(text)}
    assert {"fifo", "srtf", "tiresias", "gavel-max-min", "oasis"} <= names
    code, text, _ = invoke("policies", "tiresias")
    assert "thresholds_gpu_s" in text
    assert invoke("policies", "nothing")[0] == 2


def test_solve_the_slide(tmp_path: Path) -> None:
    speeds = {"0": (40, 10), "1": (12, 4), "2": (100, 50)}
    instance = {
        "kind": "allocation",
        "accelerators": {"v100": {"count": 1}, "k80": {"count": 1}},
        "jobs": [{"id": k, "gpus": 1, "throughput": {"v100": v, "k80": w}} for k, (v, w) in speeds.items()],
    }
    path = tmp_path / "slide.json"
    path.write_text(json.dumps(instance))
    code, text, _ = invoke("solve", path, "--policy", "gavel-max-min", "-o", "json")
    assert code == 0
    shares = json.loads(text)["allocation"]
    assert shares["0"]["v100"] == pytest.approx(0.4545, abs=1e-3)
    assert shares["2"]["k80"] == pytest.approx(0.909, abs=1e-3)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"kind": "poem"}', '{"kind": "allocation"}', '{"kind": "admission"}'])
def test_bad_instances(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    code, _, errors = invoke("solve", path)
    assert code == 2
    assert "bad.json" in errors
    assert "Traceback" not in errors


def test_names_that_look_like_markup_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "i.json"
    job = {"id": "[/x]", "gpus": 1, "throughput": {"[k80]": 1}}
    path.write_text(json.dumps({"kind": "allocation", "accelerators": {"[k80]": {"count": 1}}, "jobs": [job]}))
    code, text, errors = invoke("solve", path, "--policy", "gavel-max-min")
    assert (code, errors) == (0, "")
    assert "[/x]" in text
    assert "[k80]" in text

"""`trainmaster submit`: what is typed becomes the request that is meant."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from trainmaster.jobspec.limits import Range, Workers
from trainmaster.jobspec.model import JobRequest


def test_the_id_stands_alone_on_the_last_line(service: Any, invoke: Any) -> None:
    code, out, err = invoke("submit", "--", "python", "train.py", "--lr", "0.1")
    assert (code, out, err) == (0, "job-1\n", "")
    assert service.submitted[0].command == ["python", "train.py", "--lr", "0.1"]
    assert service.submitted[0].workdir == os.getcwd()


def test_options_before_the_command_are_ours_and_after_it_the_programs(service: Any, invoke: Any) -> None:
    assert invoke("submit", "--name", "a", "true", "--name", "b", "-o", "x", "--unknown")[0] == 0
    request = service.submitted[0]
    assert request.name == "a"
    assert request.command == ["true", "--name", "b", "-o", "x", "--unknown"]


@pytest.mark.parametrize("command", ["submit", "run"])
def test_an_unknown_option_never_becomes_the_command(service: Any, invoke: Any, command: str) -> None:
    for arguments in (("--nmae", "a", "--", "true"), ("--nmae=a", "true"), ("--nmae",)):
        code, out, err = invoke(command, *arguments)
        assert (code, out) == (2, "")
        assert "No such option" in err and "--name" in err
    assert not service.submitted


def test_a_name_that_is_none_is_refused_in_words(service: Any, invoke: Any) -> None:
    code, _, err = invoke("submit", "--name", "Bad Name!", "--", "true")
    assert code == 2 and "'--name': invalid value 'Bad Name!'; expected at most 63 letters" in err
    assert not service.submitted


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--gpus", "4"], {"workers": Workers(min=4, max=4), "gpus_per_worker": 1}),
        (["--gpus", "4", "--gpus-per-worker", "2"], {"workers": Workers(min=2, max=2), "gpus_per_worker": 2}),
        (["--gpus", "0.5"], {"workers": Workers(min=1, max=1), "gpus_per_worker": 0.5}),
        (["--gpus", "0"], {"workers": Workers(min=1, max=1), "gpus_per_worker": 0}),
        (["--elastic", "1..4"], {"workers": Workers(min=1, max=4), "gpus_per_worker": 1}),
        (["--servers", "1..2"], {"servers": Range(min=1, max=2)}),
        (["--gpu-type", "v100", "--gpu-type", "k80"], {"gpu_types": ["v100", "k80"]}),
        (["--cpus", "2", "--memory", "8GiB"], {"cpus_per_worker": 2, "memory_mib_per_worker": 8192}),
        (["--deadline", "1h30m"], {"deadline_s": 5400, "deadline_kind": "hard"}),
        (["--deadline", "2d", "--soft"], {"deadline_s": 172_800, "deadline_kind": "soft"}),
        (
            ["--weight", "2", "--priority", "-3", "--entity", "vision"],
            {"weight": 2, "priority": -3, "entity": "vision"},
        ),
        (["--steps", "1e4", "--speed", "v100=10", "--speed", "k80=2.5"], {"steps_per_s": {"v100": 10, "k80": 2.5}}),
        (["--epochs", "90", "--model", "resnet-50", "--batch-size", "128"], {"epochs": 90, "batch_size": 128}),
        (["--after", "a", "--after", "b", "--max-attempts", "1"], {"after": ["a", "b"], "max_attempts": 1}),
        (["--preemptible", "--time", "90m"], {"preemptible": True, "time_s": 5400}),
        (["--restart-stalled", "--stall-factor", "30"], {"restart_stalled": True, "stall_factor": 30}),
        (["--no-preempt", "--budget", "12.5"], {"preemptible": False, "budget": 12.5}),
    ],
)
def test_options(service: Any, invoke: Any, options: list[str], expected: dict[str, Any]) -> None:
    code, _, err = invoke("submit", *options, "--", "true")
    assert (code, err) == (0, "")
    assert {name: getattr(service.submitted[0], name) for name in expected} == expected


def test_the_environment_of_the_shell_decides_which_python_runs(
    service: Any, invoke: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/venv/bin:/bin")
    monkeypatch.setenv("SECRET", "s")
    monkeypatch.setenv("WANTED", "w")
    assert invoke("submit", "-e", "A=1=2", "-e", "WANTED", "-e", "PATH=/mine", "/bin/true")[0] == 0
    env = service.submitted[0].env
    assert env["A"] == "1=2"
    assert env["WANTED"] == "w"
    assert env["PATH"] == "/mine"
    assert "SECRET" not in env
    assert invoke("submit", "--bare-env", "true")[0] == 0
    assert service.submitted[1].env == {}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--gpus", "2", "--elastic", "1..4", "x"], "exclude each other"),
        (["--gpus", "3", "--gpus-per-worker", "2", "x"], "3 is not divisible by --gpus-per-worker 2"),
        (["--gpus", "-1", "x"], "'--gpus': invalid number"),
        (["--elastic", "4..1", "x"], "minimum exceeds maximum"),
        (["--elastic", "0..0", "x"], "'--elastic': invalid value 0; expected greater than or equal to 1"),
        (["--elastic", "many", "x"], "'--elastic': invalid range 'many'; expected A..B or N"),
        (["--deadline", "soon", "x"], "'--deadline': invalid deadline 'soon'"),
        (["--deadline", "2020-01-01", "x"], "deadline 2020-01-01 is in the past"),
        (["--soft", "x"], "without a deadline"),
        (["--memory", "lots", "x"], "invalid memory 'lots'"),
        (["--env", "=1", "x"], "invalid variable '=1'"),
        (["--env", "NOT_SET_HERE", "x"], "is not set here"),
        (["--speed", "fast", "x"], "invalid speed 'fast'"),
        (["--speed", "v100=nan", "x"], "'--speed'"),
        (["--name", "a b", "x"], "'--name'"),
        (["--name", "../x", "x"], "'--name'"),
        (["--priority", "9999", "x"], "'--priority'"),
        (["--array", "0", "x"], "'--array'"),
        (["--weight", "-1", "x"], "'--weight'"),
        ([], "no command"),
        (
            ["--gpu-type", "nothere", "true"],
            "'--gpu-type': it runs on nothere; the cluster has v100=4; expected a known type",
        ),
        (["-o", "xml", "x"], "invalid output 'xml'"),
    ],
)
def test_bad_options_are_refused_with_code_2_and_nothing_is_submitted(
    service: Any, invoke: Any, options: list[str], told: str
) -> None:
    code, out, err = invoke("submit", *options)
    assert (code, out) == (2, "")
    assert told in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert service.jobs == {}


def test_an_array_prints_every_id(service: Any, invoke: Any) -> None:
    assert invoke("submit", "--array", "3", "true")[1].split() == ["job-1", "job-2", "job-3"]
    assert json.loads(invoke("submit", "--array", "2", "-o", "json", "true")[1]) == {
        "id": "job-4",
        "ids": ["job-4", "job-5"],
    }


def test_a_lost_answer_does_not_submit_twice(service: Any, invoke: Any) -> None:
    service.break_next = 2
    code, out, _ = invoke("submit", "true")
    assert (code, out) == (0, "job-1\n")
    assert len(service.submitted) == 1
    assert service.asked.count(("POST", "/api/v1/jobs")) == 3


def test_wait_ends_with_the_programs_code(service: Any, invoke: Any) -> None:
    service.on_submit = lambda job: service.change(job, state="failed", exit="exit 7")
    code, out, err = invoke("submit", "--wait", "false")
    assert (code, out) == (7, "job-1\n")
    assert "job-1 has failed: exit 7" in err


def test_spec_file(service: Any, invoke: Any, tmp_path: Path) -> None:
    folder = tmp_path / "specs"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "train.py").touch()
    path = folder / "job.yaml"
    path.write_text(
        "name: night\ncommand: [python, train.py]\nworkers: {min: 1, max: 4}\nworkdir: sub\nenv: {A: file, B: file}\n"
    )
    code, _, err = invoke("submit", "--file", path, "--name", "day", "-e", "B=here", "--bare-env")
    assert (code, err) == (0, "")
    request = service.submitted[0]
    assert (request.name, request.command, request.workers) == ("day", ["python", "train.py"], Workers(min=1, max=4))
    assert request.env == {"A": "file", "B": "here"}
    assert request.workdir == str(folder / "sub")


@pytest.mark.parametrize(
    ("text", "place", "told"),
    [
        ("command: python train.py\n", ":1:10", "Write a list"),
        ("command: [a]\nworkers:\n  min: 3\n  max: x\n", ":4:8", "workers.max"),
        ("command: [a]\nworkers: {min: 3, max: 1}\n", ":2:24", "minimum 3 exceeds maximum 1"),
        ("command: [a]\nwieght: 2\n", ":2:9", "Did you mean 'weight'?"),
        ("command: [a]\nname: one\nname: two\n", ":3:1", "given twice"),
        ("command: [a\n", ":2:1", "is not YAML"),
        ("command: [a, 3]\n", ":1:14", "command.1"),
        ("- a\n", "", "is not a mapping"),
        ("", "", "is empty"),
        ("command: [a]\n---\ncommand: [b]\n", "", "2 documents"),
        ("command: !!python/object/apply:os.system [ls]\n", ":1:10", "is not YAML"),
        ("name: x\n", "", "no command"),
        ("command: [a]\nenv: {A: 1}\n", ":2:10", "env.A"),
        ("? [a, b]\n: 1\n", ":1:3", "invalid field name"),
        ("command: &c [a, *c]\n", "", "deep"),
    ],
)
def test_faults_of_a_spec_file_are_shown_where_they_stand(
    service: Any, invoke: Any, tmp_path: Path, text: str, place: str, told: str
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    code, _, err = invoke("submit", "-f", path)
    assert code == 2
    assert told in err
    if place:
        assert f"job.yaml{place}: " in err
    assert service.submitted == []


def test_aliases_do_not_unfold_without_end(service: Any, invoke: Any, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    layers = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    path.write_text("\n".join(["a0: &a0 [x]", *layers]))
    code, _, err = invoke("submit", "-f", path)
    assert code == 2
    assert "expands to too many values" in err


def test_bytes_that_are_no_text(service: Any, invoke: Any, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    assert "is not text" in invoke("submit", "-f", path)[2]
    assert "cannot be read" in invoke("submit", "-f", tmp_path / "none.yaml")[2]


def test_the_published_schema_is_the_one_the_command_prints(invoke: Any) -> None:
    code, out, _ = invoke("submit", "--schema")
    assert code == 0
    root = Path(__file__).resolve().parents[3]
    assert (root / "docs" / "job-spec.schema.json").read_text() == out, (
        "run `trainmaster submit --schema > docs/job-spec.schema.json`"
    )
    assert set(json.loads(out)["properties"]) == set(JobRequest.model_fields)


def test_a_dry_run_tells_the_eta_and_submits_nothing(service: Any, invoke: Any) -> None:
    code, out, err = invoke("submit", "--dry-run", "--steps", "9", "--deadline", "5m", "--", "true")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "would start in 1m00s (55s to 1m10s, 9 of 10 times)",
        "would finish in 10m (9m55s to 10m, 9 of 10 times)",
        "deadline: 5m00s too late",
        "nothing was submitted",
    ]
    assert not service.submitted
    assert ("POST", "/api/v1/jobs") not in service.asked


def test_a_dry_run_as_json_of_an_array_and_of_unknown_work(service: Any, invoke: Any) -> None:
    code, out, _ = invoke("submit", "--dry-run", "-o", "json", "--", "true")
    assert code == 0
    assert json.loads(out)["jobs"][0]["eta"]["p50_s"] == 600
    assert "pass --steps" in invoke("submit", "--dry-run", "--", "true")[1]
    assert invoke("submit", "--dry-run", "--array", "3", "--steps", "1", "--", "true")[1].startswith("3 jobs\n")
    assert not service.submitted


def test_a_dry_run_refuses_what_a_submission_would(service: Any, invoke: Any) -> None:
    code, _, err = invoke("submit", "--dry-run", "--gpu-type", "nothere", "--", "true")
    assert code == 2
    assert "--gpu-type" in err
    assert invoke("submit", "--dry-run", "--wait", "--", "true")[0] == 2
    assert not service.submitted


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--workdir", "/no/such/folder", "--", "true"), "work folder '/no/such/folder' not found"),
        (("--", "no-such-program-at-all"), "program 'no-such-program-at-all' not found on PATH"),
        (("--", "./no-such-file"), "program './no-such-file' not found in"),
        (("--", sys.executable, "trian.py", "--epochs", "3"), "script 'trian.py' not found in"),
    ],
)
def test_what_is_not_on_this_machine_is_refused(
    service: Any, invoke: Any, arguments: tuple[str, ...], told: str
) -> None:
    code, _, err = invoke("submit", *arguments)
    assert code == 2
    assert told in err
    assert not service.submitted


def test_a_dry_run_of_unknown_work_shows_no_band(service: Any, invoke: Any) -> None:
    assert "would finish" not in invoke("submit", "--dry-run", "--", "true")[1]

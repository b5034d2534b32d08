"""`trainmaster profile` finds the speed that an emulated program was given, and says what is wrong when it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from trainmaster.cli.learning.profile import profile
from trainmaster.cli.learning.profile_runs import NothingMeasured, measure
from trainmaster.estimate.catalogue_files import read_catalogue

app = typer.Typer()
app.command("profile", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(profile)
EMULATED = ["python", "-m", "trainmaster.runtime.emulated", "--steps", "1e9", "--save-every", "1e9"]


def test_the_speed_of_an_emulated_program_is_found_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMASTER_STEPS_PER_S", json.dumps({"cpu": 40.0}))
    out = tmp_path / "speeds.csv"
    out.write_text("model,accelerator,gpus,steps_per_s\nother,v100,1,2.5\n")
    arguments = ["--sizes", "1,2", "--seconds", "1.5", "--model", "toy", "--batch-size", "8", "--out", str(out)]
    result = CliRunner().invoke(app, [*arguments, "-o", "json", "--", *EMULATED])
    assert result.exit_code == 0, result.output
    table = read_catalogue(out)
    assert table.steps_per_s("other", 1, "v100") == 2.5
    for workers in (1, 2):
        assert table.steps_per_s("toy", workers, "cpu", batch_size=8) == pytest.approx(40.0 * workers, rel=0.2)
    assert [row["gpus"] for row in json.loads(result.stdout)["measurements"]] == [1, 2]


def test_a_program_that_reports_nothing_is_named(tmp_path: Path) -> None:
    script = tmp_path / "silent.py"
    script.write_text("print('done')\n")
    with pytest.raises(NothingMeasured, match=r"without reporting progress.*trainmaster\.runtime"):
        measure(["python", str(script)], 1, seconds=1.0)


def test_a_program_that_fails_shows_its_last_words(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("raise RuntimeError('no such data set')\n")
    with pytest.raises(NothingMeasured, match=r"(?s)worker-0 ended with code 1.*no such data set"):
        measure(["python", str(script)], 1, seconds=1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sizes", "1,x", "--", "python", "-c", "1"], "invalid sizes"),
        (["--", "no-such-program-here"], "program 'no-such-program-here' not found"),
        (["--", "python", "missing.py"], "no such script"),
        (["--out", "nowhere/t.csv", "--", "python", "-c", "1"], "does not exist"),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert message in result.stderr

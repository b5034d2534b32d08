"""`trainmaster whatif` on a saved situation: totals, winners and losers, and refusals that change nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from trainmaster.cli.main import app
from trainmaster.engine.engine import Engine, Settings
from trainmaster.engine.persistence import Recorder
from trainmaster.engine.ports import StoredState
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.forecast.situation import Situation, to_json
from trainmaster.model import event as ev
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.job import JobId, JobSpec
from trainmaster.policies.registry import create

LENGTHS_S = (900, 600, 60, 300)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Four jobs of two GPUs each on a cluster of two: only one runs at a time, the longest first."""
    cluster = parse_cluster("v100=2x2")
    engine = Engine(cluster, create("fifo"), DeclaredSpeeds(), Settings())
    specs = [
        JobSpec(JobId(f"j{k}"), 0, f"job-{k}", workers_min=2, workers_max=2, workers_ref=2, work_total=float(length))
        for k, length in enumerate(LENGTHS_S)
    ]
    engine.step(0, *[ev.JobSubmitted(spec) for spec in specs])
    commit = Recorder.of_new(engine).changes(())
    image = StoredState({key: record for key, record in commit.jobs.items() if record is not None}, {}, commit.meta)
    path = tmp_path / "situation.json"
    path.write_text(json.dumps(to_json(Situation(0, "fifo", cluster, image))))
    return path


def ask(saved: Path, *arguments: str) -> dict:
    result = CliRunner().invoke(app, ["whatif", "--file", str(saved), *arguments, "-o", "json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_another_policy_tells_who_gains_and_who_loses(saved: Path) -> None:
    told = ask(saved, "--policy", "srtf")
    fifo = [900, 1500, 1560, 1860]
    shortest_first = {"j2": 60, "j3": 360, "j1": 960, "j0": 1860}
    assert [told["jobs"][f"j{k}"]["before"]["finish_s"] for k in range(4)] == fifo
    assert {k: told["jobs"][k]["after"]["finish_s"] for k in sorted(shortest_first)} == shortest_first | {}
    assert told["gains_s"] == {"j0": -960.0, "j1": 540.0, "j2": 1500.0, "j3": 1500.0}
    assert told["after"]["mean_jct_s"] == pytest.approx(sum(shortest_first.values()) / 4)


def test_more_nodes_a_new_job_and_a_job_moved_up(saved: Path) -> None:
    assert ask(saved, "--add-nodes", "v100=2x2")["after"]["mean_jct_s"] < 1000
    told = ask(saved, "--add-job", "2:1h")
    assert told["jobs"]["new-1"]["before"] is None and told["jobs"]["new-1"]["after"]["finish_s"] == 1860 + 3600
    assert told["after"]["mean_jct_s"] == told["before"]["mean_jct_s"]  # the same jobs, and none is later
    assert ask(saved, "--first", "job-3")["jobs"]["j3"]["after"]["finish_s"] == 1200


def test_a_new_job_that_fits_nowhere_is_called_so(saved: Path) -> None:
    def last_words(*arguments: str) -> str:
        shown = CliRunner().invoke(app, ["whatif", "--file", str(saved), *arguments]).stdout
        return next(line for line in shown.splitlines() if line.startswith("new-1"))

    assert last_words("--add-job", "4:1h").endswith("never starts")
    assert last_words("--add-job", "2:1h").endswith("new")


def test_the_table_is_for_people(saved: Path) -> None:
    result = CliRunner().invoke(app, ["whatif", "--file", str(saved), "-p", "srtf"])
    assert result.exit_code == 0
    assert "3 jobs finish sooner, 1 later, 0 as before." in result.stdout
    assert "j2 job-2" in result.stdout and "+25m" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "nothing to change"),
        (("--policy", "nonsense"), "nonsense"),
        (("--remove-job", "nobody"), "no active job is called 'nobody'"),
        (("--remove-node", "nowhere"), "node 'nowhere' not found"),
        (("--resize", "j0"), "invalid size 'j0'"),
        (("--resize", "j0=4..2"), "minimum exceeds maximum"),
        (("--add-job", "two:1h"), "invalid job 'two:1h'"),
        (("--add-job", "2:1h:tpu"), "GPU type 'tpu' not found"),
        (("--add-nodes", "v100"), "cannot read"),
        (("--first", "j9"), "no active job"),
    ],
)
def test_bad_wishes_are_one_message(saved: Path, arguments: tuple[str, ...], told: str) -> None:
    result = CliRunner().invoke(app, ["whatif", "--file", str(saved), *arguments])
    assert result.exit_code == 2
    assert told in result.stderr and result.stdout == ""


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"format": 1}')
    result = CliRunner().invoke(app, ["whatif", "--file", str(path), "-p", "srtf"])
    assert result.exit_code == 2 and "not a situation" in result.stderr

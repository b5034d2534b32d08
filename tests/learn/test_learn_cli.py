"""`trainmaster learn`: a tiny run from end to end, and one clear message for everything that is wrong."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")

import torch

from trainmaster.cli.learning.learn import learn_app
from trainmaster.policies.dl2.weights import SHIPPED, load

TINY = [
    "--cluster", "servers=4,jobs=5,arrivals=1", "--set", "warm_up_traces=1", "--set", "warm_up_steps=10",
    "--set", "episodes=4", "--set", "validation_traces=1", "--set", "validate_every=1",
]  # fmt: skip


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(learn_app, list(arguments))
    return result.exit_code, result.output


def test_train_then_resume_then_use(tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, text = run("dl2", "--teacher", "drf", "--iterations", "1", "--out", str(out), *TINY)
    assert code == 0, text
    assert (out / "metrics.csv").read_text().count("\n") == 3
    code, text = run("dl2", "--teacher", "drf", "--iterations", "2", "--resume", "--out", str(out), *TINY)
    assert code == 0, text
    assert (out / "metrics.csv").read_text().count("\n") == 4
    made_by = load(out / "weights.npz").made_by
    assert made_by["options"]["teacher"] == "drf" and str(tmp_path) not in json.dumps(made_by)


def test_a_run_goes_on_from_the_weights_of_another(tmp_path: Path) -> None:
    """No imitation, and what it begins with is what the file holds."""
    out = tmp_path / "run"
    code, text = run("dl2", "--start", str(SHIPPED), "--iterations", "0", "--out", str(out), *TINY)
    assert code == 0, text
    begun, kept = load(SHIPPED).network.weights, load(out / "weights.npz").network.weights
    assert all((kept[name] == value).all() for name, value in begun.items())
    assert load(out / "weights.npz").made_by["options"]["warm_up"] is False


def test_jobs_without_servers_can_be_trained_on(tmp_path: Path) -> None:
    parallel = [part.replace("arrivals=1", "arrivals=1,speeds=data-parallel") for part in TINY]
    code, text = run("dl2", "--teacher", "rule", "--iterations", "0", "--out", str(tmp_path / "run"), *parallel)
    assert code == 0, text


def test_evaluate_compares_on_the_same_traces(tmp_path: Path) -> None:
    code, text = run(
        "evaluate", "--scenario", "half-the-cluster", "--traces", "2", "--policies", "drf;fifo;drf", "-o", "json",
        "--json", str(tmp_path / "all.json"),
    )  # fmt: skip
    assert code == 0, text
    summary = json.loads(text)
    drf, fifo = summary["policies"]
    assert summary["traces"] == 2, "a policy named twice counts once"
    assert drf["below"] == 0.0 and fifo["below"] == pytest.approx(1 - fifo["mean_s"] / drf["mean_s"])
    by_trace = json.loads((tmp_path / "all.json").read_text())["by_trace_s"]
    assert sum(by_trace["fifo"]) / 2 == pytest.approx(fifo["mean_s"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["dl2", "--out", "{}", "--teacher", "drff"], "unknown policy 'drff'"),
        (["dl2", "--out", "{}", "--recipe", "mine"], "ours or paper"),
        (["dl2", "--out", "{}", "--set", "criitic=false"], "no training option"),
        (["dl2", "--out", "{}", "--set", "critic=7"], "something like true"),
        (["dl2", "--out", "{}", "--cluster", "machines=4"], "invalid cluster field 'machines=4'"),
        (["dl2", "--out", "{}", "--cluster", "servers=many"], "a number"),
        (["dl2", "--out", "{}", "--cluster", "servers=0"], "'servers' of the trace is 0"),
        (["dl2", "--out", "{}", "--cluster", "slot=inf"], "'slot_s' of the trace is inf"),
        (["dl2", "--out", "{}", "--cluster", "load=inf"], "'arrival_scale' of the trace is inf"),
        (["dl2", "--out", "{}", "--cluster", "noise=nan"], "'profile_noise' of the trace is nan"),
        (["dl2", "--out", "{}", "--cluster", "variation=1000"], "0 to 5"),
        (["dl2", "--out", "{}", "--cluster", "gpus=100000000000"], "from 1 to 100000"),
        (["dl2", "--out", "{}", "--cluster", "arrivals=100000000000000000000"], "from 1 to 100000"),
        (["dl2", "--out", "{}", "--seed", "-1"], "greater than or equal to 0"),
        (["dl2", "--out", "{}", "--seed", "9" * 30], "'seed' is 999"),
        (["dl2", "--out", "{}", "--set", "seed=3"], "expected --seed"),
        (["dl2", "--out", "{}", "--set", "teacher=rule"], "expected --teacher"),
        (["dl2", "--out", "{}", "--set", "rate=-1"], "'rate' is -1.0; expected more than 0"),
        (["dl2", "--out", "{}", "--set", "warm_up_rate=NaN"], "'warm_up_rate' is nan"),
        (["dl2", "--out", "{}", "--set", "rate=1e400"], "'rate' is inf"),
        (["dl2", "--out", "{}", "--set", "passes=0"], "'passes' is 0; expected 1 or more"),
        (["dl2", "--out", "{}", "--set", "pairs=0"], "'pairs' is 0; expected 1 or more"),
        (["dl2", "--out", "{}", "--set", "warm_up_steps=-3"], "'warm_up_steps' is -3; expected 0 or more"),
        (["dl2", "--out", "{}", "--set", "hidden=10000000000"], "'hidden' is 10000000000"),
        (["dl2", "--out", "{}", "--set", "entropy=-1.0"], "'entropy' is -1.0"),
        (["dl2", "--out", "{}/no/where"], "does not exist"),
        (["dl2", "--out", "{}", "--resume"], "no checkpoint found to resume"),
        (["evaluate", "--scenario", "huge"], "unknown scenario"),
        (["evaluate", "--weights", "{}/none.npz"], "cannot read the weights"),
        (["evaluate", "--policies", "drf;dl2", "--weights", str(SHIPPED)], "--weights beside --policies"),
    ],
)  # fmt: skip
def test_bad_input_is_told_and_nothing_is_written(tmp_path: Path, arguments: list[str], says: str) -> None:
    out = tmp_path / "run"
    code, text = run(*[argument.replace("{}", str(out)) for argument in arguments])
    assert code == 2 and says in text, text
    assert not out.exists()


def test_a_run_resumes_on_its_own_clusters_and_keeps_one_row_by_iteration(tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = ["dl2", "--teacher", "drf", "--out", str(out), *TINY]
    assert run(*first, "--iterations", "1")[0] == 0
    metrics = out / "metrics.csv"
    begun = metrics.read_text()
    # Interrupted after its last checkpoint: rows of iterations that will be played again, the last one cut off.
    metrics.write_text(begun + "2,1,,,,,,,\n3,1,,,,,,,\n4,1,,")
    other = [part.replace("servers=4", "servers=6") for part in first]
    code, text = run(*other, "--iterations", "2", "--resume")
    assert code == 2 and "--cluster 1 of servers=4, this run has servers=6" in text, text
    code, text = run(*first, "--cluster", "servers=4", "--iterations", "2", "--resume")
    assert code == 2 and "1 of --cluster, this run has 2" in text, text
    code, text = run(*first, "--iterations", "3", "--resume")
    assert code == 0, text
    assert metrics.read_text().startswith(begun)
    assert [row.split(",")[0] for row in metrics.read_text().splitlines()] == ["iteration", "0", "1", "2", "3"]


def test_a_folder_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    code, text = run("dl2", "--out", str(tmp_path / "file"), *TINY)
    assert code == 2 and "cannot write there" in text, text
    assert (tmp_path / "file").read_text() == "mine"
    (tmp_path / "odd" / "checkpoint.pt").mkdir(parents=True)
    code, text = run("dl2", "--out", str(tmp_path / "odd"), "--iterations", "0", *TINY)
    assert code == 2 and "cannot write: Is a directory" in text, text
    code, text = run("dl2", "--out", str(tmp_path / "odd"), "--resume", *TINY)
    assert code == 2 and "cannot read it" in text, text


def test_a_checkpoint_that_lacks_parts_is_told(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert run("dl2", "--iterations", "0", "--out", str(out), *TINY)[0] == 0
    state = torch.load(out / "checkpoint.pt", weights_only=True)
    for broken in ({**state, "options": [1]}, {**state, "actor": {}}, {k: v for k, v in state.items() if k != "best"}):
        torch.save(broken, out / "checkpoint.pt")
        code, text = run("dl2", "--iterations", "0", "--resume", "--out", str(out), *TINY)
        assert code == 2 and "not a checkpoint of dl2" in text, text

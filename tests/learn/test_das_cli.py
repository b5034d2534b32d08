"""`trainmaster learn das` and `learn das-evaluate`: a tiny run from end to end, and a message for what is wrong."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")

from trainmaster.cli.learning.learn import learn_app
from trainmaster.cli.simulation.traces import app as traces_app
from trainmaster.learn.das.jobs import seeds_of
from trainmaster.policies.das.weights import load

TINY = [
    "--set", "warm_up_episodes=3", "--set", "warm_up_steps=5", "--set", "episodes=3", "--set", "jobs=12",
    "--set", "learned=20", "--set", "validation_traces=1", "--set", "validate_every=1", "--set", "heads=2",
]  # fmt: skip


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(learn_app, list(arguments))
    return result.exit_code, result.output


def test_train_then_resume_then_evaluate(tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, text = run("das", "--variant", "da+mc", "--iterations", "1", "--out", str(out), *TINY)
    assert code == 0, text
    begun = (out / "metrics.csv").read_text()
    code, text = run("das", "--variant", "da+mc", "--iterations", "2", "--resume", "--out", str(out), *TINY)
    assert code == 0, text
    assert (out / "metrics.csv").read_text().startswith(begun)
    trace = tmp_path / "trace.csv"
    assert CliRunner().invoke(traces_app, ["generate", str(trace), "--jobs", "2000"]).exit_code == 0
    code, text = run("das", "--variant", "da+mc", "--trace", str(trace), "--resume", "--out", str(out), *TINY)
    assert code == 2 and "--trace 1 of" in text and "the same options" in text, text
    weights = load(out / "weights.npz")
    assert weights.agents.variant == "da+mc" and weights.agents.heads == 2
    assert str(tmp_path) not in json.dumps(weights.made_by)
    found = tmp_path / "all.json"
    code, text = run(
        "das-evaluate", "--rivals", "DRF-LoadBalance;FIFO-FirstFit", "--weights", str(out / "weights.npz"),
        "--traces", "1", "-o", "json", "--json", str(found),
    )  # fmt: skip
    assert code == 0, text
    rows = {row["rival"]: row for row in json.loads(text)["rows"]}
    assert list(rows) == ["DRF-LoadBalance", "FIFO-FirstFit", "DAS"] and rows["DRF-LoadBalance"]["below_jct_min"] == 0
    assert rows["DAS"]["below_jct_min_half"] is None, "one stream gives no interval"
    by_stream = json.loads(found.read_text())["by_stream"]["DAS"]
    assert all(list(by_site) == [str(seed) for seed in seeds_of("test", 1)] for by_site in by_stream.values())
    assert rows["DAS"]["small_jct_min"] == pytest.approx(next(iter(by_stream["small"].values()))[0])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["das", "--out", "{}", "--variant", "dada"], "'variant' is 'dada'"),
        (["das", "--out", "{}", "--set", "heads=5"], "with 5 heads"),
        (["das", "--out", "{}", "--set", "tau=5"], "no training option"),
        (["das", "--out", "{}", "--seed", "-1"], "greater than or equal to 0"),
        (["das", "--out", "{}", "--set", "seed=3"], "expected --seed"),
        (["das", "--out", "{}", "--set", "variant=da"], "expected --variant"),
        (["das", "--out", "{}", "--set", "gain=NaN"], "'gain' is nan"),
        (["das", "--out", "{}", "--set", "rate=-1"], "'rate' is -1.0; expected more than 0"),
        (["das", "--out", "{}", "--set", "varied=-3"], "'varied' is -3; expected 0 or more"),
        (["das", "--out", "{}", "--set", "warm_up_episodes=0"], "'warm_up_episodes' is 0; expected 1 or more"),
        (["das", "--out", "{}/no/where"], "does not exist"),
        (["das", "--out", "{}", "--resume"], "no checkpoint found to resume"),
        (["das-evaluate", "--rivals", "Nobody"], "unknown rival 'Nobody'"),
        (["das-evaluate", "--weights", "{}/none.npz", "--rivals", "FIFO-FirstFit", "--traces", "1"], "none.npz"),
    ],
)  # fmt: skip
def test_bad_input_is_told_and_nothing_is_written(tmp_path: Path, arguments: list[str], says: str) -> None:
    out = tmp_path / "run"
    code, text = run(*[argument.replace("{}", str(out)) for argument in arguments])
    assert code == 2 and says in text.replace("\n", " "), text
    assert not out.exists()
